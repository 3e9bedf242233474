"""Synthetic lung nodules in CT-like cubes, deterministic in a seed: the data source that needs no download."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from gmmae.data.synthetic.painting import Field, Grid, blur_of, interpolate, paint
from gmmae.data.synthetic.phantom import Phantom, Vector, draw_phantom
from gmmae.data.volumes import NativeNodule, Nodules, make_table

Shape = tuple[int, int, int]
Mask = Bool[np.ndarray, "z y x"]

EDGE_DIAMETERS = 1.25
"""A cube's edge over its nodule's diameter, as for the real nodules."""


class _Scanner(NamedTuple):
    """A scan as it shows a nodule: its spacing and the annotated centre's error along z, y, x, and tissue without a nodule."""

    spacing_mm: Vector
    noise_hu: float
    lung_hu: float
    texture_hu: float
    shift_mm: Vector


def _draw_scanner(phantom: Phantom, rng: np.random.Generator) -> _Scanner:
    slice_mm, pixel_mm, noise_hu, lung_hu, texture_hu = rng.uniform((0.6, 0.55, 12, -900, 20), (2.5, 0.85, 45, -770, 60))
    shift_mm = 0.05 * phantom.diameter_mm * rng.standard_normal(3)
    return _Scanner(np.array([slice_mm, pixel_mm, pixel_mm]), noise_hu, lung_hu, texture_hu, shift_mm)


def _noise(rng: np.random.Generator, places: list[np.ndarray], step_mm: Vector) -> Grid:
    """Returns white noise on a lattice of `step_mm`, linearly interpolated, like a scan's noise after resampling."""
    phase = rng.uniform(size=3)
    positions = [(mm - mm[0]) / step + start for mm, step, start in zip(places, step_mm, phase, strict=True)]
    lattice = rng.standard_normal([int(position[-1]) + 2 for position in positions])
    return interpolate(lattice, *positions)


def _render(phantom: Phantom, scanner: _Scanner, shape: Shape, voxel_mm: Vector, rng: np.random.Generator) -> tuple[Grid, Mask]:
    """Returns HU, not rounded, and the nodule's voxels."""
    steps = zip(shape, voxel_mm, scanner.shift_mm, strict=True)
    places = [(np.arange(n) - (n - 1) / 2) * step + shift for n, step, shift in steps]
    slope = rng.normal(0, 20 / phantom.diameter_mm, 3)
    z, y, x = np.ix_(*places)
    tissue = scanner.lung_hu + slope[0] * z + slope[1] * y + slope[2] * x
    tissue += scanner.texture_hu * _noise(rng, places, np.maximum(2.0, voxel_mm))
    hu, mask = paint(phantom, Field(places[0], places[1], places[2], blur_of(scanner.spacing_mm)), tissue)
    return hu + scanner.noise_hu * _noise(rng, places, np.maximum(scanner.spacing_mm, voxel_mm)), mask


def nodule_cube(phantom: Phantom, shape: Shape, rng: np.random.Generator) -> tuple[Grid, Mask]:
    """Renders a phantom with parenchyma and noise in a box of cubic voxels, whose edge is `EDGE_DIAMETERS` × its diameter.

    The cube's centre misses the nodule's by 5 % of the diameter (a standard deviation along each axis), as a reader's does.
    The scan has pixels of 0.55 to 0.85 mm, slices of 0.6 to 2.5 mm and noise of 12 to 45 HU.

    Args:
      phantom: the nodule.
      shape: voxels along z, y, x.
      rng: draws the scanner, the centre and the noise.

    Returns:
      HU, not rounded, and the nodule's voxels, both of that shape.
    """
    voxel_mm = np.full(3, EDGE_DIAMETERS * phantom.diameter_mm / max(shape))
    return _render(phantom, _draw_scanner(phantom, rng), shape, voxel_mm, rng)


def native_nodules(samples: int, edge: int, seed: int) -> tuple[NativeNodule, ...]:
    """Returns volumes around random nodules on the grids of their scans, of `edge` pixels, and tight along z.

    The nodule of volume i and its scanner depend on `seed` and i only. The annotated centre has a reader's error. A nodule that
    lies between two slices is rendered again, with a slice through its middle.
    """
    return tuple(_native(edge, seed, index) for index in range(samples))


def _native(edge: int, seed: int, index: int) -> NativeNodule:
    rng = np.random.default_rng([seed, index])
    phantom = draw_phantom(rng)
    scanner = _draw_scanner(phantom, rng)
    slices = max(2, round(phantom.diameter_mm / scanner.spacing_mm[0]))
    for shape in ((slices, edge, edge), (slices + 1, edge, edge)):
        hu, mask = _render(phantom, scanner, shape, scanner.spacing_mm, rng)
        if mask.any():
            break
    z, y, x = ((n - 1) / 2 for n in shape)
    name = f"synthetic-{index:06d}"
    values = np.rint(np.clip(hu, -1024, 3071)).astype(np.int16)
    spacing_mm: Any = tuple(scanner.spacing_mm.tolist())
    return NativeNodule(name, name, phantom.category, values, mask.astype(np.uint8), (z, y, x), spacing_mm, phantom.diameter_mm)


def synthetic_nodules(samples: int, shape: Shape, seed: int) -> Nodules:
    """Makes cubes around random nodules, with masks. Sample i depends on `shape`, `seed` and i only, and is its own group.

    Values are rounded to whole HU at the end, so that the last bits of a machine's arithmetic do not show. The nodule
    behind sample i is the same for each `shape`.

    Args:
      samples: number of cubes, at least 1.
      shape: voxels along z, y, x, each at least 4.
      seed: at least 0.

    Returns:
      Cubes in HU with a longest edge of 1.25 × diameter, names `synthetic-000000` and so on, categories in the proportions of
      `gmmae.data.synthetic.phantom.CATEGORIES`, masks, and diameters.

    Example:
      >>> synthetic_nodules(samples=2, shape=(16, 16, 16), seed=0).values.shape
      (2, 16, 16, 16)
    """
    hu = np.empty((samples, *shape), np.int16)
    masks = np.empty(hu.shape, np.uint8)
    categories, diameter_mm = [], np.empty(samples)
    for index in range(samples):
        rng = np.random.default_rng([seed, index])
        phantom = draw_phantom(rng)
        cube, masks[index] = nodule_cube(phantom, shape, rng)
        hu[index] = np.rint(np.clip(cube, -1024, 3071))
        categories.append(phantom.category)
        diameter_mm[index] = phantom.diameter_mm
    names = [f"synthetic-{index:06d}" for index in range(samples)]
    sizes = {"diameter_mm": diameter_mm, "edge_mm": EDGE_DIAMETERS * diameter_mm}
    return Nodules(hu, masks, make_table(names, category=categories, **sizes))

"""Synthetic lung nodules in CT-like cubes, deterministic in a seed: the data source that needs no download."""

from operator import mul

import numpy as np
from jaxtyping import Bool, Int16

from gmmae.data.synthetic.painting import Field, Grid, blur_of, interpolate, paint
from gmmae.data.synthetic.phantom import Phantom, Vector, draw_phantom
from gmmae.data.volumes import NativeNodule, Nodules, make_table

Shape = tuple[int, int, int]
Mask = Bool[np.ndarray, "z y x"]
Scanner = tuple[Vector, Vector, Vector]
"""Spacing, mm; noise, lung and texture of the lung, HU; error of the annotated centre, mm. Vectors are z, y, x."""

EDGE_DIAMETERS = 1.25
"""A cube's edge over its nodule's diameter, as for the real nodules."""


def _draw_scanner(phantom: Phantom, rng: np.random.Generator) -> Scanner:
    drawn = rng.uniform((0.6, 0.55, 12, -900, 20), (2.5, 0.85, 45, -770, 60))
    return drawn[[0, 1, 1]], drawn[2:], 0.05 * phantom.diameter_mm * rng.standard_normal(3)


def _noise(rng: np.random.Generator, places: list[np.ndarray], step_mm: Vector) -> Grid:
    positions = [(mm - mm[0]) / step + rng.uniform() for mm, step in zip(places, step_mm, strict=True)]
    return interpolate(rng.standard_normal([int(position[-1]) + 2 for position in positions]), *np.ix_(*positions))


def _render(phantom: Phantom, scanner: Scanner, shape: Shape, voxel_mm: Vector, rng: np.random.Generator) -> tuple[Grid, Mask]:
    spacing_mm, (noise_hu, lung_hu, texture_hu), shift_mm = scanner
    steps = zip(shape, voxel_mm, shift_mm, strict=True)
    places = [(np.arange(n) - (n - 1) / 2) * step + shift for n, step, shift in steps]
    slope, axes = rng.normal(0, 20 / phantom.diameter_mm, 3), np.ix_(*places)
    tissue = sum(map(mul, slope, axes), lung_hu) + texture_hu * _noise(rng, places, np.maximum(2.0, voxel_mm))
    hu, mask = paint(phantom, Field(axes, blur_of(spacing_mm)), tissue)
    return hu + noise_hu * _noise(rng, places, np.maximum(spacing_mm, voxel_mm)), mask


def _as_int16(hu: Grid) -> Int16[np.ndarray, "z y x"]:
    return np.rint(np.clip(hu, -1024, 3071)).astype(np.int16)


def nodule_cube(phantom: Phantom, shape: Shape, rng: np.random.Generator) -> tuple[Grid, Mask]:
    """A phantom with parenchyma and noise in a box of cubic voxels, whose edge is `EDGE_DIAMETERS` × its diameter.

    The centre misses the nodule's by 5 % of the diameter (a standard deviation along each axis), as a reader's does. The scan
    has pixels of 0.55 to 0.85 mm, slices of 0.6 to 2.5 mm and noise of 12 to 45 HU. HU are not rounded.
    """
    voxel_mm = np.full(3, EDGE_DIAMETERS * phantom.diameter_mm / max(shape))
    return _render(phantom, _draw_scanner(phantom, rng), shape, voxel_mm, rng)


def native_nodules(samples: int, edge: int, seed: int) -> tuple[NativeNodule, ...]:
    """Volumes around random nodules on the grids of their scans, of `edge` pixels, and tight along z.

    Volume i depends on `seed` and i only. Its centre has a reader's error. A nodule between slices is rendered again, with one
    through its middle.
    """
    nodules = []
    for index in range(samples):
        rng, name = np.random.default_rng([seed, index]), f"synthetic-{index:06d}"
        phantom = draw_phantom(rng)
        scanner = _draw_scanner(phantom, rng)
        slice_mm, *_ = spacing_mm = scanner[0]
        count = max(2, round(phantom.diameter_mm / slice_mm))
        hu, mask = _render(phantom, scanner, (count, edge, edge), spacing_mm, rng)
        if not mask.any():
            hu, mask = _render(phantom, scanner, (count + 1, edge, edge), spacing_mm, rng)
        z, y, x = ((n - 1) / 2 for n in hu.shape)
        facts = (name, name, phantom.category, _as_int16(hu), mask.astype(np.uint8), (z, y, x))
        nodules.append(
            NativeNodule(*facts, tuple(spacing_mm.tolist()), phantom.diameter_mm, origin=f"synthetic-{seed}-{index}")
        )
    return tuple(nodules)


def synthetic_nodules(samples: int, shape: Shape, seed: int) -> Nodules:
    """Cubes of 1.25 diameters around random nodules, with masks and diameters, each its own group.

    Sample i depends on `shape`, `seed` and i only, and its nodule is the same for each `shape`. Values are rounded to whole HU,
    so that the last bits of a machine's arithmetic do not show.

    >>> synthetic_nodules(samples=2, shape=(16, 16, 16), seed=0).values.shape
    (2, 16, 16, 16)
    """
    hu, phantoms = np.empty((samples, *shape), np.int16), []
    masks = np.empty(hu.shape, np.uint8)
    for index in range(samples):
        rng = np.random.default_rng([seed, index])
        phantoms.append(draw_phantom(rng))
        cube, masks[index] = nodule_cube(phantoms[-1], shape, rng)
        hu[index] = _as_int16(cube)
    names, diameter_mm = [f"synthetic-{index:06d}" for index in range(samples)], np.array([p.diameter_mm for p in phantoms])
    table = make_table(
        names,
        diameter_mm=diameter_mm,
        edge_mm=EDGE_DIAMETERS * diameter_mm,
        category=[phantom.category for phantom in phantoms],
        origin=[f"synthetic-{seed}-{i}" for i in range(samples)],
    )
    return Nodules(hu, masks, table)

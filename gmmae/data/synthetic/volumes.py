"""Synthetic lung nodules in CT-like cubes, deterministic in a seed: the data source that needs no download."""

import numpy as np
from jaxtyping import Bool, Float64

from gmmae.data.synthetic.painting import Field, Grid, blur_of, interpolate, paint
from gmmae.data.synthetic.phantom import Phantom, draw_phantom
from gmmae.data.volumes import DataError, Details, Nodules

Shape = tuple[int, int, int]

EDGE_DIAMETERS = 1.25
"""A cube's edge over its nodule's diameter, as for the real nodules."""


def _noise(rng: np.random.Generator, field: Field, step_mm: Float64[np.ndarray, "3"]) -> Grid:
    """White noise on a lattice of `step_mm`, linearly interpolated: a scan's noise after resampling."""
    phase = rng.uniform(size=3)
    positions = [(mm - mm[0]) / step + start for mm, step, start in zip(field[:3], step_mm, phase, strict=True)]
    lattice = rng.standard_normal([int(position[-1]) + 2 for position in positions])
    return interpolate(lattice, *positions)


def nodule_cube(phantom: Phantom, shape: Shape, rng: np.random.Generator) -> tuple[Grid, Bool[np.ndarray, "z y x"]]:
    """Scan a phantom: a box of cubic voxels, `EDGE_DIAMETERS` × its diameter long, around it, with parenchyma and noise.

    The cube's centre misses the nodule's by 5 % of the diameter (a standard deviation along each axis), as a reader's does.
    The scan has pixels of 0.55 to 0.85 mm, slices of 0.6 to 2.5 mm and noise of 12 to 45 HU.

    Args:
      phantom: the nodule.
      shape: voxels along z, y, x.
      rng: draws the scanner, the centre and the noise.

    Returns:
      HU, not rounded, and the nodule's voxels, both of that shape.
    """
    slice_mm, pixel_mm, noise_hu, lung_hu, texture_hu = rng.uniform((0.6, 0.55, 12, -900, 20), (2.5, 0.85, 45, -770, 60))
    spacing_mm = np.array([slice_mm, pixel_mm, pixel_mm])
    voxel_mm = EDGE_DIAMETERS * phantom.diameter_mm / max(shape)
    shift_mm = 0.05 * phantom.diameter_mm * rng.standard_normal(3)
    z_mm, y_mm, x_mm = ((np.arange(n) - (n - 1) / 2) * voxel_mm + mm for n, mm in zip(shape, shift_mm, strict=True))
    field = Field(z_mm, y_mm, x_mm, blur_of(spacing_mm))

    slope = rng.normal(0, 20 / phantom.diameter_mm, 3)
    tissue = lung_hu + slope[0] * z_mm[:, None, None] + slope[1] * y_mm[:, None] + slope[2] * x_mm
    tissue += texture_hu * _noise(rng, field, np.full(3, max(2.0, voxel_mm)))
    hu, mask = paint(phantom, field, tissue)
    return hu + noise_hu * _noise(rng, field, np.maximum(spacing_mm, voxel_mm)), mask


def synthetic_nodules(samples: int, shape: Shape, seed: int) -> Nodules:
    """Cubes around random nodules, with masks. Sample i depends on `shape`, `seed` and i only, and is its own group.

    Values are rounded to whole HU at the end, so that the last bits of a machine's arithmetic do not show. The nodule
    behind sample i is the same for each `shape`.

    Args:
      samples: how many cubes, at least 1.
      shape: voxels along z, y, x, each at least 4.
      seed: at least 0.

    Returns:
      Cubes in HU with a longest edge of 1.25 × diameter, names `synthetic-000000` and so on, categories in the proportions of
      `gmmae.data.synthetic.phantom.CATEGORIES`, masks, and diameters.

    Raises:
      DataError: an argument is out of its range.

    Example:
      >>> synthetic_nodules(samples=2, shape=(16, 16, 16), seed=0).values.shape
      (2, 16, 16, 16)
    """
    for name, value, least in (("samples", samples, 1), ("size", min(shape), 4), ("seed", seed, 0)):
        if value < least:
            raise DataError(f"data.{name} must be at least {least} for synthetic nodules; got {value}")
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
    names = tuple(f"synthetic-{index:06d}" for index in range(samples))
    details = Details(names, np.zeros((samples, 3)), EDGE_DIAMETERS * diameter_mm, diameter_mm, np.zeros(samples))
    return Nodules(hu, names, names, tuple(categories), masks, details)

"""A folder of synthetic chest CT scans in the shape of LUNA16's, with annotations that are exact.

The chest is two ellipsoidal lungs in an elliptic cylinder of soft tissue, painted along the scan's own axes.
"""

import csv
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import SimpleITK as sitk
from jaxtyping import Int16

from gmmae.data.extraction.annotations import COLUMNS
from gmmae.data.settings import AIR_HU, ANNOTATIONS
from gmmae.data.synthetic.painting import Field, Grid, blur_of, paint, paint_tube
from gmmae.data.synthetic.phantom import Phantom, Tube, Vector, draw_phantom, random_directions, random_tube
from gmmae.data.volumes import DataError
from gmmae.data.writing import write_image
from gmmae.system.files import whole_folder

Volume = Int16[np.ndarray, "z y x"]

BODY = np.array([0.42, 0.47])
LUNG = np.array([0.46, 0.33, 0.18])
LUNG_CENTRES = np.array([[0.5, 0.5, 0.27], [0.5, 0.5, 0.73]])
"""Semi-axes and centres as fractions of the scan's edges: of the body along y, x, of a lung along z, y, x."""

SOFT_TISSUE_HU = 40.0
VESSELS_PER_LITRE = 20
NOISE_EDGE = 128
MIN_HALF_AXIS_MM = 5.0
"""Shortest half-axis of a lung."""


class Frame(NamedTuple):
    """A scan's grid along its own axes: voxels and mm per voxel, in array order z, y, x."""

    shape: tuple[int, int, int]
    spacing_mm: Vector

    @property
    def edges_mm(self) -> Vector:
        """Along z, y, x."""
        return np.array(self.shape) * self.spacing_mm

    @property
    def lung_mm(self) -> Vector:
        """Semi-axes of a lung along z, y, x."""
        return LUNG * self.edges_mm

    def __str__(self) -> str:
        return f"{self.shape} voxels of {self.spacing_mm.tolist()} mm (z, y, x)"


def _paint(
    volume: Volume, frame: Frame, centre_mm: Vector, reach_mm: np.ndarray, painter: Callable[[Field, Grid], Grid]
) -> None:
    low, high = (centre_mm + reach_mm) / frame.spacing_mm
    region = tuple(slice(max(math.floor(a), 0), max(math.ceil(b) + 1, 0)) for a, b in zip(low, high, strict=True))
    each = zip(frame.shape, region, frame.spacing_mm, centre_mm, strict=True)
    field = Field(np.ix_(*(np.arange(n)[part] * mm - middle for n, part, mm, middle in each)), blur_of(frame.spacing_mm))
    volume[region] = np.rint(painter(field, volume[region].astype(np.float64)))


def _paint_tube(volume: Volume, frame: Frame, centre_mm: Vector, tube: Tube) -> None:
    """Paints a vessel. Its parabola lies in the convex hull of three Bézier points, which bounds the region."""
    reach = tube.along * tube.length_mm
    points = tube.start_mm + np.stack([0 * reach, reach / 2, reach + tube.bend * tube.length_mm**2])
    margin = tube.radius_mm + 3
    _paint(volume, frame, centre_mm, np.stack([points.min(0) - margin, points.max(0) + margin]), partial(paint_tube, tube))


def _place(rng: np.random.Generator, frame: Frame, count: int) -> list[tuple[Phantom, Vector]]:
    """Places nodules that do not touch; juxta-pleural ones a quarter diameter from the lung's surface, off apex and base."""
    semi_mm, least_mm = frame.lung_mm, float(frame.lung_mm.min())
    placed: list[tuple[Phantom, Vector]] = []
    for _ in range(count):
        phantom = draw_phantom(rng, largest_mm=0.8 * least_mm)._replace(wall=None)
        diameter_mm = phantom.diameter_mm
        for _ in range(100):
            centre_mm = LUNG_CENTRES[rng.integers(2)] * frame.edges_mm
            direction = random_directions(rng)
            if phantom.category == "juxta-pleural":
                direction[0] *= 0.5
                direction /= math.sqrt(direction @ direction)
                normal = direction / semi_mm
                centre_mm = centre_mm + semi_mm * direction - 0.25 * diameter_mm * normal / math.sqrt(normal @ normal)
            else:
                inner = 1 - 0.65 * diameter_mm / least_mm
                centre_mm = centre_mm + semi_mm * direction * (inner * np.cbrt(rng.uniform()))
            if all(math.dist(centre_mm, at) - 0.75 * (diameter_mm + other.diameter_mm) > 2 for other, at in placed):
                placed.append((phantom, centre_mm))
                break
        else:
            raise DataError(
                f"a scan must have room for its nodules; got {count} in {frame}: lower nodules_per_scan or enlarge shape"
            )
    return placed


def synthetic_scan(rng: np.random.Generator, frame: Frame, count: int) -> tuple[Volume, list[tuple[Phantom, Vector]]]:
    """A chest scan with `count` nodules: HU, and each nodule with its centre, z, y, x in mm from that of the first voxel.

    Raises:
      DataError: the nodules do not fit.
    """
    nodules, semi_mm = _place(rng, frame, count), frame.lung_mm
    # Air, body and empty lungs, denser towards the back, as in a patient who lies on it.
    z, y, x = np.ix_(*((np.arange(n) + 0.5) / n for n in frame.shape))
    outer = np.where(np.square((y - 0.5) / BODY[0]) + np.square((x - 0.5) / BODY[1]) < 1, SOFT_TISSUE_HU, AIR_HU)
    sides = (np.square((x - centre[2]) / LUNG[2]) for centre in LUNG_CENTRES)
    squared = np.square((y - 0.5) / LUNG[1]) + np.minimum(*sides)
    lung = rng.uniform(-890, -830) + rng.uniform(0, 60) * (y - 0.5)
    softness = float(semi_mm.min() / 2.0)
    volume = np.empty(frame.shape, np.int16)
    for plane, height in zip(volume, np.square((z - 0.5) / LUNG[0]), strict=True):  # a whole scan in float64 takes gigabytes
        cover = np.clip(0.5 - (np.sqrt(squared + height) - 1) * softness, 0, 1)
        plane[:] = np.rint(outer + cover * (lung - outer))
    for _ in range(round(VESSELS_PER_LITRE * 2 * 4 / 3 * math.pi * float(np.prod(semi_mm)) / 1e6)):
        start_mm = LUNG_CENTRES[rng.integers(2)] * frame.edges_mm
        start_mm += semi_mm * random_directions(rng) * (0.8 * np.cbrt(rng.uniform()))
        tube = random_tube(rng, np.zeros(3), random_directions(rng), rng.uniform(10, 50), rng.lognormal(0, 0.4))
        _paint_tube(volume, frame, start_mm, tube)
    for phantom, centre_mm in nodules:
        reach = np.full(3, 1.2 * phantom.diameter_mm + 3)
        alone = phantom._replace(tubes=())
        _paint(volume, frame, centre_mm, np.stack([-reach, reach]), lambda field, hu, alone=alone: paint(alone, field, hu)[0])
        for tube in phantom.tubes:
            _paint_tube(volume, frame, centre_mm, tube)
    # Slices get shifted copies of a few tiles of noise, correlated over two pixels.
    tiles = rng.standard_normal((4, NOISE_EDGE, NOISE_EDGE))
    tiles = (tiles + np.roll(tiles, 1, 1) + np.roll(tiles, 1, 2) + np.roll(tiles, (1, 1), (1, 2))) / 2
    tiles = np.rint(tiles * rng.uniform(15, 35)).astype(np.int16)
    for plane in volume:
        tile, shift = tiles[rng.integers(4)], rng.integers(NOISE_EDGE, size=2)
        plane += tile[np.ix_(*((np.arange(n) - start) % NOISE_EDGE for n, start in zip(plane.shape, shift, strict=True)))]
    np.clip(volume, -1024, 3071, out=volume)
    return volume, nodules


def write_luna16_folder(
    root: Path, scans: int, nodules_per_scan: tuple[int, int], seed: int, frame: Frame, compressed: bool
) -> int:
    """Writes scans as `subset0/<seriesuid>.mhd` with `.raw` or `.zraw` beside them, and `annotations.csv`.

    Scan i goes to subset i modulo 10, and depends on `seed`, i and the frame only. Annotations are the exact centres and the
    diameters that the nodules were drawn with, and have a column `category`, unlike LUNA16's. The number of nodules of a scan
    is uniform between the two. Returns the number of all.

    Source: LUNA16's layout, Setio et al. 2017, doi 10.1016/j.media.2017.06.015.
    """
    if (half_axis_mm := float(frame.lung_mm.min())) < MIN_HALF_AXIS_MM:
        raise DataError(
            f"a lung's shortest half-axis must be at least {MIN_HALF_AXIS_MM:g} mm; got {half_axis_mm:.3g} mm from {frame}: "
            "enlarge either"
        )
    rows: list[list[object]] = []
    with whole_folder(root, "FOLDER") as place:
        for index in range(scans):
            rng = np.random.default_rng([seed, index])
            seriesuid = f"2.25.{int.from_bytes(rng.bytes(15))}"  # DICOM's root for random UIDs
            origin = rng.uniform((-250, -250, -400), (-150, -150, -100))
            volume, nodules = synthetic_scan(rng, frame, int(rng.integers(*nodules_per_scan, endpoint=True)))
            image = sitk.GetImageFromArray(volume)
            image.SetSpacing(frame.spacing_mm[::-1].tolist())
            image.SetOrigin(origin.tolist())
            for phantom, centre_mm in nodules:
                world_mm = image.TransformContinuousIndexToPhysicalPoint((centre_mm / frame.spacing_mm)[::-1].tolist())
                rows.append([seriesuid, *world_mm, phantom.diameter_mm, phantom.category])
            folder = place / f"subset{index % 10}"
            folder.mkdir(exist_ok=True)
            write_image(image, folder / f"{seriesuid}.mhd", compressed)
        with (place / ANNOTATIONS).open("w", newline="") as file:
            csv.writer(file).writerows([["seriesuid", *COLUMNS, "category"], *rows])
    return len(rows)

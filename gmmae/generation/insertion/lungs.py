"""The lungs of a scan, whole or cropped, and distances to the pleura."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import SimpleITK as sitk
from jaxtyping import Bool, Float, Float32, Real
from scipy import ndimage

from gmmae.data.volumes import DataError
from gmmae.generation.insertion.hosts import Annotations, Host, annotated, read_host, rows_in_scan

STEP_MM = 2.5
"""Approximate width of the blocks of voxels on which lungs are found. They take a tenth of the time and average out noise."""

AIR_HU, TISSUE_HU = -960.0, -500.0
"""Limits of lung tissue. Air in trachea, bowels and around the patient lies below, vessels and walls lie above."""

MIN_LUNG_ML = 10.0
CLOSING_MM = 5.0
"""Radius of the closing. Vessels and nodules thinner than twice this radius count as lung."""

MAX_SURROUNDING_AIR = 0.3
"""Maximum share of air around a lung. A mattress and clothes have a lung's density, but lie in air."""

MIN_ANNOTATED = 20
"""Minimum number of annotated nodules for measured distances to the pleura."""

MAX_MEASURED_SCANS = 40
"""Maximum number of annotated scans in which distances are measured. Each takes as long as an insertion."""

AT_PLEURA_MM = 1.0
"""Maximum distance from the pleura of a nodule at the pleura."""


class Lungs(NamedTuple):
    """The lungs on a grid of blocks, and the distance to their surface in mm, negative outside.

    Block b holds the voxels from `b · step` to `(b + 1) · step` along each axis. The end of a scan within a lung is no
    surface.
    """

    inside: Bool[np.ndarray, "c b a"]
    depth_mm: Float32[np.ndarray, "c b a"]
    step: tuple[int, int, int]

    def depth_at(self, index: Real[np.ndarray, "*points 3"]) -> Float[np.ndarray, "*points"]:
        """Returns the distance to the pleura at voxel indices (z, y, x), in mm."""
        blocks = (np.atleast_2d(index) + 0.5) / self.step - 0.5
        depth = ndimage.map_coordinates(self.depth_mm, np.moveaxis(blocks, -1, 0), order=1, mode="nearest")
        return depth.reshape(index.shape[:-1])

    def outward(self, index: Real[np.ndarray, "3"]) -> Float[np.ndarray, "3"]:
        """Returns the direction to the pleura: the negative gradient of the distance, in mm per voxel along z, y, x."""
        ends = np.concatenate([np.eye(3), -np.eye(3)]) * self.step
        depths = self.depth_at(index + ends)
        return (depths[3:] - depths[:3]) / (2 * np.array(self.step))


def find_lungs(host: Host) -> Lungs:
    """Finds the lungs of a scan: large components of lung density within tissue, closed and filled.

    They may touch the scan's border, because a scan may be cropped.
    """
    spacing = host.grid.spacing_mm
    z, y, x = (max(1, min(round(STEP_MM / float(mm)), n)) for mm, n in zip(spacing, host.voxels.shape, strict=True))
    step = (z, y, x)
    blocks_mm = spacing * step
    hu = _block_means(host.voxels, step)
    lung = np.zeros(hu.shape, bool)
    labels = np.empty(hu.shape, np.int32)
    ndimage.label(ndimage.binary_opening((hu > AIR_HU) & (hu < TISSUE_HU), iterations=1), output=labels)
    min_blocks = MIN_LUNG_ML * 1000 / float(np.prod(blocks_mm))
    sizes = np.bincount(labels.ravel(), minlength=int(labels.max()) + 1)
    boxes = ndimage.find_objects(labels)
    for label in np.flatnonzero(sizes[1:] >= min_blocks) + 1:
        box = tuple(slice(max(s.start - 2, 0), min(s.stop + 2, n)) for s, n in zip(boxes[label - 1], hu.shape, strict=True))
        piece = labels[box] == label
        once, twice = (np.asarray(ndimage.binary_dilation(piece, iterations=n), bool) for n in (1, 2))
        shell = twice & ~once
        if not shell.any() or (hu[box][shell] < AIR_HU).mean() < MAX_SURROUNDING_AIR:
            lung[box] |= piece
    lung = _close(lung, blocks_mm)
    return Lungs(lung, signed_distance(lung, blocks_mm).astype(np.float32), step)


def _block_means(voxels: Real[np.ndarray, "z y x"], step: tuple[int, int, int]) -> Float32[np.ndarray, "c b a"]:
    """Returns the mean of each block; incomplete blocks at the ends are left out."""
    counts = [n // s for n, s in zip(voxels.shape, step, strict=True)]
    z, y, x = (slice(n * s) for n, s in zip(counts, step, strict=True))
    folded = voxels[z, y, x].reshape([n for pair in zip(counts, step, strict=True) for n in pair])
    return folded.mean(axis=(1, 3, 5), dtype=np.float32)


def _close(lung: Bool[np.ndarray, "c b a"], blocks_mm: Float[np.ndarray, "3"]) -> Bool[np.ndarray, "c b a"]:
    """Closes the lungs by a ball of `CLOSING_MM` and fills them. The scan's outermost blocks are repeated beyond its ends."""
    if not lung.any():
        return lung
    pad = int(np.ceil(CLOSING_MM / blocks_mm.min())) + 1
    wide = signed_distance(np.pad(lung, pad, mode="edge"), blocks_mm) > -CLOSING_MM
    wide = signed_distance(wide, blocks_mm) > CLOSING_MM
    z, y, x = (slice(pad, -pad) for _ in range(3))
    return np.asarray(ndimage.binary_fill_holes(wide[z, y, x] | lung))


def signed_distance(mask: Bool[np.ndarray, "c b a"], voxel_mm: Float[np.ndarray, "3"]) -> Float[np.ndarray, "c b a"]:
    """Returns the distance in mm to the surface of a mask, negative outside of it. Without a surface it is ±1000 mm.

    The surface runs half a voxel outside of the outermost voxels' centres. ITK is several times as fast as SciPy.

    Source: Maurer, Qi, Raghavan, IEEE Trans. Pattern Anal. Mach. Intell. 25, 2003.
    """
    if mask.all() or not mask.any():
        return np.full(mask.shape, 1000.0 if mask.all() else -1000.0)
    image = sitk.GetImageFromArray(mask.astype(np.uint8))
    image.SetSpacing(voxel_mm[::-1].tolist())
    distance = sitk.SignedMaurerDistanceMap(image, insideIsPositive=True, squaredDistance=False, useImageSpacing=True)
    return sitk.GetArrayFromImage(distance).astype(float) + float(voxel_mm.mean()) / 2


class PleuralDistances(NamedTuple):
    """Distances in mm from the surfaces of free nodules to the pleura, and their source in words.

    They are None if all places in the lung are equally probable.
    """

    free_mm: Float[np.ndarray, " nodules"] | None
    source: str

    def draw(self, rng: np.random.Generator) -> float | None:
        """Draws one of the distances; returns None if there are none."""
        return None if self.free_mm is None else float(rng.choice(self.free_mm))


def measure_pleural_distances(scans: Mapping[str, Path], annotations: Annotations) -> PleuralDistances:
    """Measures the distances of the annotated nodules to the pleura.

    With fewer than `MIN_ANNOTATED` nodules only attached nodules are placed at the pleura, by the tissue at their cubes'
    borders. The others then lie anywhere in the lung with equal probability. Most of its volume is near its surface.
    """
    distances: list[float] = []
    listed = [uid for uid in scans if annotated(annotations.rows.get(uid, []))]
    if sum(len(annotated(annotations.rows[uid])) for uid in listed) >= MIN_ANNOTATED:
        for uid in listed[:MAX_MEASURED_SCANS]:
            try:
                host = read_host(uid, scans[uid])
            except DataError:
                continue  # the insertion reports it later
            lungs = find_lungs(host)
            for centre, diameter in annotated(rows_in_scan(host, annotations.rows[uid])):
                distances.append(float(lungs.depth_at(host.grid.indices(centre))) - diameter / 2)
    free = np.array([distance for distance in distances if distance > AT_PLEURA_MM])
    attached = "nodules with solid tissue at their cube's border at the pleura"
    if len(distances) < MIN_ANNOTATED or not len(free):
        return PleuralDistances(None, f"anywhere in the lung (too few annotated nodules to measure), {attached}")
    median = f"median {np.median(free):.0f} mm for those off the pleura"
    return PleuralDistances(free, f"distances to the pleura of the {len(distances)} annotated nodules ({median}), {attached}")

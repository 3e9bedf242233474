"""The lungs of a scan, whole or cropped, and distances to the pleura."""

from typing import NamedTuple

import numpy as np
import SimpleITK as sitk
from jaxtyping import Float, Float32, Int
from scipy import ndimage

from gmmae.generation.distance import signed_distance
from gmmae.generation.insertion.geometry import Points, Voxels, spacing_mm

STEP_MM = 2.5
"""Width of the blocks on which lungs are found, in a tenth of the time and with less noise than voxels."""

AIR_HU, TISSUE_HU = -960.0, -500.0
"""Limits of lung tissue, between the air in trachea and bowels, and vessels and walls."""

MIN_LUNG_ML = 10.0
CLOSING_MM = 5.0
"""Vessels and nodules thinner than twice this radius count as lung."""

MAX_SURROUNDING_AIR = 0.3
"""A mattress and clothes have a lung's density, but lie in air."""


class Lungs(NamedTuple):
    """Distances to the surface of the lungs in mm, negative outside, on a grid of blocks.

    Block b holds the voxels from `b · step` to `(b + 1) · step` along each axis. A scan that ends in a lung has no surface
    there.
    """

    depth_mm: Float32[np.ndarray, "c b a"]
    step: Int[np.ndarray, "3"]

    def depth_at(self, index: Points) -> Float[np.ndarray, "*points"]:
        """The distance to the pleura at voxel indices (z, y, x), in mm."""
        blocks = (index.reshape(-1, 3) + 0.5) / self.step - 0.5
        return ndimage.map_coordinates(self.depth_mm, blocks.T, order=1, mode="nearest").reshape(index.shape[:-1])


def find_lungs(voxels: Voxels, frame: sitk.Image) -> Lungs:
    """Finds large components of lung density within tissue, closed and filled; they may touch the border of a cropped scan."""
    step = np.clip(np.rint(STEP_MM / spacing_mm(frame)), 1, voxels.shape).astype(int)
    blocks_mm, counts = spacing_mm(frame) * step, voxels.shape // step
    z, y, x = counts * step  # without incomplete blocks
    folded = voxels[:z, :y, :x].reshape(np.stack([counts, step], 1).ravel())
    hu = folded.mean((1, 3, 5), dtype=np.float32)
    lung, labels = np.zeros(hu.shape, bool), np.empty(hu.shape, np.int32)
    ndimage.label(ndimage.binary_opening((hu > AIR_HU) & (hu < TISSUE_HU)), output=labels)
    for label, found in enumerate(ndimage.find_objects(labels), 1):
        box = tuple(slice(max(part.start - 2, 0), part.stop + 2) for part in found)
        piece = labels[box] == label
        if piece.sum() * np.prod(blocks_mm) < MIN_LUNG_ML * 1000:
            continue
        shell = np.not_equal(ndimage.binary_dilation(piece, iterations=2), ndimage.binary_dilation(piece))
        if (hu[box][shell] < AIR_HU).sum() <= MAX_SURROUNDING_AIR * shell.sum():
            lung[box] |= piece
    # The outermost blocks are repeated, so that the closing opens nothing there.
    ball = (
        np.linalg.norm(np.moveaxis(np.mgrid[-3:4, -3:4, -3:4], 0, -1) * blocks_mm, axis=-1) < CLOSING_MM + blocks_mm.min() / 2
    )
    closed = ndimage.binary_closing(np.pad(lung, 3, mode="edge"), ball)[3:-3, 3:-3, 3:-3]
    lung = np.asarray(ndimage.binary_fill_holes(closed | lung))
    return Lungs(signed_distance(lung, blocks_mm).astype(np.float32), step)

"""Indices (z, y, x) and world points (x, y, z in mm) of a scan's voxels.

A scan's geometry is an image of one voxel, its `frame`, as in the extraction of cubes.
"""

import numpy as np
import SimpleITK as sitk
from jaxtyping import Bool, Float, Real

Vector = Float[np.ndarray, "3"]
Points = Real[np.ndarray, "*points 3"]
Volume = Float[np.ndarray, "z y x"]
Voxels = Real[np.ndarray, "z y x"]
Mask = Bool[np.ndarray, "z y x"]


def matrix_mm(frame: sitk.Image) -> Float[np.ndarray, "3 3"]:
    """Returns the steps between voxels along x, y, z in the world, as columns."""
    return np.reshape(frame.GetDirection(), (3, 3)) * frame.GetSpacing()


def spacing_mm(frame: sitk.Image) -> Vector:
    """Returns the voxels' spacing along z, y, x."""
    return np.array(frame.GetSpacing()[::-1])


def to_world(frame: sitk.Image, index: Points) -> Points:
    """Returns the world points of indices."""
    return index[..., ::-1] @ matrix_mm(frame).T + frame.GetOrigin()


def to_index(frame: sitk.Image, world_mm: Points) -> Points:
    """Returns the indices of world points."""
    return ((world_mm - frame.GetOrigin()) @ np.linalg.inv(matrix_mm(frame)).T)[..., ::-1]

"""Indices (z, y, x) and world points (x, y, z in mm) of the voxels of a scan, whose `frame` has its geometry."""

import numpy as np
import SimpleITK as sitk
from jaxtyping import Bool, Float, Real

Vector = Float[np.ndarray, "3"]
Points = Real[np.ndarray, "*points 3"]
Volume = Float[np.ndarray, "z y x"]
Voxels = Real[np.ndarray, "z y x"]
Mask = Bool[np.ndarray, "z y x"]


def matrix_mm(frame: sitk.Image) -> Float[np.ndarray, "3 3"]:
    """The steps between voxels along x, y, z in the world, as columns."""
    return np.reshape(frame.GetDirection(), (3, 3)) * frame.GetSpacing()


def spacing_mm(frame: sitk.Image) -> Vector:
    """The voxels' spacing along z, y, x."""
    return np.array(frame.GetSpacing()[::-1])


def to_world(frame: sitk.Image, index: Points) -> Points:
    """The world points of indices."""
    return index[..., ::-1] @ matrix_mm(frame).T + frame.GetOrigin()


def to_index(frame: sitk.Image, world_mm: Points) -> Points:
    """The indices of world points."""
    return ((world_mm - frame.GetOrigin()) @ np.linalg.inv(matrix_mm(frame)).T)[..., ::-1]

"""Transforms a cube's domain [-1, 1]^n to world millimetres, and writes cubes as files that lie over the scan.

A cube is aligned with the world's axes (`gmmae.data.extraction.cutting`), so along each axis its domain is stretched by half
of its edge and moved to its centre. Points are x, y, z; arrays are z, y, x.
"""

from pathlib import Path

import numpy as np
import SimpleITK as sitk
from jaxtyping import Float, Real

from gmmae.data.volumes import Point
from gmmae.data.writing import write_image

Shape = tuple[int, ...]


def half_edges_mm(shape: Shape, edge_mm: float) -> Float[np.ndarray, " n"]:
    """Returns half the length of a cube along x, y, z, in mm. This is the unit of its domain in the world.

    Args:
      shape: samples along its axes, in array order; they are cubic, so the longest axis has the edge.
      edge_mm: the longest edge.

    >>> half_edges_mm((8, 16, 16), 32.0).tolist()
    [16.0, 16.0, 8.0]
    """
    return np.array(shape[::-1]) * (edge_mm / max(shape) / 2)


def mixture_mm(
    means: Float[np.ndarray, "k n"], covariances: Float[np.ndarray, "k n n"], shape: Shape, centre_mm: Point, edge_mm: float
) -> tuple[Float[np.ndarray, "k n"], Float[np.ndarray, "k n n"]]:
    """Returns the means and covariances of a mixture in the world, mm and mm², from those in a cube's domain."""
    half = half_edges_mm(shape, edge_mm)
    return means * half + np.array(centre_mm[: len(shape)]), covariances * np.outer(half, half)


def section_mm(cut: Shape, ndim: int, centre_mm: Point, edge_mm: float) -> Point:
    """Returns the world centre of `gmmae.data.volumes.central_section`, which is half a voxel off for even edges."""
    centre = list(centre_mm)
    for axis, size in enumerate(cut[: len(cut) - ndim]):
        centre[len(cut) - 1 - axis] += (size // 2 - (size - 1) / 2) * edge_mm / max(cut)
    return (centre[0], centre[1], centre[2])


def write(path: Path, values: Real[np.ndarray, "*volume"], centre_mm: Point, edge_mm: float) -> None:
    """Writes a cube as a file that lies over its scan, in the format of the name's ending.

    Args:
      path: of the file.
      values: of 3 axes or fewer; missing axes get one voxel.
      centre_mm: of the cube.
      edge_mm: of the cube.

    Raises:
      OSError: the file cannot be written whole.
    """
    spacing = edge_mm / max(values.shape)
    volume = values.reshape((1,) * (3 - values.ndim) + values.shape)
    image = sitk.GetImageFromArray(volume)
    image.SetSpacing([spacing] * 3)
    image.SetOrigin([c - (n - 1) / 2 * spacing for c, n in zip(centre_mm, volume.shape[::-1], strict=True)])
    write_image(image, path)

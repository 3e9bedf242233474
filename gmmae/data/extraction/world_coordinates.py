"""Where a cube lies in the world: from its domain [-1, 1]^n to millimetres, and into a file that lies over the scan.

A cube is aligned with the world's axes (`gmmae.data.extraction.geometry`), so along each axis its domain is stretched by half
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
    """Half the length of a cube along x, y, z: what 1 in its domain is in the world.

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
    """Means and covariances of a mixture in a cube's domain, as those of the world, mm and mm²."""
    half = half_edges_mm(shape, edge_mm)
    return means * half + np.array(centre_mm[: len(shape)]), covariances * np.outer(half, half)


def section_mm(cut: Shape, ndim: int, centre_mm: Point, edge_mm: float) -> Point:
    """The centre of a cube's central section (`gmmae.data.volumes.central_section`), half a voxel off where edges are even."""
    centre = list(centre_mm)
    for axis, size in enumerate(cut[: len(cut) - ndim]):
        centre[len(cut) - 1 - axis] += (size // 2 - (size - 1) / 2) * edge_mm / max(cut)
    return (centre[0], centre[1], centre[2])


def write(path: Path, values: Real[np.ndarray, "*volume"], centre_mm: Point, edge_mm: float) -> None:
    """A cube as a file that lies over its scan; NIfTI or any other format of SimpleITK's by the name's ending.

    Args:
      path: where to.
      values: of 3 axes, or fewer, whose others have one voxel then.
      centre_mm, edge_mm: of the cube.

    Raises:
      OSError: the file is not there whole.
    """
    spacing = edge_mm / max(values.shape)
    volume = values.reshape((1,) * (3 - values.ndim) + values.shape)
    image = sitk.GetImageFromArray(volume)
    image.SetSpacing([spacing] * 3)
    image.SetOrigin([c - (n - 1) / 2 * spacing for c, n in zip(centre_mm, volume.shape[::-1], strict=True)])
    write_image(image, path)

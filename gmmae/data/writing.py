"""Images and cubes as files that lie over their scans, and the transforms of a cube's domain [-1, 1]^n to the world.

Along each of the world's axes the domain is stretched by half of the cube's edge and moved to its centre. Points are x, y, z,
mm; arrays are z, y, x.
"""

import errno
from pathlib import Path

import numpy as np
import SimpleITK as sitk
from jaxtyping import Float, Real

from gmmae.data.volumes import Point, error_line

Shape = tuple[int, ...]


def write_image(image: sitk.Image, path: Path, compressed: bool = True) -> None:
    """Writes an image in the format of the path's ending, and raises OSError if it reads back otherwise.

    SimpleITK reports no error on a full disk. Voxels that are not finite are not compared, because ITK reads 0 for them from
    NIfTI.
    """
    try:
        sitk.WriteImage(image, str(path), useCompression=compressed)
        read_back = sitk.ReadImage(str(path))
    except RuntimeError as error:
        raise OSError(errno.EIO, error_line(error), str(path)) from error
    written, read = (sitk.GetArrayViewFromImage(one).ravel() for one in (image, read_back))
    if written.shape != read.shape or np.any((written != read) & np.isfinite(written)):
        raise OSError(errno.EIO, "the file lacks some of its voxels: the disk may be full", str(path))


def mixture_mm(
    means: Float[np.ndarray, "k n"], covariances: Float[np.ndarray, "k n n"], shape: Shape, centre_mm: Point, edge_mm: float
) -> tuple[Float[np.ndarray, "k n"], Float[np.ndarray, "k n n"]]:
    """Means (mm) and covariances (mm²) in the world, from those in a cube's domain."""
    half = np.array(shape[::-1]) * (edge_mm / max(shape) / 2)  # the voxels are cubic
    return means * half + np.array(centre_mm[: len(shape)]), covariances * np.outer(half, half)


def section_mm(cut: Shape, ndim: int, centre_mm: Point, edge_mm: float) -> Point:
    """The world centre of `gmmae.data.volumes.central_section`, which is half a voxel off for even edges."""
    centre = list(centre_mm)
    for axis, size in enumerate(cut[: len(cut) - ndim]):
        centre[len(cut) - 1 - axis] += (size // 2 - (size - 1) / 2) * edge_mm / max(cut)
    return (centre[0], centre[1], centre[2])


def write(path: Path, values: Real[np.ndarray, "*volume"], centre_mm: Point, edge_mm: float) -> None:
    """Writes a cube as a file that lies over its scan, in the format of the name's ending; missing axes get one voxel."""
    spacing = edge_mm / max(values.shape)
    image = sitk.GetImageFromArray(values[(None,) * (3 - values.ndim)])
    image.SetSpacing([spacing] * 3)
    image.SetOrigin((centre_mm - (np.array(image.GetSize()) - 1) / 2 * spacing).tolist())
    write_image(image, path)

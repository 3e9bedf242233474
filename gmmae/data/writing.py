"""Writes images and checks them. SimpleITK reports no error on a full disk, and leaves files of 0 bytes."""

import errno
from pathlib import Path

import numpy as np
import SimpleITK as sitk


def write_image(image: sitk.Image, path: Path, compressed: bool = True) -> None:
    """Writes an image in the format that the path's ending names, and reads it back.

    Voxels that are not finite are not compared: ITK reads 0 for them from NIfTI.

    Raises:
      OSError: it cannot be written, or reads back otherwise.
    """
    try:
        sitk.WriteImage(image, str(path), useCompression=compressed)
        read_back = sitk.ReadImage(str(path))
    except RuntimeError as error:
        raise OSError(errno.EIO, " ".join(str(error).split()), str(path)) from error
    written, read = (sitk.GetArrayViewFromImage(one).ravel() for one in (image, read_back))
    if written.shape != read.shape or np.any((written != read) & np.isfinite(written)):
        raise OSError(errno.EIO, "the file lacks some of its voxels: the disk may be full", str(path))

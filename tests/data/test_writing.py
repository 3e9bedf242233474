"""Images that are there whole, which SimpleITK does not tell; and cubes at their places in the world."""

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data import writing
from gmmae.data.extraction.extract import cut
from gmmae.data.extraction.scan import read
from gmmae.data.volumes import central_section
from gmmae.system.errors import StorageError
from gmmae.system.files import whole_folder
from tests.volume_folders import Grid, write_image

VALUES = np.random.default_rng(0).integers(-1000, 400, (1, 6, 8)).astype(np.int16)
CENTRE = (-40.0, 25.0, 90.0)
really = sitk.WriteImage


def cut_short(image, name, useCompression):
    """Writes half a file, as SimpleITK does on a full disk without an error."""
    really(image, name, useCompression=useCompression)
    with open(name, "r+b") as file:
        file.truncate(0 if name.endswith(".gz") else 400)


def test_an_image_is_written_in_each_format(tmp_path):
    for name in ("a.nii.gz", "a.nii", "a.mha", "a.mhd"):
        writing.write_image(sitk.GetImageFromArray(np.full((2, 3, 4), np.nan)), tmp_path / name)
        assert sitk.ReadImage(tmp_path / name).GetSize() == (4, 3, 2)


@pytest.mark.parametrize("name", ["a.nii.gz", "a.nii", "a.mha", "missing/a.nii"])
def test_an_image_that_is_not_whole_is_a_failure_of_storage(tmp_path, name, monkeypatch):
    monkeypatch.setattr(writing.sitk, "WriteImage", cut_short)
    with pytest.raises(StorageError, match="--out must stay a folder"), whole_folder(tmp_path / "out") as place:
        writing.write_image(sitk.GetImageFromArray(VALUES), place / name)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def ramp(tmp_path_factory):
    """A scan whose values are `x + 3 y + 10 z` mm, so that a voxel's value says where it is."""
    path = tmp_path_factory.mktemp("ramp") / "ramp.nii.gz"
    grid = Grid((40, 50, 60), (1.0, 1.0, 1.0), (-70.0, 0.0, 70.0))
    write_image(path, grid.at(np.moveaxis(np.indices(grid.shape)[::-1], 0, -1)) @ [1, 3, 10], grid)
    return path


@pytest.mark.parametrize("shape", [(8, 8, 8), (8, 12, 6)])
@pytest.mark.parametrize("ndim", [3, 2, 1])
def test_what_is_written_lies_where_it_was_cut(ramp, tmp_path, shape, ndim):
    values, _ = cut(read(ramp), CENTRE, 18.0, shape, None, hu=False)
    section = central_section(values[None], ndim)[0]
    centre = writing.section_mm(shape, ndim, CENTRE, 18.0)
    # A section may have lost the longest axis, whose voxels it keeps.
    writing.write(tmp_path / "cut.nii.gz", section, centre, 18.0 * max(section.shape) / max(shape))
    image = sitk.ReadImage(tmp_path / "cut.nii.gz")
    x, y, z = image.GetSize()
    assert (z, y, x)[3 - ndim :] == section.shape
    for index in [(0, 0, 0), (x - 1, y - 1, z - 1), (x // 2, 0, z - 1)]:
        there = np.dot(image.TransformIndexToPhysicalPoint(index), [1, 3, 10])
        assert image[index] == pytest.approx(there, abs=1e-3)  # float32


def test_a_mixture_is_stretched_by_half_the_edge_of_each_axis():
    """A cube of 8, 12 and 6 voxels along z, y and x, whose longest edge is 24 mm: half edges of 6, 12 and 8 mm."""
    means, covariances = np.array([[1.0, -1.0, 0.5]]), np.array([[[1.0, 0.2, 0], [0.2, 1, -0.5], [0, -0.5, 1]]])
    moved, stretched = writing.mixture_mm(means, covariances, (8, 12, 6), CENTRE, 24.0)
    np.testing.assert_allclose(moved, [[-40 + 6, 25 - 12, 90 + 4]])
    np.testing.assert_allclose(stretched, [[[36, 0.2 * 72, 0], [0.2 * 72, 144, -0.5 * 96], [0, -0.5 * 96, 64]]])

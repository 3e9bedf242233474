"""Images that are there whole: SimpleITK does not tell where they are not."""

import errno

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data import writing
from gmmae.data.extraction.scan import read
from gmmae.data.writing import write_image
from gmmae.system.errors import StorageError
from gmmae.system.files import whole_folder

VALUES = np.random.default_rng(0).integers(-1000, 400, (1, 6, 8)).astype(np.int16)


def cut_short(image, name, useCompression):
    """Writes half a file, as SimpleITK does on a full disk without an error."""
    really(image, name, useCompression=useCompression)
    with open(name, "r+b") as file:
        file.truncate(0 if name.endswith(".gz") else 400)


really = sitk.WriteImage


@pytest.mark.parametrize("name", ["a.nii.gz", "a.nii", "a.mha", "a.mhd"])
@pytest.mark.parametrize("values", [VALUES, np.full((2, 3, 4), np.nan, np.float32)], ids=["int16", "NaN"])
def test_an_image_is_read_back_as_it_was(tmp_path, name, values):
    write_image(sitk.GetImageFromArray(values), tmp_path / name)
    np.testing.assert_array_equal(read(tmp_path / name).voxels.ravel(), values.ravel())


@pytest.mark.parametrize("name", ["a.nii.gz", "a.nii", "a.mha"])
def test_an_image_that_is_cut_short_is_a_failure_of_storage(tmp_path, name, monkeypatch):
    monkeypatch.setattr(writing.sitk, "WriteImage", cut_short)
    with (
        pytest.raises(StorageError, match="--out must stay a folder that can be written"),
        whole_folder(tmp_path / "out") as place,
    ):
        write_image(sitk.GetImageFromArray(VALUES), place / name)
    assert list(tmp_path.iterdir()) == []


def test_an_image_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(OSError, match=r"^\[Errno 5\] .*") as caught:
        write_image(sitk.GetImageFromArray(VALUES), tmp_path / "missing" / "a.nii.gz")
    assert caught.value.errno == errno.EIO
    assert "\n" not in str(caught.value)

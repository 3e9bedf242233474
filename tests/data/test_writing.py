"""Images that are there whole: SimpleITK does not tell where they are not."""

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data import writing
from gmmae.system.errors import StorageError
from gmmae.system.files import whole_folder

VALUES = np.random.default_rng(0).integers(-1000, 400, (1, 6, 8)).astype(np.int16)
really = sitk.WriteImage


def cut_short(image, name, useCompression):
    """Writes half a file, as SimpleITK does on a full disk without an error."""
    really(image, name, useCompression=useCompression)
    with open(name, "r+b") as file:
        file.truncate(0 if name.endswith(".gz") else 400)


@pytest.mark.parametrize("values", [VALUES, np.full((2, 3, 4), np.nan, np.float32)], ids=["int16", "NaN"])
def test_an_image_is_written_in_each_format(tmp_path, values):
    for name in ("a.nii.gz", "a.nii", "a.mha", "a.mhd"):
        writing.write_image(sitk.GetImageFromArray(values), tmp_path / name)
        assert sitk.ReadImage(tmp_path / name).GetSize() == values.shape[::-1]


@pytest.mark.parametrize("name", ["a.nii.gz", "a.nii", "a.mha", "missing/a.nii"])
def test_an_image_that_is_not_whole_is_a_failure_of_storage(tmp_path, name, monkeypatch):
    monkeypatch.setattr(writing.sitk, "WriteImage", cut_short)
    with pytest.raises(StorageError, match="--out must stay a folder"), whole_folder(tmp_path / "out") as place:
        writing.write_image(sitk.GetImageFromArray(VALUES), place / name)
    assert list(tmp_path.iterdir()) == []

"""Headers that ITK reads otherwise than they say, or repairs without a word: one line each."""

import struct
from fnmatch import fnmatch

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data.extraction.scan import read
from gmmae.data.volumes import DataError
from tests import volume_folders as folders

VOXELS = folders.case(0).values


def written(path, values=VOXELS):
    sitk.WriteImage(folders.image(values), str(path))
    return path


def refusal(path):
    """The line with which a volume is refused."""
    with pytest.raises(DataError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


META = [
    ("ElementSpacing", "0 1 1", "between 0.05 and 20 mm; * 0 1 1"),
    ("ElementSpacing", "-1 1 1", "between 0.05 and 20 mm; * -1 1 1"),
    ("ElementSpacing", "1e30 1 1", "between 0.05 and 20 mm; * 1e+30 1 1"),
    ("ElementSpacing", "nan 1 1", "ElementSpacing * 3 finite numbers; * nan 1 1"),
    ("ElementSpacing", "1_0 1 1", "ElementSpacing * 3 finite numbers; * 1_0 1 1"),  # a number to Python only
    ("Offset", "-10,5 0,0 3,5", "Offset * 3 finite numbers; * -10,5 0,0 3,5"),
    ("Offset", "left top 0", "Offset * 3 finite numbers; * left top 0"),
    ("DimSize", "16 16", "DimSize * 3 finite numbers; * 16 16"),
    ("DimSize", "0 16 5", "must have a voxel; * 0 × 16 × 5"),
    ("TransformMatrix", "1 0 0 1", "TransformMatrix * 9 finite numbers; * 1 0 0 1"),
    ("TransformMatrix", "1 0.5 0 0 1 0 0 0 1", "axes must be at right angles*"),
    ("TransformMatrix", "2 0 0 0 2 0 0 0 2", "axes must be at right angles*"),
    ("Position", "-21 12 -150", "Offset, Position, Origin, or equal ones*"),
    ("ElementSpacing", "0.0007 0.0007 0.001", "between 0.05 and 20 mm; * 0.0007 0.0007 0.001"),
    ("BinaryData", "False", "BinaryData * must be True*; * False"),
    ("ElementToIntensityFunctionOffset", "-1024", "ElementToIntensityFunctionOffset * must be 0*; * -1024"),
]


@pytest.mark.parametrize(("field", "value", "message"), META)
def test_a_metaimage(tmp_path, field, value, message):
    path = written(tmp_path / "a.mhd")
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{field} =")]
    path.write_text("\n".join([*lines[:-1], f"{field} = {value}", lines[-1]]) + "\n")
    assert fnmatch(refusal(path), f"*{message}")


def test_a_metaimage_must_say_its_spacing(tmp_path):
    path = written(tmp_path / "a.mhd")
    text = path.read_text()
    path.write_text(text.replace("ElementSpacing =", "ElementSize ="))  # which ITK takes for it
    assert read(path).spacing_mm == folders.SPACING
    path.write_text("".join(line for line in text.splitlines(True) if "ElementSpacing" not in line))
    assert "ElementSpacing in the header must give the spacing in mm" in refusal(path)


NIFTI = [
    ("<f", 80, (0.0,), "spacing * must be positive and finite; pixdim * 0 0.8 2"),
    ("<f", 80, (-1.0,), "spacing * must be positive and finite; pixdim * -1 0.8 2"),
    ("<f", 84, (np.nan,), "spacing * must be positive and finite; pixdim * 0.7 nan 2"),
    ("<f", 80, (1.4,), "must have one spacing; pixdim * 1.4 0.8 2, * sform matrix 0.7 0.8 2"),
    ("<f", 268, (30.0,), "qform and sform * must be one geometry; they differ by 10 mm*"),
    ("<f", 256, (0.5,), "qform and sform * must be one geometry*"),
    ("<h", 46, (0,), "dim * 1 to 7 axes *; * 3 16 16 0 *"),
    ("<h", 40, (0,), "dim * 1 to 7 axes *; * 0 16 16 5 *"),
    ("<f", 108, (340.0,), "must begin at byte 352 or later; vox_offset * 340"),
    ("<f", 108, (np.nan,), "must begin at byte 352 or later; vox_offset * nan"),
    ("<h", 70, (16384,), "voxels must be numbers; datatype * 16384"),
    ("<i4s", 0, (540, b"n+2\0"), "must be of version 1; *"),
    ("4s", 344, (b"ni1\0",), "header and voxels in one piece; * b'ni1'"),
    *[
        ("<2f", 112, (slope, add), f"scl_slope and scl_inter * must be finite*; * {slope:g} and {add:g}")
        for slope, add in ((np.inf, 0), (0, -1024), (np.nan, -1024), (2, np.nan), (1, np.inf))
    ],
]


@pytest.mark.parametrize(("layout", "offset", "values", "message"), NIFTI)
def test_a_nifti(tmp_path, layout, offset, values, message):
    path = written(tmp_path / "a.nii")
    folders.patch(path, layout, offset, *values)
    assert fnmatch(refusal(path), f"*{message}")


@pytest.mark.parametrize(
    ("slope", "add", "factor", "shift"), [(0, 0, 1, 0), (np.nan, 0, 1, 0), (np.nan, np.nan, 1, 0), (2, -10, 2, -10)]
)
def test_a_scaling_that_all_readers_agree_on_is_read(tmp_path, slope, add, factor, shift):
    path = written(tmp_path / "a.nii")
    folders.patch(path, "<2f", 112, slope, add)
    np.testing.assert_array_equal(read(path).voxels, factor * VOXELS + shift)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_nan_of_nifti_is_found_where_it_is(tmp_path, order, kind):
    """ITK reads 0 there, in both byte orders."""
    values = VOXELS.astype(kind)
    values[3, 2, 1], values[4, 5, 6] = np.nan, -np.inf
    path = written(tmp_path / "a.nii", values)
    if order == ">":
        header = bytearray(path.read_bytes()[:352])
        for form, at in (("i", 0), ("8h", 40), ("2h", 70), ("8f", 76), ("3f", 108), ("2h", 252), ("6f", 256), ("12f", 280)):
            struct.pack_into(f">{form}", header, at, *struct.unpack_from(f"<{form}", header, at))
        path.write_bytes(bytes(header) + values.astype(values.dtype.newbyteorder(">")).tobytes())
    np.testing.assert_array_equal(read(path).voxels, values)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("space units", '"um" "um" "um"', "space units in the header must be mm; got um"),
        ("space directions", "(1,0.5,0) (0,1,0) (0,0,1)", "axes must be at right angles"),
        ("space directions", "(0,0,0) (0,1,0) (0,0,1)", "spacing, origin and direction in the header must be"),
    ],
)
def test_an_nrrd(tmp_path, field, value, message):
    path = written(tmp_path / "a.nrrd")
    header, _, voxels = path.read_bytes().partition(b"\n\n")
    lines = [line for line in header.decode().splitlines() if not line.startswith(f"{field}:")]
    path.write_bytes("\n".join([*lines, f"{field}: {value}"]).encode() + b"\n\n" + voxels)
    assert message in refusal(path)

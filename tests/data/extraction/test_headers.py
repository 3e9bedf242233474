"""Headers that ITK reads otherwise than they say, or repairs without a word: one line each."""

import struct

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data.extraction.scans import open_scan
from gmmae.data.volumes import DataError
from tests import volume_folders as folders

VOXELS = folders.case(0).values


def written(path, values=VOXELS):
    sitk.WriteImage(folders.image(values), str(path))
    return path


def refusal(path):
    """The line with which a volume is refused, when it is opened or when it is read."""
    with pytest.raises(DataError) as caught:
        open_scan(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


META = {
    "a spacing of 0": ("ElementSpacing", "0 1 1", "the spacing must be between 1e-06 and 1e+06 mm; it is 0 1 1"),
    "a negative spacing": ("ElementSpacing", "-1 1 1", "the spacing must be between 1e-06 and 1e+06 mm; it is -1 1 1"),
    "a spacing of no length": ("ElementSpacing", "1e30 1 1", "the spacing must be between 1e-06 and 1e+06 mm; it is 1e+30 1 1"),
    "no number": ("ElementSpacing", "nan 1 1", "ElementSpacing in the header must be 3 finite numbers; got nan 1 1"),
    "decimal commas": ("Offset", "-10,5 0,0 3,5", "Offset in the header must be 3 finite numbers; got -10,5 0,0 3,5"),
    "words": ("Offset", "left top 0", "Offset in the header must be 3 finite numbers; got left top 0"),
    "a number that only Python knows": (
        "ElementSpacing",
        "1_0 1 1",
        "ElementSpacing in the header must be 3 finite numbers; got 1_0 1 1",
    ),
    "too few numbers": ("DimSize", "16 16", "DimSize in the header must be 3 finite numbers; got 16 16"),
    "a matrix too small": ("TransformMatrix", "1 0 0 1", "TransformMatrix in the header must be 9 finite numbers; got 1 0 0 1"),
    "no volume": ("DimSize", "0 16 5", "a volume must have a voxel; its size is 0 × 16 × 5"),
    "skewed axes": (
        "TransformMatrix",
        "1 0.5 0 0 1 0 0 0 1",
        "the axes must be at right angles, and the direction of unit vectors",
    ),
    "long axes": (
        "TransformMatrix",
        "2 0 0 0 2 0 0 0 2",
        "the axes must be at right angles, and the direction of unit vectors",
    ),
    "text": ("BinaryData", "False", "the voxels must be binary; BinaryData in the header is False"),
    "an offset of values": (
        "ElementToIntensityFunctionOffset",
        "-1024",
        "ElementToIntensityFunctionOffset in the header must be 0, because it is not applied; got -1024",
    ),
}


@pytest.mark.parametrize(("field", "value", "message"), META.values(), ids=META)
def test_a_metaimage(tmp_path, field, value, message):
    path = written(tmp_path / "a.mhd")
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{field} =")]
    path.write_text("\n".join([*lines[:-1], f"{field} = {value}", lines[-1]]) + "\n")
    assert refusal(path).startswith(message)


def test_a_metaimage_must_say_its_spacing(tmp_path):
    path = written(tmp_path / "a.mhd")
    text = path.read_text()
    path.write_text(text.replace("ElementSpacing =", "ElementSize ="))  # which ITK takes for it
    assert open_scan(path).frame.GetSpacing() == folders.SPACING
    path.write_text("".join(line for line in text.splitlines(True) if "ElementSpacing" not in line))
    assert refusal(path) == "ElementSpacing in the header must give the spacing in mm; got none, which ITK takes for 1 mm"


NIFTI = {
    "a spacing of 0": ("<f", 80, (0.0,), "the spacing in the header must be positive and finite; pixdim is 0 0.8 2"),
    "a negative spacing": ("<f", 80, (-1.0,), "the spacing in the header must be positive and finite; pixdim is -1 0.8 2"),
    "a spacing of NaN": ("<f", 84, (np.nan,), "the spacing in the header must be positive and finite; pixdim is 0.7 nan 2"),
    "two spacings": ("<f", 80, (1.4,), "the header must have one spacing; pixdim says 1.4 0.8 2, the sform matrix 0.7 0.8 2"),
    "no slice": ("<h", 46, (0,), "dim in the header must be 1 to 7 axes and their positive lengths; got 3 16 16 0"),
    "no axes": ("<h", 40, (0,), "dim in the header must be 1 to 7 axes and their positive lengths; got 0 16 16 5"),
    "voxels in the header": (
        "<f",
        108,
        (340.0,),
        "the voxels must begin at byte 352 or later; vox_offset in the header is 340",
    ),
    "voxels nowhere": ("<f", 108, (np.nan,), "the voxels must begin at byte 352 or later; vox_offset in the header is nan"),
    "half numbers": ("<h", 70, (16384,), "voxels must be numbers; datatype in the header is 16384"),
    "version 2": ("<i4s", 0, (540, b"n+2\0"), "a NIfTI file must be of version 1; this one is of version 2"),
    "two files": (
        "4s",
        344,
        (b"ni1\0",),
        "a NIfTI file must hold header and voxels in one piece; its magic word is b'ni1\\x00'",
    ),
    **{
        f"slope {slope}, intercept {add}": (
            "<2f",
            112,
            (slope, add),
            f"scl_slope and scl_inter in the header must be finite, and the slope not 0; got {slope:g} and {add:g}",
        )
        for slope, add in ((np.inf, 0), (0, -1024), (np.nan, -1024), (2, np.nan), (1, np.inf))
    },
}


@pytest.mark.parametrize(("layout", "offset", "values", "message"), NIFTI.values(), ids=NIFTI)
def test_a_nifti(tmp_path, layout, offset, values, message):
    path = written(tmp_path / "a.nii")
    folders.patch(path, layout, offset, *values)
    assert refusal(path).startswith(message)


@pytest.mark.parametrize(
    ("slope", "add", "factor", "shift"), [(0, 0, 1, 0), (np.nan, 0, 1, 0), (np.nan, np.nan, 1, 0), (2, -10, 2, -10)]
)
def test_a_scaling_that_all_readers_agree_on_is_read(tmp_path, slope, add, factor, shift):
    path = written(tmp_path / "a.nii")
    folders.patch(path, "<2f", 112, slope, add)
    volume = open_scan(path)
    found = sitk.GetArrayFromImage(volume.read((0, 0, 0), volume.size))
    np.testing.assert_array_equal(found, factor * VOXELS + shift)


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
    volume = open_scan(path)
    found = sitk.GetArrayFromImage(volume.read((0, 0, 0), volume.size))
    np.testing.assert_array_equal(np.isnan(found), ~np.isfinite(values))
    np.testing.assert_array_equal(found[np.isfinite(values)], values[np.isfinite(values)])
    part = sitk.GetArrayFromImage(volume.read((1, 1, 2), (4, 4, 2)))
    np.testing.assert_array_equal(np.argwhere(np.isnan(part)), [[1, 1, 0]])


NRRD = {
    "micrometres": ("space units", '"um" "um" "um"', "space units in the header must be mm; got um: save the volume in mm"),
    "skewed axes": ("space directions", "(1,0.5,0) (0,1,0) (0,0,1)", "the axes must be at right angles"),
    "an axis of no length": (
        "space directions",
        "(0,0,0) (0,1,0) (0,0,1)",
        "spacing, origin and direction in the header must be",
    ),
}


@pytest.mark.parametrize(("field", "value", "message"), NRRD.values(), ids=NRRD)
def test_an_nrrd(tmp_path, field, value, message):
    path = written(tmp_path / "a.nrrd")
    header, _, voxels = path.read_bytes().partition(b"\n\n")
    lines = [line for line in header.decode().splitlines() if not line.startswith(f"{field}:")]
    path.write_bytes("\n".join([*lines, f"{field}: {value}"]).encode() + b"\n\n" + voxels)
    assert refusal(path).startswith(message)

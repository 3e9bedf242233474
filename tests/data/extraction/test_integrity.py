import gzip
import os
import struct

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data.extraction.arrays import CHUNK_BYTES
from gmmae.data.extraction.scan import of_array, read
from gmmae.data.volumes import DataError
from tests import volume_folders as folders

VOXELS = np.random.default_rng(0).integers(-1000, 400, (20, 60, 50)).astype(np.int16)
BYTES = VOXELS.nbytes


@pytest.fixture
def write(tmp_path):
    def make(name, compressed, voxels=VOXELS):
        image = sitk.GetImageFromArray(voxels)
        image.SetSpacing((0.7, 0.7, 1.25))
        sitk.WriteImage(image, str(tmp_path / name), compressed)
        return tmp_path / name

    return make


RAW = {"scan.mhd": "scan.raw", **{name: name for name in ("local.mha", "scan.nii", "scan.nrrd")}}
PACKED = {"packed.mhd": "packed.zraw", **{name: name for name in ("packed.mha", "scan.nii.gz", "packed.nrrd")}}
FORMATS = {**RAW, **PACKED}
"""Files, and those with their voxels."""


@pytest.mark.parametrize("name", FORMATS)
def test_sound_files_are_read(write, name):
    np.testing.assert_array_equal(read(write(name, name in PACKED)).voxels, VOXELS)


@pytest.mark.parametrize("name", FORMATS)
def test_a_truncated_file_is_called_that_with_both_lengths(write, name):
    path, data = write(name, name in PACKED), FORMATS[name]
    os.truncate(path.parent / data, (path.parent / data).stat().st_size // 2)
    with pytest.raises(DataError, match=rf"truncated \.\w+.*{data} .*\d"):
        read(path)


@pytest.mark.parametrize("name", FORMATS)
def test_a_header_that_promises_less_than_there_is_is_refused(write, name):
    """It would give a part of the volume, such as every slice but the last."""
    path, data = write(name, name in PACKED), FORMATS[name]
    more = write(f"more_{name}", name in PACKED, np.concatenate([VOXELS, VOXELS[:1]]))
    if data == name:
        packed = path.suffix == ".gz"
        content = bytearray(gzip.decompress(more.read_bytes()) if packed else more.read_bytes())
        if ".nii" in name:
            struct.pack_into("<h", content, 46, len(VOXELS))
        else:
            content = content.replace(b"50 60 21", b"50 60 20")
        path.write_bytes(gzip.compress(content) if packed else content)
    else:
        (path.parent / data).write_bytes((path.parent / f"more_{data}").read_bytes())
        path.write_text("".join(line for line in path.read_text().splitlines(True) if "CompressedDataSize" not in line))
    with pytest.raises(DataError, match=r"must hold the \d+ bytes .* (has|decompresses to) \d+$"):
        read(path)


def test_one_missing_byte_is_noticed(write):
    path = write("scan.mhd", False)
    os.truncate(path.with_suffix(".raw"), BYTES - 1)
    with pytest.raises(DataError, match=rf"truncated .raw: .* {BYTES} bytes .*scan.raw has {BYTES - 1}"):
        read(path)


def test_a_truncated_zraw_without_a_compressed_size_says_what_it_decompresses_to(write):
    path = write("packed.mhd", True)
    lines = [line for line in path.read_text().splitlines(True) if "CompressedDataSize" not in line]
    path.write_text("".join(lines))
    assert read(path).size == (50, 60, 20)
    data = path.with_suffix(".zraw")
    os.truncate(data, data.stat().st_size // 2)
    with pytest.raises(DataError, match=r"truncated .zraw: packed.zraw .*after \d+ bytes"):
        read(path)


@pytest.mark.parametrize("name", PACKED)
def test_damage_that_itk_reads_over_is_noticed(write, name):
    data = write(name, True).parent / PACKED[name]
    content = bytearray(data.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 20] = bytes(20)
    data.write_bytes(content)
    with pytest.raises(DataError, match=rf"(damaged|truncated) \.[\w.]+: .*{data.name}"):
        read(data.parent / name)


def test_a_stream_longer_than_a_chunk_and_highly_compressible_is_sound(write):
    voxels = np.zeros((4, 600, 600), np.int16)
    assert voxels.nbytes > 2 * CHUNK_BYTES
    assert read(write("zeros.mhd", True, voxels)).size == (600, 600, 4)


def test_gzip_in_several_members_is_sound(write):
    path = write("scan.nii", False)
    content = path.read_bytes()
    packed = path.with_suffix(".nii.gz")
    packed.write_bytes(gzip.compress(content[:1000]) + gzip.compress(content[1000:]))
    assert read(packed).size == (50, 60, 20)


def test_nifti_that_rescales_is_measured_by_its_type_on_disk(write):
    path = write("scan.nii", False)
    folders.patch(path, "<ff", 112, 2.0, -5.0)  # scl_slope, scl_inter
    np.testing.assert_allclose(read(path).voxels, 2.0 * VOXELS - 5.0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("scan.raw", "gone.raw", "no data: gone.raw"),
        ("scan.raw", "../scan.raw", "beside the header; ElementDataFile is '../scan.raw'"),
        ("scan.raw", "/etc/hostname", "beside the header"),
        ("ElementDataFile = scan.raw", "", "no ElementDataFile"),
        ("DimSize = 50 60 20", "DimSize = 50 60 -20", "truncated .raw"),
        ("DimSize = 50 60 20", "DimSize = 50000 60000 20000", "truncated .raw: .* 120000000000000 bytes"),
        ("Matrix = 1 0 0 0 1 0 0 0 1", "Matrix = 0 0 0 0 0 0 0 0 0", "right angles"),
    ],
)
def test_what_is_wrong_with_a_header_is_said(write, old, new, message):
    path = write("scan.mhd", False)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match=message) as error:
        read(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "image", "message"),
    [
        ("colour.mhd", sitk.Image([4, 4, 4], sitk.sitkVectorUInt8, 3), "3 axes and 3 values a voxel"),
        ("image.nii.gz", sitk.Image([4, 4], sitk.sitkUInt8), "2 axes and 1 values a voxel"),
        ("image.nrrd", sitk.Image([4, 4], sitk.sitkUInt8), "2 axes and 1 values a voxel"),
        ("film.mhd", sitk.Image([4, 4, 4, 4], sitk.sitkUInt8), "3 finite numbers"),
    ],
)
def test_colour_images_and_films_are_refused(tmp_path, name, image, message):
    sitk.WriteImage(image, str(tmp_path / name))
    with pytest.raises(DataError, match=message):
        read(tmp_path / name)


def test_other_files_are_no_volumes(tmp_path):
    with pytest.raises(DataError, match=r"there is no such file"):
        read(tmp_path / "gone.mhd")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match=r"must end in \.mhd, \.mha, \.nii, \.nii\.gz, \.nrrd"):
        read(tmp_path / "notes.txt")
    for name in ("empty.nii", "empty.nrrd", "empty.mhd", "empty.nii.gz"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(DataError, match=r"header|truncated"):
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("voxels", "message"),
    [(np.zeros((4,) * 4), r"axes z, y, x, .* \(4, 4, 4, 4\)"), (np.full((2, 2, 2), "a"), "must be numbers")],
)
def test_arrays_that_are_no_volume(voxels, message):
    with pytest.raises(DataError, match=message):
        of_array(voxels)

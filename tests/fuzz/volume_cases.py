"""Damaged and odd volumes and masks: what the files of the nodule n2 hold, and on which grid."""

import gzip
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from tests.fuzz import nifti
from tests.fuzz.cases import (
    Case,
    Change,
    Expect,
    Reading,
    Row,
    left_out,
    on,
    readers,
    reads,
    reads_or_leaves_out,
    reads_or_refused,
    refused,
)
from tests.fuzz.changes import (
    both,
    cell,
    content,
    gone,
    image,
    instead,
    linked,
    moved,
    rows_changed,
    stored,
    voxels,
    with_image,
    without_row,
)
from tests.fuzz.folders import GRID, NODULES, OFFSET_MM, Grid, hu, write_image

NAME = "n2.nii.gz"
IMAGE, MASK = f"images/{NAME}", f"masks/{NAME}"
NODULE = NODULES[2]
BALL = NODULE.ball()
GONE = without_row()
LOST = left_out(GONE, NAME)
PERHAPS = reads_or_leaves_out(GONE, NAME)
NEARLY = replace(PERHAPS, near=True)


def damaged(name: str) -> Iterator[Row]:
    """Files that hold no volume, or that another reader might not read."""
    lost: dict[str, Change] = {
        "cut in the middle": stored(name, lambda data: data[: len(data) // 2]),
        "cut behind the header": stored(name, lambda data: gzip.compress(gzip.decompress(data)[:352])),
        "cut by a voxel": stored(name, lambda data: gzip.compress(gzip.decompress(data)[:-2])),
        "a byte changed": stored(name, _flipped),
        "a wrong checksum": stored(name, lambda data: data[:-8] + b"\1\2\3\4" + data[-4:]),
        "0 bytes": content(name, ""),
        "text": content(name, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"),
        "compressed text": content(name, gzip.compress(b"<html>404 Not Found</html>" * 40)),
        "zeros": content(name, bytes(4096)),
        "a folder": instead(name, Path.mkdir),
    }
    for what, change in lost.items():
        yield what, change, LOST
    yield "not compressed", stored(name, gzip.decompress), PERHAPS
    yield "garbage at the end", stored(name, lambda data: data + b"garbage"), PERHAPS
    yield "two compressed parts", stored(name, _in_two), reads()
    yield "a link to the volume", linked(name, "elsewhere.nii.gz"), reads()


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :]


def _in_two(data: bytes) -> bytes:
    plain = gzip.decompress(data)
    return gzip.compress(plain[:700]) + gzip.compress(plain[700:])


def _missing() -> Iterator[Row]:
    for name, make in {
        "missing": lambda _: None,
        "a link to itself": lambda path: path.symlink_to(path),
        "a link to nothing": lambda path: path.symlink_to("nowhere"),
        "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
        "a pipe": os.mkfifo,
    }.items():
        yield name, instead(IMAGE, make), LOST


def _headers() -> Iterator[Row]:
    def fields(**values: object) -> Change:
        return nifti.changed(IMAGE, lambda header: nifti.set_fields(header, values))

    for name, values in {
        "header with voxels without end": {"dim": [3, 32767, 32767, 32767, 1, 1, 1, 1]},
        "header with a negative size": {"dim_1": -14},
        "header with a size of 0": {"dim_3": 0},
        "header with half of the slices": {"dim_3": 5},
        "header with 9 axes": {"dim_0": 9},
        "header with an unknown type": {"datatype": 9999},
        "header with voxels at NaN": {"vox_offset": np.nan},
        "header with voxels at infinity": {"vox_offset": np.inf},
        "header with voxels far off": {"vox_offset": 1e9},
        "header with the magic of another format": {"magic": b"xyz"},
        **{f"spacing {text}": {"pixdim_1": float(text), "sform_code": 0} for text in ("0", "NaN", "inf", "1e-30", "1e30")},
        "a matrix of zeros": {"srow": 0, "qform_code": 0},
        "a matrix of NaN": {"srow": np.nan, "qform_code": 0},
        "a quaternion of a thousand": {"quatern": 1000, "sform_code": 0},
        "no matrix at all": {"qform_code": 0, "sform_code": 0},
        "slope infinite": {"scl_slope": np.inf},
    }.items():
        yield name, fields(**values), LOST
    yield "a sheared matrix", nifti.changed(IMAGE, nifti.shear), LOST
    yield "a negative spacing", fields(pixdim_1=-0.8, sform_code=0), PERHAPS
    yield "8 bits said of 16", fields(bitpix=8), PERHAPS
    yield "voxels before the header's end", fields(vox_offset=-5), PERHAPS
    yield "slope NaN", fields(scl_slope=np.nan, scl_inter=np.nan), PERHAPS
    yield "NIfTI-2", nifti.rewritten(IMAGE, nifti.version_2), PERHAPS
    yield "the unit metre", nifti.changed(IMAGE, lambda header: nifti.use_unit(header, 1, 1e-3)), NEARLY
    yield "the unit micrometre", nifti.changed(IMAGE, lambda header: nifti.use_unit(header, 3, 1e3)), NEARLY
    yield "no unit", fields(xyzt_units=0), reads()
    yield "slope 0", fields(scl_slope=0, scl_inter=0), reads()
    yield "the other byte order", nifti.rewritten(IMAGE, nifti.big_endian), reads()
    yield "an extension", nifti.rewritten(IMAGE, nifti.extended), reads()
    unsigned = both(voxels(IMAGE, lambda v: (v + 2048).astype(np.uint16)), fields(scl_slope=1, scl_inter=-2048))
    yield "unsigned, 1024 more, and the header says so", unsigned, reads()
    halves = both(voxels(IMAGE, lambda v: (2 * v).astype(np.int16)), fields(scl_slope=0.5, scl_inter=0))
    yield "halves, and the header says so", halves, reads()


def _types() -> Iterator[Row]:
    for kind in (np.int32, np.int64, np.float32, np.float64):
        yield f"the type {kind.__name__}", voxels(IMAGE, lambda v, kind=kind: v.astype(kind)), reads()
    for name, function in {
        "a billion": lambda v: v.astype(np.int32) * 10**6,
        "1e38": lambda v: np.full(v.shape, 1e38, np.float32),
        "65,535": lambda v: np.full(v.shape, 65535, np.uint16),
        "NaN in the nodule": lambda v: np.where(BALL, np.nan, v).astype(np.float32),
        "NaN everywhere": lambda v: np.full(v.shape, np.nan, np.float32),
        "infinity in the nodule": lambda v: np.where(BALL, np.inf, v).astype(np.float32),
        "0 to 1": lambda v: ((v.clip(-1000, 400) + 1000) / 1400).astype(np.float32),
        "0 to 1 in double precision": lambda v: (v.clip(-1000, 400) + 1000) / 1400,
        "-1 to 1": lambda v: ((v.clip(-1000, 400) + 300) / 700).astype(np.float32),
        "z-scores": lambda v: ((v - v.mean()) / v.std()).astype(np.float32),
        "a mask for an image": lambda _: BALL,
    }.items():
        yield f"values: {name}", voxels(IMAGE, function), LOST
    corner = np.zeros(GRID.shape, bool)
    corner[0, 0, 0] = True
    far = voxels(IMAGE, lambda v: np.where(corner, np.nan, v).astype(np.float32))
    yield "values: NaN far from the nodule", far, PERHAPS
    lowest = voxels(IMAGE, lambda v: np.where(BALL, v, -32768).astype(np.int16))
    yield "values: -32768 outside", lowest, reads(lowest)


def _axes(name: str) -> Iterator[Row]:
    yield "4 axes, one time", with_image(name, lambda image: sitk.JoinSeries([image])), PERHAPS
    for what, function in {
        "4 axes, three times": lambda image: sitk.JoinSeries([image] * 3),
        "2 axes": lambda image: image[:, :, 5],
        "vectors": lambda image: sitk.Compose([sitk.Cast(image, sitk.sitkFloat32)] * 3),
        "one slice": lambda image: image[:, :, :1],
    }.items():
        yield what, with_image(name, function), LOST


def _volume_axes() -> Iterator[Row]:
    yield from _axes(IMAGE)
    for what, function in {
        "colours": lambda image: sitk.Compose([sitk.Cast(image, sitk.sitkUInt8)] * 3),
        "complex numbers": lambda image: sitk.Cast(image, sitk.sitkComplexFloat32),
        "one voxel": lambda image: image[:1, :1, :1],
    }.items():
        yield what, with_image(IMAGE, function), LOST


def _rotation(degrees: float) -> tuple[float, ...]:
    a = np.radians(degrees)
    about_z = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    about_x = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    return tuple((about_z @ about_x).ravel().tolist())


def _grids() -> Iterator[tuple[str, Grid]]:
    """Grids that hold the nodule, in other geometries."""
    centre = GRID.middle + OFFSET_MM
    for name, direction in {
        "turned by 180 degrees": (-1, 0, 0, 0, -1, 0, 0, 0, 1),
        "upside down": (1, 0, 0, 0, 1, 0, 0, 0, -1),
        "a mirror image": (-1, 0, 0, 0, 1, 0, 0, 0, 1),
        "sagittal": (0, 0, 1, 1, 0, 0, 0, 1, 0),
        "oblique": _rotation(20),
    }.items():
        yield name, GRID.around(centre, shape=(14, 20, 20), direction=tuple(map(float, direction)))
    yield "slices of 3 mm", GRID.around(centre, shape=(8, 30, 30), spacing=(0.5, 0.5, 3.0))
    yield "fine slices", GRID.around(centre, shape=(40, 12, 12), spacing=(1.2, 1.2, 0.4))
    yield "far from the origin", GRID


def as_format(ending: str, compressed: bool = False) -> Change:
    """The volume and its mask in another format; their row has the new name."""
    name = f"n2.{ending}"
    files = ((IMAGE, hu(NODULE.field())), (MASK, BALL))
    writes = (both(gone(old), image(f"{Path(old).parent}/{name}", array, GRID, compressed)) for old, array in files)
    return both(*writes, cell("file", name))


def _formats() -> Iterator[Row]:
    for name, ending, compressed in (
        ("NIfTI without compression", "nii", False),
        ("MetaImage", "mhd", False),
        ("MetaImage, compressed", "mhd", True),
        ("MetaImage in one file", "mha", False),
        ("NRRD", "nrrd", False),
        ("NRRD, compressed", "nrrd", True),
    ):
        yield name, as_format(ending, compressed), reads()
    for ending in ("mha", "nrrd"):
        nan = voxels(f"images/n2.{ending}", lambda v: np.where(BALL, np.nan, v).astype(np.float32))
        yield f"NaN in .{ending}", both(as_format(ending), nan), left_out(GONE, f"n2.{ending}")
    for name, function in {
        "NRRD, cut": lambda data: data[:-100],
        "NRRD in RAS, which is elsewhere": lambda data: data.replace(b"left-posterior-", b"right-anterior-"),
    }.items():
        yield name, both(as_format("nrrd"), stored("images/n2.nrrd", function)), left_out(GONE, "n2.nrrd")
    compressed_nii = both(as_format("nii"), stored("images/n2.nii", gzip.compress))
    yield "NIfTI that is compressed but is named .nii", compressed_nii, reads_or_leaves_out(GONE, "n2.nii")
    pickled = instead(IMAGE, lambda path: np.save(path.with_name("n2.npy"), np.array([{"a": 1}], object)))
    yield "an array of Python objects", both(pickled, cell("file", "n2.npy")), left_out(GONE, "n2.npy")
    for ending in ("dcm", "jpg", "nii.gz.gz", "img"):
        renamed = both(moved(IMAGE, f"images/n2.{ending}"), cell("file", f"n2.{ending}"))
        yield f"the ending .{ending}", renamed, left_out(GONE, f"n2.{ending}")


def _every(function: Callable[[np.ndarray], np.ndarray]) -> Change:
    def change(folder: Path) -> None:
        for nodule in NODULES:
            write_image(folder / "images" / f"{nodule.name}.nii.gz", function(nodule.field()))

    return change


def _whole_folders() -> Iterator[Case]:
    shares = _every(lambda v: ((hu(v).clip(-1000, 400) + 1000) / 1400).astype(np.float32))
    unit = ("--data.window", "0", "1")
    yield Case("all volumes: 0 to 1", "cubes", shares, on("prepare, evaluate, segment, describe, train", refused("n0.nii.gz")))
    expect = on("evaluate", reads(near=True)) | on("segment, describe", reads_or_refused("n0.nii.gz", near=True))
    yield Case("all volumes: 0 to 1, and the window says so", "cubes", shares, expect, unit)
    air = voxels(IMAGE, lambda v: np.full(v.shape, -1000, np.int16))
    expect = on("prepare, segment", Expect((Reading(air),), True, (NAME,))) | on("evaluate, describe, train", refused(NAME))
    yield Case("values: air alone", "cubes", air, expect)


def _mask_grids() -> Iterator[Row]:
    def mask(array: np.ndarray, grid: Grid = GRID, **changes: tuple) -> Change:
        return image(MASK, array, grid._replace(**changes))

    first = tuple((GRID.matrix @ np.array([3, 3, 2]) + GRID.origin).tolist())
    yield "a part of the volume's grid", mask(BALL[2:-2, 3:-3, 3:-3], shape=(6, 10, 8), origin=first), PERHAPS
    shifted = reads_or_leaves_out(GONE, NAME, like=mask(np.roll(BALL, 2, 2)))
    yield "two voxels beside", mask(BALL, origin=(10.0 + 2 * 0.8, -20.0, 30.0)), shifted
    half = GRID._replace(origin=(10.4, -20.0, 30.0))
    yield "half a voxel beside", mask(NODULE.ball(half), half), NEARLY
    turned = GRID._replace(direction=(-1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 1.0))
    place = (10.0 + 13 * 0.8, -20.0 + 15 * 0.9, 30.0)
    yield "turned, at the same place", mask(BALL[:, ::-1, ::-1], turned, origin=place), PERHAPS
    yield "turned, at another place", mask(BALL, turned), LOST
    finer = Grid((20, 32, 28), (0.4, 0.45, 0.75), (9.8, -20.225, 29.625))
    yield "of half the spacing", mask(NODULE.ball(finer), finer), NEARLY
    yield "of half the spacing, but as many voxels", mask(BALL, spacing=(0.4, 0.45, 0.75)), LOST
    yield "without a geometry", mask(BALL, spacing=(1.0, 1.0, 1.0), origin=(0.0, 0.0, 0.0)), LOST
    yield "a micrometre beside", mask(BALL, origin=(10.001, -20.001, 30.001)), reads(near=True)
    yield "of a spacing rounded", mask(BALL, spacing=(0.80001, 0.90001, 1.50001)), reads(near=True)
    yield "1 m away", mask(BALL, origin=(1010.0, -20.0, 30.0)), LOST


def _mask_values() -> Iterator[Row]:
    for name, array in {"of 255": 255 * BALL, "of the label 7": 7 * BALL}.items():
        yield name, image(MASK, array), reads()
    for kind in (np.int16, np.int32, np.float32, np.float64):
        yield f"of the type {kind.__name__}", image(MASK, BALL.astype(kind)), reads()
    for name, array in {
        "of several labels": BALL * (1 + np.arange(BALL.size).reshape(BALL.shape) % 3).astype(np.uint8),
        "of probabilities": np.where(BALL, 0.9, 0.1).astype(np.float32),
        "of -1 and 1": 2 * BALL.astype(np.int16) - 1,
        "of logits": np.where(BALL, 3.0, -3.0).astype(np.float32),
        "with NaN": np.where(BALL, 1, np.nan).astype(np.float32),
    }.items():
        yield name, image(MASK, array), PERHAPS
    one = np.zeros_like(BALL)
    one[5, 8, 7] = 1
    for name, array in {"everywhere": np.ones_like(BALL), "of one voxel": one}.items():
        yield name, image(MASK, array), reads(image(MASK, array))


def _named(text: str) -> Change:
    """A column `mask` whose cell of n2 is a text."""
    return rows_changed(lambda rows: [[*row, "mask" if i == 0 else text if i == 3 else ""] for i, row in enumerate(rows)])


def _mask_columns() -> Iterator[Row]:
    other = "masks/other.nii.gz"
    yield "named by a column", both(_named(other), moved(MASK, other)), reads()
    for name, text in {
        "named by a column, but missing": other,
        "a folder by its column": "masks",
        "outside of the folder": "../n2.nii.gz",
        "an absolute path": "/etc/passwd",
    }.items():
        yield name, _named(text), left_out(GONE, "nodules.csv line 4")


def _lacking_masks() -> Iterator[Case]:
    for name, change in {
        "missing": gone(MASK),
        "of another name": moved(MASK, "masks/n2_mask.nii.gz"),
        "of the ending .nii": moved(MASK, "masks/n2.nii"),
    }.items():
        expect = on("prepare, evaluate", reads(gone(MASK))) | on("segment, insert", refused("n2"))
        yield Case(f"mask: {name}", "cubes", change, expect)
    zeros = voxels(MASK, np.zeros_like)
    expect = on("prepare", Expect((Reading(zeros), *LOST.readings), True, (NAME,)))
    yield Case("mask: without a voxel", "cubes", zeros, expect | on("segment, train unet, insert", refused("n2")))
    without = gone("masks")
    for name, change in {"no folder masks": without, "a file named masks": both(without, content("masks", "none\n"))}.items():
        expect = on("prepare, evaluate", reads(without)) | on("segment, train unet", refused("n0.nii.gz"))
        yield Case(f"mask: {name}", "cubes", change, expect | on("insert", refused("masks")))


def cases() -> Iterator[Case]:
    """All cases of volumes and masks."""
    volumes = (*damaged(IMAGE), *_missing(), *_headers(), *_types(), *_volume_axes())
    for number, (name, change, expect) in enumerate(volumes):
        yield Case(f"volume: {name}", "cubes", change, readers(number, expect))
    for number, (name, change, expect) in enumerate(_formats()):
        yield Case(f"format: {name}", "cubes", change, readers(number, expect), renamed=True)
    for name, grid in _grids():
        change = both(image(IMAGE, hu(NODULE.field(grid)), grid), image(MASK, NODULE.ball(grid), grid))
        yield Case(f"geometry: {name}", "cubes", change, on("prepare, evaluate", reads(near=True)))
    yield from _whole_folders()
    for name, change, expect in (*damaged(MASK), *_mask_grids(), *_mask_values(), *_axes(MASK), *_mask_columns()):
        if name == "a folder":
            expect = Expect((*LOST.readings, Reading(gone(MASK))), True, (NAME,))
        yield Case(f"mask: {name}", "cubes", change, on("prepare, segment", expect))
    yield from _lacking_masks()

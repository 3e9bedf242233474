"""Damaged and odd volumes: what the file of the nodule n2 holds, and on which grid."""

import gzip
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from tests.fuzz import nifti
from tests.fuzz.cases import (
    Both,
    Case,
    Change,
    Expect,
    Reading,
    left_out,
    on,
    readers,
    reads,
    reads_or_leaves_out,
    reads_or_refused,
    refused,
    unchanged,
)
from tests.fuzz.csv_cases import Cell, Without
from tests.fuzz.folders import GRID, NODULES, OFFSET_MM, Grid, hu, write_image

NAME = "n2.nii.gz"
IMAGE, MASK = f"images/{NAME}", f"masks/{NAME}"
NODULE = NODULES[2]
GONE = Without()
LOST = left_out(GONE, NAME)
PERHAPS = reads_or_leaves_out(GONE, NAME)


@dataclass(frozen=True)
class File:
    """Changes the volume's file."""

    write: Callable[[Path], object]
    name: str = IMAGE

    def __call__(self, folder: Path) -> None:
        """Changes the file in place."""
        self.write(folder / self.name)


def voxels(function: Callable[[np.ndarray], np.ndarray], grid: Grid = GRID, name: str = IMAGE) -> File:
    """The volume with other voxels."""
    return File(lambda path: write_image(path, function(sitk.GetArrayFromImage(sitk.ReadImage(str(path)))), grid), name)


def content(data: bytes, name: str = IMAGE) -> File:
    """A file with these bytes."""
    return File(lambda path: path.write_bytes(data), name)


def stored(function: Callable[[bytes], bytes], name: str = IMAGE) -> File:
    """The file's bytes, changed."""
    return File(lambda path: path.write_bytes(function(path.read_bytes())), name)


def instead(make: Callable[[Path], object], name: str = IMAGE) -> File:
    """Something else of that name."""
    return File(lambda path: (path.unlink(), make(path)), name)


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :]


def _moved(path: Path) -> None:
    other = path.parent.parent / "elsewhere.nii.gz"
    path.rename(other)
    path.symlink_to(other)


def damaged(name: str) -> Iterator[tuple[str, Change, str]]:
    """Files that hold no volume: what was done, the change, and whether a reader may still find the voxels."""
    yield "cut in the middle", stored(lambda data: data[: len(data) // 2], name), ""
    yield "cut behind the header", stored(lambda data: gzip.compress(gzip.decompress(data)[:352]), name), ""
    yield "cut by a voxel", stored(lambda data: gzip.compress(gzip.decompress(data)[:-2]), name), ""
    yield "a byte changed", stored(_flipped, name), ""
    yield "a wrong checksum", stored(lambda data: data[:-8] + b"\1\2\3\4" + data[-4:], name), ""
    yield "not compressed", stored(gzip.decompress, name), "perhaps"
    yield "garbage at the end", stored(lambda data: data + b"garbage", name), "perhaps"
    yield "two compressed parts", stored(_in_two, name), "read"
    yield "0 bytes", content(b"", name), ""
    yield "text", content(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", name), ""
    yield "compressed text", content(gzip.compress(b"<html>404 Not Found</html>" * 40), name), ""
    yield "zeros", content(bytes(4096), name), ""
    yield "a folder", instead(Path.mkdir, name), ""
    yield "missing", instead(lambda _: None, name), "missing"
    yield "a link to itself", instead(lambda path: path.symlink_to(path), name), "missing"
    yield "a link to nothing", instead(lambda path: path.symlink_to("nowhere"), name), "missing"
    yield "a link to /dev/zero", instead(lambda path: path.symlink_to("/dev/zero"), name), "missing"
    yield "a pipe", instead(lambda path: os.mkfifo(path), name), "missing"
    yield "a link to the volume", File(_moved, name), "read"


def _in_two(data: bytes) -> bytes:
    plain = gzip.decompress(data)
    return gzip.compress(plain[:700]) + gzip.compress(plain[700:])


KINDS: dict[str, Expect] = {"": LOST, "missing": LOST, "perhaps": PERHAPS, "read": reads()}


def _headers() -> Iterator[tuple[str, Change, Expect]]:
    fields = nifti.with_fields
    for name, values in {
        "voxels without end": {"dim": [3, 32767, 32767, 32767, 1, 1, 1, 1]},
        "a negative size": {"dim_1": -14},
        "a size of 0": {"dim_3": 0},
        "half of the slices": {"dim_3": 5},
        "9 axes": {"dim_0": 9},
        "an unknown type": {"datatype": 9999},
        "voxels at NaN": {"vox_offset": np.nan},
        "voxels at infinity": {"vox_offset": np.inf},
        "voxels far off": {"vox_offset": 1e9},
        "the magic of another format": {"magic": b"xyz"},
    }.items():
        yield f"header with {name}", File(fields(**values)), LOST
    for name, value in {"0": 0, "NaN": np.nan, "infinite": np.inf, "1e-30": 1e-30, "1e30": 1e30}.items():
        yield f"spacing {name}", File(fields(pixdim_1=value, sform_code=0)), LOST
    yield "a negative spacing", File(fields(pixdim_1=-0.8, sform_code=0)), PERHAPS
    yield "8 bits said of 16", File(fields(bitpix=8)), PERHAPS
    yield "voxels before the header's end", File(fields(vox_offset=-5)), PERHAPS
    yield "a matrix of zeros", File(fields(srow=0, qform_code=0)), LOST
    yield "a matrix of NaN", File(fields(srow=np.nan, qform_code=0)), LOST
    yield "a quaternion of a thousand", File(fields(quatern=1000, sform_code=0)), LOST
    yield "a sheared matrix", File(nifti.sheared), LOST
    yield "no matrix at all", File(fields(qform_code=0, sform_code=0)), LOST
    yield "the unit metre", File(nifti.in_units(1, 1e-3)), Expect(PERHAPS.readings, True, PERHAPS.names, near=True)
    yield "the unit micrometre", File(nifti.in_units(3, 1e3)), Expect(PERHAPS.readings, True, PERHAPS.names, near=True)
    yield "no unit", File(fields(xyzt_units=0)), reads()
    yield "the other byte order", File(nifti.big_endian), reads()
    yield "an extension", File(nifti.extended), reads()
    yield "NIfTI-2", File(nifti.version_2), PERHAPS
    yield "slope 0", File(fields(scl_slope=0, scl_inter=0)), reads()
    yield "slope NaN", File(fields(scl_slope=np.nan, scl_inter=np.nan)), PERHAPS
    yield "slope infinite", File(fields(scl_slope=np.inf)), LOST
    yield (
        "unsigned, 1024 more, and the header says so",
        Both(voxels(lambda v: (v + 1024 * 2).astype(np.uint16)), File(fields(scl_slope=1, scl_inter=-2048))),
        reads(),
    )
    yield (
        "halves, and the header says so",
        Both(voxels(lambda v: (2 * v).astype(np.int16)), File(fields(scl_slope=0.5, scl_inter=0))),
        reads(),
    )


def _types() -> Iterator[tuple[str, Change, Expect]]:
    for kind in (np.int32, np.int64, np.float32, np.float64):
        yield f"the type {kind.__name__}", voxels(lambda v, kind=kind: v.astype(kind)), reads()
    for name, function in {
        "a billion": lambda v: v.astype(np.int32) * 10**6,
        "1e38": lambda v: np.full(v.shape, 1e38, np.float32),
        "65,535": lambda v: np.full(v.shape, 65535, np.uint16),
        "NaN in the nodule": lambda v: np.where(NODULE.ball(), np.nan, v).astype(np.float32),
        "NaN everywhere": lambda v: np.full(v.shape, np.nan, np.float32),
        "infinity in the nodule": lambda v: np.where(NODULE.ball(), np.inf, v).astype(np.float32),
        "0 to 1": lambda v: ((v.clip(-1000, 400) + 1000) / 1400).astype(np.float32),
        "0 to 1 in double precision": lambda v: (v.clip(-1000, 400) + 1000) / 1400,
        "-1 to 1": lambda v: ((v.clip(-1000, 400) + 300) / 700).astype(np.float32),
        "z-scores": lambda v: ((v - v.mean()) / v.std()).astype(np.float32),
        "a mask for an image": lambda _: NODULE.ball(),
    }.items():
        yield f"values: {name}", voxels(function), LOST

    def corner(v: np.ndarray) -> np.ndarray:
        changed = v.astype(np.float32)
        changed[0, 0, 0] = np.nan
        return changed

    yield "values: NaN far from the nodule", voxels(corner), PERHAPS
    lowest = voxels(lambda v: np.where(NODULE.ball(), v, -32768).astype(np.int16))
    yield "values: -32768 outside", lowest, reads(lowest)


def _axes() -> Iterator[tuple[str, Change, Expect]]:
    def joined(count: int) -> Callable[[Path], None]:
        return lambda path: sitk.WriteImage(sitk.JoinSeries([sitk.ReadImage(str(path))] * count), str(path))

    def with_image(function: Callable[[sitk.Image], sitk.Image]) -> File:
        return File(lambda path: sitk.WriteImage(function(sitk.ReadImage(str(path))), str(path)))

    yield "4 axes, one time", File(joined(1)), PERHAPS
    yield "4 axes, three times", File(joined(3)), LOST
    yield "2 axes", with_image(lambda image: image[:, :, 5]), LOST
    yield "colours", with_image(lambda image: sitk.Compose([sitk.Cast(image, sitk.sitkUInt8)] * 3)), LOST
    yield "vectors", with_image(lambda image: sitk.Compose([sitk.Cast(image, sitk.sitkFloat32)] * 3)), LOST
    yield "complex numbers", with_image(lambda image: sitk.Cast(image, sitk.sitkComplexFloat32)), LOST
    yield "one voxel", with_image(lambda image: image[:1, :1, :1]), LOST
    yield "one slice", with_image(lambda image: image[:, :, :1]), LOST


def on_grid(grid: Grid) -> Change:
    """The volume and its mask sampled on another grid."""

    def change(folder: Path) -> None:
        write_image(folder / IMAGE, hu(NODULE.field(grid)), grid)
        write_image(folder / MASK, NODULE.ball(grid), grid)

    return change


def _rotation(degrees: float) -> tuple[float, ...]:
    a = np.radians(degrees)
    about_z = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    about_x = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    return tuple((about_z @ about_x).ravel().tolist())


def geometries() -> Iterator[tuple[str, Grid]]:
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


def formats() -> Iterator[tuple[str, str, bool]]:
    """File formats: a name, the ending, and whether voxels are compressed."""
    yield "NIfTI without compression", "nii", False
    yield "MetaImage", "mhd", False
    yield "MetaImage, compressed", "mhd", True
    yield "MetaImage in one file", "mha", False
    yield "NRRD", "nrrd", False
    yield "NRRD, compressed", "nrrd", True


def as_format(ending: str, compressed: bool = False, change: Change = unchanged) -> Change:
    """The volume and its mask in another format; their row has the new name."""

    def rewrite(folder: Path) -> None:
        for place, array in ((folder / IMAGE, hu(NODULE.field())), (folder / MASK, NODULE.ball())):
            place.unlink()
            write_image(place.parent / f"n2.{ending}", array, compressed=compressed)
        Cell("file", f"n2.{ending}")(folder)
        change(folder)

    return rewrite


def _in_formats() -> Iterator[tuple[str, Change, Expect]]:
    for name, ending, compressed in formats():
        yield name, as_format(ending, compressed), reads()
    for ending in ("mha", "nrrd"):
        nan = voxels(lambda v: np.where(NODULE.ball(), np.nan, v).astype(np.float32), name=f"images/n2.{ending}")
        yield f"NaN in .{ending}", as_format(ending, change=nan), left_out(GONE, f"n2.{ending}")
    cut = stored(lambda data: data[:-100], "images/n2.nrrd")
    yield "NRRD, cut", as_format("nrrd", change=cut), left_out(GONE, "n2.nrrd")
    of_header = stored(lambda data: data.replace(b"left-posterior-superior", b"right-anterior-superior"), "images/n2.nrrd")
    yield "NRRD in RAS, which is elsewhere", as_format("nrrd", change=of_header), left_out(GONE, "n2.nrrd")
    yield (
        "NIfTI that is compressed but is named .nii",
        as_format("nii", change=stored(gzip.compress, "images/n2.nii")),
        reads_or_leaves_out(GONE, "n2.nii"),
    )

    def pickled(folder: Path) -> None:
        (folder / IMAGE).unlink()
        np.save(folder / "images" / "n2.npy", np.array([{"a": 1}], object))
        Cell("file", "n2.npy")(folder)

    yield "an array of Python objects", pickled, left_out(GONE, "n2.npy")
    for ending in ("dcm", "jpg", "nii.gz.gz", "img"):

        def renamed(folder: Path, ending: str = ending) -> None:
            (folder / IMAGE).rename(folder / "images" / f"n2.{ending}")
            Cell("file", f"n2.{ending}")(folder)

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
    air = voxels(lambda v: np.full(v.shape, -1000, np.int16))
    expect = on("prepare, segment", Expect((Reading(air),), True, (NAME,))) | on("evaluate, describe, train", refused(NAME))
    yield Case("values: air alone", "cubes", air, expect)


def cases() -> Iterator[Case]:
    """All cases of volumes."""
    damages = ((name, change, KINDS[kind]) for name, change, kind in damaged(IMAGE))
    several = (*damages, *_headers(), *_types(), *_axes())
    for number, (name, change, expect) in enumerate(several):
        yield Case(f"volume: {name}", "cubes", change, readers(number, expect))
    for number, (name, change, expect) in enumerate(_in_formats()):
        yield Case(f"format: {name}", "cubes", change, readers(number, expect), renamed=True)
    for name, grid in geometries():
        yield Case(f"geometry: {name}", "cubes", on_grid(grid), on("prepare, evaluate", reads(near=True)))
    yield from _whole_folders()

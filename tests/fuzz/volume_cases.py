"""Damaged and odd volumes and masks: what the files of the nodule n2 hold, and on which grid."""

import gzip
import os
from functools import partial
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from tests.fuzz.cases import either, itself, left_out, reads, refused, table
from tests.fuzz.changes import (
    both,
    cell,
    content,
    each,
    extended,
    fields,
    gone,
    image,
    instead,
    linked,
    loop,
    moved,
    nifti,
    other_byte_order,
    stored,
    unchanged,
    version_2,
    volume,
    voxels,
    without_columns,
    without_row,
)
from tests.volume_folders import CENTRE, CSV, GRID, NODULES, Grid, write_image

NAME = "n2.nii.gz"
IMAGE, MASK = f"images/{NAME}", f"masks/{NAME}"
NODULE = NODULES[2]
BALL = NODULE.ball()
GONE = without_row()
LOST = left_out(GONE, NAME)
PERHAPS = LOST._replace(reads=unchanged)
READERS = "prepare, evaluate|segment|describe|sweep|segment|train|segment|train unet"
volumes = partial(table, "cubes", "volume", READERS)
masks = partial(table, "cubes", "mask", "prepare, segment")


def middle(value):
    """Sets the voxels in the middle."""

    def function(v):
        v = v.astype(np.float32)
        v[tuple(slice(n // 2 - 2, n // 2 + 2) for n in v.shape)] = value
        return v

    return function


WRONG_VOXELS = {
    "a billion": lambda v: v.astype(np.int32) * 10**6,
    "1e300": lambda v: v * 0 + 1e300,
    "NaN in the middle": middle(np.nan),
    "infinity in the middle": middle(np.inf),
    "0 to 1": lambda v: ((v.clip(-1000, 400) + 1000) / 1400).astype(np.float32),
    "-1 to 1": lambda v: ((v.clip(-1000, 400) + 300) / 700).astype(np.float32),
    "a mask for an image": lambda v: (v > v.mean()).astype(np.uint8),
}
"""Functions of voxels that leave none that can be HU."""
TYPES = {f"the type {kind}": lambda v, kind=kind: v.astype(kind) for kind in ("int64", "float32", "float64")}


def halved(data):
    """Cuts a file in its middle."""
    return data[: len(data) // 2]


def flipped(data):
    """Changes a byte in the middle of a file."""
    return halved(data) + bytes([data[len(data) // 2] ^ 255]) + data[len(data) // 2 + 1 :]


def _two_parts(data):
    plain = gzip.decompress(data)
    return gzip.compress(plain[:700]) + gzip.compress(plain[700:])


DAMAGES = {
    "cut in the middle": halved,
    "cut by a voxel": lambda data: gzip.compress(gzip.decompress(data)[:-2]),
    "a voxel more": lambda data: gzip.compress(gzip.decompress(data) + bytes(2)),
    "a byte changed": flipped,
    "a wrong checksum": lambda data: data[:-8] + b"\1\2\3\4" + data[-4:],
    "0 bytes": lambda _: b"",
    "text": lambda _: "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
    "compressed text": lambda _: gzip.compress(b"<html>404 Not Found</html>" * 40),
}
AXES = {
    "4 axes, three times": lambda image: sitk.JoinSeries([image] * 3),
    "2 axes": lambda image: image[:, :, 5],
    "vectors": lambda image: sitk.Compose([sitk.Cast(image, sitk.sitkFloat32)] * 3),
    "complex numbers": lambda image: sitk.Cast(image, sitk.sitkComplexFloat32),
    "one voxel": lambda image: image[:1, :1, :1],
}
CASES = [
    case
    for name, rows in ((IMAGE, volumes), (MASK, masks))
    for case in (
        *rows(LOST, each(stored, name, DAMAGES) | each(volume, name, AXES)),
        *rows(
            PERHAPS,
            {
                "not compressed": stored(name, gzip.decompress),
                "garbage at the end": stored(name, lambda data: data + b"garbage"),
                "4 axes, one time": volume(name, lambda image: sitk.JoinSeries([image])),
            },
        ),
        *rows(reads(), {"two compressed parts": stored(name, _two_parts), "a link": linked(name, "elsewhere.nii.gz")}),
    )
]
MISSING = {
    "missing": lambda _: None,
    "a link to itself": loop,
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
}

# Fields of a NIfTI header: dim 40, datatype 70, bitpix 72, pixdim 76, vox_offset 108, scl_slope 112, scl_inter 116,
# xyzt_units 123, qform_code 252, sform_code 254, the quaternion 256, the qform's origin 268, the sform 280, magic 344.
LOST_HEADERS = {
    "voxels without end": "40 8h 3 32767 32767 32767 1 1 1 1",
    "a negative size": "42 h -14",
    "half of the slices": "46 h 5",
    "9 axes": "40 h 9",
    "no axis": "40 h 0",
    "an unknown type": "70 h 9999",
    "voxels at NaN": "108 f nan",
    "voxels far off": "108 f 1e9",
    "the magic of two files": "345 B 105",
    **{f"spacing {mm}": f"80 f {mm}; 254 h 0" for mm in ("0", "NaN", "1e30")},
    "the spacing of another matrix": "80 f 1.6",
    "a matrix that lies elsewhere": "268 f 30",
    "a matrix that is turned": "256 f 0.5",
    "a matrix of zeros": "280 12f 0 0 0 0 0 0 0 0 0 0 0 0; 252 h 0",
    "a matrix of NaN": "280 12f nan nan nan nan nan nan nan nan nan nan nan nan; 252 h 0",
    "a sheared matrix": "288 f 0.8; 252 2h 0 1",
    "a quaternion of a thousand": "256 3f 1e3 1e3 1e3; 254 h 0",
    "no matrix at all": "252 2h 0 0",
    "slope infinite": "112 f inf",
    "slope 0 and 1024 less": "112 2f 0 -1024",
    "NaN more": "112 2f 2 nan",
}
ODD_HEADERS = {
    "a negative spacing": "80 f -0.8; 254 h 0",
    "8 bits said of 16": "72 h 8",
    "voxels before the header's end": "108 f -5",
}
UNITS = {
    "the unit metre": "123 B 1; 80 3f 8e-4 9e-4 1.5e-3; 268 15f -.01 .02 .03 -8e-4 0 0 -.01 0 -9e-4 0 .02 0 0 1.5e-3 .03",
    "the unit micrometre": "123 B 3; 80 3f 800 900 1500; 268 15f -1e4 2e4 3e4 -800 0 0 -1e4 0 -900 0 2e4 0 0 1500 3e4",
}
NO_SCALING = {"slope 0": "112 2f 0 0", "slope NaN": "112 2f nan nan", "slope NaN, and 0 more": "112 2f nan 0"}
AIR = {"air alone": voxels(IMAGE, lambda v: v * 0 - 1000)}
CASES += [
    *volumes(
        LOST,
        each(instead, IMAGE, MISSING)
        | each(fields, IMAGE, LOST_HEADERS)
        | each(voxels, IMAGE, WRONG_VOXELS)
        | {
            "NaN in the other byte order": both(
                voxels(IMAGE, middle(np.nan)), nifti(IMAGE, lambda plain: other_byte_order(plain, "f4"))
            )
        },
    ),
    *volumes(PERHAPS, each(fields, IMAGE, ODD_HEADERS) | {"NIfTI-2": nifti(IMAGE, version_2)}),
    *volumes(PERHAPS._replace(near=True), each(fields, IMAGE, UNITS)),
    *volumes(
        reads(),
        each(voxels, IMAGE, TYPES)
        | each(fields, IMAGE, NO_SCALING)
        | {
            "no unit": fields(IMAGE, "123 B 0"),
            "the other byte order": nifti(IMAGE, other_byte_order),
            "an extension": nifti(IMAGE, extended),
            "unsigned, and the header takes 2048 off": both(
                voxels(IMAGE, lambda v: (v + 2048).astype(np.uint16)), fields(IMAGE, "112 2f 1 -2048")
            ),
            "doubled, and the header halves": both(voxels(IMAGE, lambda v: 2 * v), fields(IMAGE, "112 2f 0.5 0")),
        },
    ),
    *table(
        *("cubes", "volume", "prepare, evaluate|describe"),
        reads(),
        {"NaN far off": voxels(IMAGE, lambda v: np.where(np.indices(v.shape).sum(0), v, np.float32("nan")))},
    ),
    *volumes(
        reads(itself),
        {
            "water": voxels(IMAGE, lambda v: v * 0),
            "-32768 outside": voxels(IMAGE, lambda v: np.where(BALL, v, -32768).astype(np.int16)),
        },
    ),
    *table("cubes", "values", "prepare, segment", either(NAME, like=itself), AIR),
    *table("cubes", "values", "evaluate, describe, train", refused(NAME), AIR),
]

TURNED = (-1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 1.0)


def _on(**geometry):
    grid = GRID.around(CENTRE, **geometry)
    return both(image(IMAGE, NODULE.field(grid), grid), image(MASK, NODULE.ball(grid), grid))


DIRECTIONS = {
    "turned by 180 degrees": TURNED,
    "upside down": (1, 0, 0, 0, 1, 0, 0, 0, -1),
    "a mirror image": (-1, 0, 0, 0, 1, 0, 0, 0, 1),
    "sagittal": (0, 0, 1, 1, 0, 0, 0, 1, 0),
    "oblique": (0.9397, -0.3214, 0.1170, 0.3420, 0.8830, -0.3214, 0.0, 0.3420, 0.9397),
}
GEOMETRY = {what: _on(shape=(14, 20, 20), direction=tuple(map(float, axes))) for what, axes in DIRECTIONS.items()} | {
    "slices of 3 mm": _on(shape=(8, 30, 30), spacing=(0.5, 0.5, 3.0)),
    "fine slices": _on(shape=(40, 12, 12), spacing=(1.2, 1.2, 0.4)),
    "another origin": _on(),
}


def _as(ending, *more, compressed=False):
    """The volume and its mask in another format; their row has the new name."""
    files = {f"images/n2.{ending}": NODULE.field(), f"masks/n2.{ending}": BALL}
    writes = (image(name, array, compressed=compressed) for name, array in files.items())
    return both(gone(IMAGE), gone(MASK), *writes, cell("file", f"n2.{ending}"), *more)


def _nrrd(old, new):
    return _as("nrrd", stored("images/n2.nrrd", lambda data: data.replace(old, new)))


def _array(array, *more):
    """An array in the place of the volume."""
    return both(
        instead(IMAGE, lambda path: np.save(path.with_name("n2.npy"), array)), cell("file", "n2.npy"), gone(MASK), *more
    )


formats = partial(table, "cubes", "format", READERS, renamed=True)
ENDINGS = ("mha", "nrrd", "nii")
STORED = {"cut": lambda data: data[:-1], "longer": lambda data: data + bytes(2)}
LOST_FORMATS = {
    **{f"{ending} with NaN": _as(ending, voxels(f"images/n2.{ending}", middle(np.nan))) for ending in ENDINGS},
    **{
        f"{ending}, {what}": _as(ending, stored(f"images/n2.{ending}", function))
        for ending in ENDINGS
        for what, function in STORED.items()
    },
    **{
        f"{ending}, compressed, a byte changed": _as(ending, stored(f"images/n2.{ending}", flipped), compressed=True)
        for ending in ENDINGS[:2]
    },
    "nrrd in RAS, which is elsewhere": _nrrd(b"left-posterior-", b"right-anterior-"),
    "nrrd in micrometres": _nrrd(b"endian:", b'space units: "um" "um" "um"\nendian:'),
    "nrrd with a sheared matrix": _nrrd(b",0,0) (", b",0.5,0) ("),
    "an array of Python objects": _array(np.array([{}])),
    "an array of text": _array(BALL.astype(str)),
    "an array of two axes": _array(BALL[0]),
    "truncated: an array cut": _array(BALL, stored("images/n2.npy", lambda data: data[:500])),
    "text for an array": _array(BALL, content("images/n2.npy", "hello")),
    **{
        f"the ending {ending}": both(moved(IMAGE, f"images/n2.{ending}"), cell("file", f"n2.{ending}"))
        for ending in ("dcm", "jpg", "nii.gz.gz", "img")
    },
}
CASES += [
    *formats(reads(), {ending: _as(ending) for ending in (*ENDINGS, "mhd")}),
    *formats(reads(), {f"{ending}, compressed": _as(ending, compressed=True) for ending in ("mha", "nrrd", "mhd")}),
    *formats(
        reads(),
        {"folders": both(*(moved(path, path.replace("n2", "n2/n2")) for path in (IMAGE, MASK)), cell("file", "n2/n2.nii.gz"))},
    ),
    *formats(left_out(GONE, "n2."), LOST_FORMATS),
    *formats(
        PERHAPS._replace(names=("n2.nii",)), {"compressed, but named nii": _as("nii", stored("images/n2.nii", gzip.compress))}
    ),
]


def _mask(array, **geometry):
    return image(MASK, array, GRID._replace(**geometry))


def _ball(grid):
    return image(MASK, NODULE.ball(grid), grid)


NO_CENTRES = without_columns("coordX", "coordY", "coordZ")
FINER = Grid((20, 32, 28), (0.4, 0.45, 0.75), (9.8, -20.225, 29.625))
EMPTY = {"without a voxel": voxels(MASK, np.zeros_like)}
ODD_LABELS = {
    "of several labels": lambda v: v * (1 + np.arange(v.size).reshape(v.shape) % 3).astype(np.uint8),
    "of -1 and 1": lambda v: 2 * v.astype(np.int16) - 1,
    "with NaN": lambda v: np.where(v, 1, np.nan),
}
LABELS = {
    "of 255": lambda v: 255 * v,
    "the type int16": lambda v: v.astype(np.int16),
}
OTHER_MASKS = {
    "a column that names a missing file": "masks/o.nii.gz",
    "a column that names a folder": "masks",
    "a column that leads out": "../n2.nii.gz",
    "a column with an absolute path": "/etc/passwd",
}
CASES += [
    *masks(LOST._replace(reads=gone(MASK)), {"a folder": instead(MASK, Path.mkdir)}),
    *masks(
        reads(),
        each(voxels, MASK, LABELS)
        | {
            "a part of the volume's grid": _mask(BALL[2:-2, 3:-3, 3:-3], origin=(12.4, -17.3, 33.0)),
            "turned, at the same place": _mask(BALL[:, ::-1, ::-1], direction=TURNED, origin=(20.4, -6.5, 30.0)),
            "named by a column": both(cell("mask", "masks/o.nii.gz"), moved(MASK, "masks/o.nii.gz")),
        },
    ),
    *masks(
        reads(near=True),
        {
            "half a voxel beside": _ball(GRID._replace(origin=(10.4, -20.0, 30.0))),
            "of half the spacing": _ball(FINER),
            "a micrometre beside, of a spacing rounded": _mask(
                BALL, origin=(10.001, -20.001, 30.001), spacing=(0.80001, 0.90001, 1.50001)
            ),
        },
    ),
    *masks(
        LOST,
        each(voxels, MASK, ODD_LABELS)
        | {
            "two voxels beside": _mask(BALL, origin=(11.6, -20.0, 30.0)),
            "turned, at another place": _mask(BALL, direction=TURNED),
            "of half the spacing, but as many voxels": _mask(BALL, spacing=FINER.spacing),
            "without a geometry": _mask(BALL, spacing=(1.0, 1.0, 1.0), origin=(0.0, 0.0, 0.0)),
            "1 m away": _mask(BALL, origin=(1010.0, -20.0, 30.0)),
        },
    ),
    *table(
        "cubes",
        "mask",
        "prepare",
        left_out(both(NO_CENTRES, GONE), NAME),
        {"1 m away, without coordinates": both(NO_CENTRES, _mask(BALL, origin=(1010.0, -20.0, 30.0)))},
    ),
    *masks(
        reads(itself),
        {
            "everywhere": voxels(MASK, np.ones_like),
            "of few voxels": voxels(MASK, lambda v: np.where(np.indices(v.shape).sum(0) == 20, v, 0)),
        },
    ),
    *masks(
        left_out(GONE, f"{CSV} line 4"),
        each(cell, "mask", OTHER_MASKS),
    ),
    *table("cubes", "mask", "prepare", LOST._replace(reads=itself), EMPTY),
    *table("cubes", "mask", "segment, train unet, insert", refused("n2"), EMPTY),
    *table(
        "cubes", "mask", "segment", refused("n2"), {"without a voxel or a place": both(NO_CENTRES, EMPTY["without a voxel"])}
    ),
]
NO_MASKS = {"no folder": gone("masks"), "a file for the folder": both(gone("masks"), content("masks", "none\n"))}
for without, like, segmented, inserted in (
    ({"missing": gone(MASK)}, gone(MASK), "n2", "n2"),
    (NO_MASKS, gone("masks"), "n0.nii.gz", "masks"),
):
    CASES += table("cubes", "mask", "prepare, evaluate", reads(like), without)
    CASES += table("cubes", "mask", "segment, train unet", refused(segmented), without)
    CASES += table("cubes", "mask", "insert", refused(inserted), without)


def _shares(folder):
    for nodule in NODULES:
        write_image(folder / f"images/{nodule.name}.nii.gz", WRONG_VOXELS["0 to 1"](nodule.field()))


SHARES = {"0 to 1": _shares}
CASES += [
    *table("cubes", "geometry", "prepare, evaluate", reads(near=True), GEOMETRY),
    *table("cubes", "all volumes", "prepare, evaluate, segment, describe, train", refused("n0.nii.gz"), SHARES),
    *table(
        "cubes",
        "all volumes, and the window says so",
        "evaluate, segment, describe",
        either("n0.nii.gz", near=True),
        SHARES,
        options={"data.window": (0, 1)},
    ),
]

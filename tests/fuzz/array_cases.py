"""Damaged and odd `.npz` files."""

import io
import zipfile
from functools import partial

import numpy as np

from tests import medmnist_files, volume_folders
from tests.fuzz.cases import either, itself, left_out, reads, refused, table
from tests.fuzz.changes import content, each, moved, stored, unchanged
from tests.fuzz.volume_cases import TYPES, WRONG_VOXELS, halved

NAME, MEDMNIST = "all.npz", "nodulemnist3d.npz"


def with_arrays(function, save=np.savez):
    """The clean arrays with some of them changed; None takes one away."""

    def change(folder):
        arrays = volume_folders.arrays()
        save(folder / NAME, **{name: array for name, array in (arrays | function(arrays)).items() if array is not None})

    return change


def only(**changes):
    """Functions of single arrays."""
    return with_arrays(lambda arrays: {name: function(arrays[name]) for name, function in changes.items()})


def second(function):
    """Changes that of n2 in an array."""

    def changed(array):
        new = function(array[2:3])
        return np.concatenate([array[:2].astype(new.dtype), new, array[3:].astype(new.dtype)])

    return changed


def numbers(name, values):
    """Values of n2 in a column."""
    return {f"{name} {value}": only(**{name: second(lambda old, new=float(value): old * 0 + new)}) for value in values.split()}


def archive(name, data):
    """A file with one member."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr(name, data)
    return content(NAME, file.getvalue())


def _huge():
    file = io.BytesIO()
    np.save(file, np.zeros((6, 10, 16, 14), np.int16))
    return file.getvalue().replace(b"(6, 10, 16, 14)", b"(6, 10, 16, 9999999)")


BROKEN = {
    "cut in the middle": halved,
    "a byte changed": lambda data: data[:2000] + b"\xff\xff" + data[2002:],
    "text": lambda _: b"<html>not found</html>",
    "an empty archive": lambda _: b"PK\5\6" + bytes(18),
}
GONE = with_arrays(lambda arrays: {name: np.delete(array, 2, axis=0) for name, array in arrays.items()})
cubes = partial(table, "npz", ".npz", "prepare, evaluate|describe|sweep")
CASES = [
    *cubes(
        refused(NAME),
        {
            **each(stored, NAME, BROKEN),
            "an archive without arrays": archive("readme.txt", b"x"),
            "an array that is none": archive("volumes.npy", b"\x93NUMPYxxxx"),
            "an array larger than its file": archive("volumes.npy", _huge()),
            "Python objects": lambda folder: np.savez(folder / NAME, volumes=np.array([None] * 6)),
            "Python objects for names": only(names=lambda n: n.astype(object)),
            "--data.source medmnist: a file of MedMNIST": lambda folder: medmnist_files.write(folder / NAME),
            "no volumes": only(volumes=lambda _: None),
            "volumes under another name": with_arrays(lambda arrays: {"volumes": None, "images": arrays["volumes"]}),
            "no sample": with_arrays(lambda arrays: {name: array[:0] for name, array in arrays.items()}),
            "5 axes": only(volumes=lambda v: v[..., None]),
            "no voxels": only(volumes=lambda v: v[:, :0], masks=lambda m: m[:, :0]),
            "one number": only(volumes=lambda v: v[0, 0, 0, 0]),
            **{
                f"{name}: of five": only(**{name: lambda array: array[:5]})
                for name in volume_folders.arrays()
                if name != "volumes"
            },
            "masks: smaller": only(masks=lambda m: m[:, 1:]),
            "names: twice": only(names=lambda n: np.array([*n[:5], "n0"])),
            "names: no UTF-8": only(names=lambda n: np.char.add(b"\xff", n.astype("S"))),
            "spacing_mm: two": only(spacing_mm=lambda s: s[:, :2]),
        },
    ),
    *cubes(
        either(NAME),
        {
            "diameter_mm: in a column": only(diameter_mm=lambda d: d[:, None]),
            "spacing_mm: of all": only(spacing_mm=lambda s: s[0]),
            "masks of probabilities": only(masks=lambda m: np.where(m, 0.9, 0.1)),
        },
    ),
    *cubes(
        refused(),
        {
            "diameter_mm: as words": only(diameter_mm=lambda d: np.char.add(d.astype(str), " mm")),
            "diameter_mm: nothing but volumes": with_arrays(
                lambda arrays: dict.fromkeys(arrays) | {"volumes": arrays["volumes"]}
            ),
            "volumes[0]: truth values": only(volumes=lambda v: v > -400),
            **{f"volumes[0]: {what}": only(volumes=WRONG_VOXELS[what]) for what in ("0 to 1", "a mask for an image")},
            "complex numbers": only(volumes=lambda v: v.astype(complex)),
        },
    ),
    *cubes(
        left_out(GONE, "volumes[2]"),
        {
            **{
                what: only(volumes=second(WRONG_VOXELS[what]))
                for what in ("NaN in the middle", "infinity in the middle", "a billion")
            },
            **numbers("diameter_mm", "0 -3 nan inf 1e30 1e308"),
            **numbers("spacing_mm", "0 -1 nan 1e30 1e-30"),
        },
    ),
    *cubes(
        reads(),
        {
            "compressed": with_arrays(lambda _: {}, np.savez_compressed),
            "other arrays": with_arrays(lambda _: {"mine": np.zeros(3)}),
            "in columns": only(volumes=np.asfortranarray),
            "the other byte order": only(volumes=lambda v: v.astype(">i2"), diameter_mm=lambda d: d.astype(">f8")),
            "diameters as text": only(diameter_mm=lambda d: d.astype(str)),
            "masks of truth values": only(masks=lambda m: m.astype(bool)),
            "names and groups as bytes": only(names=lambda n: n.astype("S"), groups=lambda g: g.astype("S")),
            **{what: only(volumes=function) for what, function in TYPES.items()},
        },
    ),
    *cubes(
        reads(only(groups=lambda g: np.char.lstrip(g, "p"))),
        {"groups as numbers": only(groups=lambda g: np.char.lstrip(g, "p").astype(int))},
    ),
    *cubes(reads(itself), {"a line end in a name": only(names=lambda n: np.array(["a\nb", *n[1:]]))}),
    *table("npz", ".npz", "segment", refused(NAME), {"for a segmentation": unchanged}),
    *table(
        "npz",
        ".npz",
        "prepare, describe",
        either("ALL.NPZ"),
        {"named .NPZ": moved(NAME, "ALL.NPZ")},
        renamed=True,
        root="{folder}/ALL.NPZ",
    ),
    *table("real", "real", "judge real", refused(NAME), {"an .npz cut": stored(NAME, halved)}),
]

BYTES = partial(np.zeros, dtype=np.uint8)
MEDMNIST_ARRAYS = {
    "images: of float32": {"train_images": np.zeros((24, 12, 12, 12), np.float32)},
    "images: of colours": {"train_images": BYTES((24, 28, 28, 3))},
    "images: no cubes": {"train_images": BYTES((24, 12, 12, 10))},
    "images: of two sizes": {"test_images": BYTES((16, 8, 8, 8))},
    "val_images: none": {"val_images": BYTES((0, 12, 12, 12))},
    "val_images: missing": {"val_images": None},
    "test_labels: missing": {"test_labels": None},
    "test_labels: of float64": {"test_labels": np.zeros((16, 1))},
    "test_labels: one less": {"test_labels": BYTES((15, 1))},
    "test_labels: several of each": {"test_labels": BYTES((16, 14))},
    "test_labels: beyond the classes": {"test_labels": BYTES((16, 1)) + 2},
    "test_labels: below 0": {"test_labels": np.full((16, 1), -1)},
}
CASES += table(
    "medmnist",
    "medmnist",
    "prepare",
    refused(MEDMNIST),
    {what: stored(MEDMNIST, function) for what, function in BROKEN.items() if what != "a byte changed"}
    | {
        what: lambda folder, arrays=arrays: medmnist_files.write(folder / MEDMNIST, **arrays)
        for what, arrays in MEDMNIST_ARRAYS.items()
    }
    | {
        "a byte changed": stored(MEDMNIST, lambda data: data[:9000] + bytes(99) + data[9099:]),
        "--data.source cubes: volumes": lambda folder: np.savez(folder / MEDMNIST, volumes=np.zeros((3, 4, 4, 4))),
    },
)
for root in ("{folder}", "{folder}/gone.npz"):
    CASES += table("medmnist", "medmnist", "prepare", refused("medmnist"), {f"the path {root}": unchanged}, root=root)

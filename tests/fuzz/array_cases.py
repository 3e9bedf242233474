"""Damaged and odd `.npz` files."""

import io
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from tests.fuzz.cases import (
    Case,
    Change,
    Expect,
    Row,
    left_out,
    on,
    reads,
    reads_or_leaves_out,
    reads_or_refused,
    refused,
    unchanged,
)
from tests.fuzz.changes import content, moved, stored
from tests.fuzz.folders import arrays

NAME = "all.npz"
WRONG = refused(NAME)
Array = np.ndarray


def with_arrays(function: Callable[[dict[str, Array]], Mapping[str, Array | None]], compressed: bool = False) -> Change:
    """The clean arrays with some of them changed; None takes one away."""

    def change(folder: Path) -> None:
        found = arrays()
        kept = {name: array for name, array in (found | dict(function(found))).items() if array is not None}
        (np.savez_compressed if compressed else np.savez)(folder / NAME, **kept)  # pyright: ignore[reportArgumentType]

    return change


def only(**changes: Callable[[Array], Array | None]) -> Change:
    """Changes of single arrays."""
    return with_arrays(lambda found: {name: function(found[name]) for name, function in changes.items()})


def second(value: float) -> Callable[[Array], Array]:
    """The same array with another value for n2."""

    def function(array: Array) -> Array:
        changed = array.astype(float)
        changed[2] = value
        return changed

    return function


GONE = with_arrays(lambda found: {name: np.delete(array, 2, axis=0) for name, array in found.items()})


def _archive(members: Mapping[str, bytes]) -> Change:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return content(NAME, file.getvalue())


def _huge() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros((6, 10, 16, 14), np.int16))
    return file.getvalue().replace(b"(6, 10, 16, 14)", b"(6, 10, 16, 9999999)")


def _files() -> Iterator[Row]:
    objects = np.array([None] * 6, object)
    for name, change in {
        "0 bytes": content(NAME, ""),
        "text": content(NAME, "not an archive\n"),
        "cut in the middle": stored(NAME, lambda data: data[: len(data) // 2]),
        "a byte changed": stored(NAME, lambda data: data[:2000] + b"\xff\xff" + data[2002:]),
        "an archive without arrays": _archive({"readme.txt": b"x"}),
        "an empty archive": _archive({}),
        "an array that is none": _archive({"volumes.npy": b"\x93NUMPYxxxx"}),
        "an array larger than its file": _archive({"volumes.npy": _huge()}),
        "Python objects": lambda folder: np.savez(folder / NAME, allow_pickle=True, volumes=objects),
        "Python objects for names": only(names=lambda names: names.astype(object)),
        "no volumes": only(volumes=lambda _: None),
        "volumes under another name": with_arrays(lambda found: {"volumes": None, "images": found["volumes"]}),
    }.items():
        yield name, change, WRONG
    yield "compressed", with_arrays(lambda _: {}, compressed=True), reads()
    yield "other arrays", with_arrays(lambda _: {"mine": np.zeros(3)}), reads()
    yield "in columns", only(volumes=np.asfortranarray), reads()
    yield "the other byte order", only(volumes=lambda v: v.astype(">i2"), diameter_mm=lambda d: d.astype(">f8")), reads()


def _shapes() -> Iterator[Row]:
    yield "no sample", with_arrays(lambda found: {name: array[:0] for name, array in found.items()}), WRONG
    yield "one volume without an axis of samples", only(volumes=lambda v: v[0]), WRONG
    yield "5 axes", only(volumes=lambda v: v[..., None]), WRONG
    yield "no voxels", only(volumes=lambda v: v[:, :0], masks=lambda m: m[:, :0]), WRONG
    yield "one number", only(volumes=lambda v: v[0, 0, 0, 0]), WRONG
    for name in ("masks", "names", "groups", "categories", "diameter_mm", "spacing_mm"):
        yield f"{name} of five", only(**{name: lambda array: array[:5]}), refused(NAME, name)
    yield "diameters in a column", only(diameter_mm=lambda d: d[:, None]), reads_or_refused(NAME, "diameter_mm")
    yield "spacing of all", only(spacing_mm=lambda s: s[0]), reads_or_refused(NAME, "spacing_mm")
    yield "two spacings", only(spacing_mm=lambda s: s[:, :2]), refused(NAME, "spacing_mm")


def _values() -> Iterator[Row]:
    lost, either = left_out(GONE, "volumes[2]"), reads_or_refused(NAME)
    for kind in (np.int32, np.int64, np.float32, np.float64):
        yield f"{kind.__name__}", only(volumes=lambda v, kind=kind: v.astype(kind)), reads()
    for name, kind in {"complex numbers": complex, "text for voxels": str, "dates for voxels": "M8[s]"}.items():
        yield name, only(volumes=lambda v, kind=kind: v.astype(kind)), refused()
    for name, value in {"NaN": np.nan, "infinity": np.inf, "a billion": 1e9}.items():
        yield f"{name} in one", only(volumes=second(value)), lost
    yield "0 to 1 in all", only(volumes=lambda v: (v.clip(-1000, 400) + 1000) / 1400), refused("volumes[0]")
    yield "truth values", only(volumes=lambda v: v > -400), refused("volumes[0]")
    for value in (0.0, -3.0, np.nan, np.inf, 1e30, 1e308):
        yield f"diameter {value:g}", only(diameter_mm=second(value)), lost
    for value in (0.0, -1.0, np.nan, 1e30, 1e-30):
        yield f"spacing {value:g}", only(spacing_mm=second(value)), lost
    yield "diameters as text", only(diameter_mm=lambda d: d.astype(str)), reads()
    yield "diameters as words", only(diameter_mm=lambda d: np.array([f"{x:g} mm" for x in d])), refused("diameter_mm")
    yield "masks of 255", only(masks=lambda m: 255 * m), reads()
    yield "masks of truth values", only(masks=lambda m: m.astype(bool)), reads()
    yield "masks of probabilities", only(masks=lambda m: np.where(m, 0.9, 0.1)), either
    yield "names twice", only(names=lambda n: np.array(["n0", *n[1:-1], "n0"])), refused(NAME, "names")
    yield "names as bytes", only(names=lambda n: n.astype("S")), either
    yield "groups as bytes", only(groups=lambda n: n.astype("S")), either
    digits = only(groups=lambda g: np.array([p[1:] for p in g]))
    yield "groups as numbers", only(groups=lambda g: np.array([int(p[1:]) for p in g])), reads(digits)
    odd = only(names=lambda n: np.array(["a\nb", *n[1:]]))
    yield "a line end in a name", odd, reads(odd)
    bare = with_arrays(lambda found: dict.fromkeys([name for name in found if name != "volumes"]))
    yield "nothing but volumes", bare, refused("diameter_mm")


def cases() -> Iterator[Case]:
    """All cases of arrays in one file."""
    for number, (name, change, expect) in enumerate((*_files(), *_shapes(), *_values())):
        commands = f"prepare, {('evaluate', 'describe', 'evaluate', 'describe', 'sweep')[number % 5]}"
        yield Case(f".npz: {name}", "npz", change, on(commands, expect))
    yield Case(".npz: for a segmentation", "npz", unchanged, on("segment", WRONG))
    upper = on("prepare, describe", Expect(reads_or_leaves_out(GONE, NAME).readings, True, ("ALL.NPZ",)))
    capitals = moved(NAME, "ALL.NPZ")
    yield Case(".npz: the ending .NPZ", "npz", capitals, upper, renamed=True, root="{folder}/ALL.NPZ")
    yield Case("real: an .npz cut", "real", stored(NAME, lambda data: data[:900]), on("judge real", WRONG))
    yield Case("real: as it is", "real", unchanged, on("judge real", reads()))

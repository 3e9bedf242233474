"""Damaged and odd `.npz` files."""

import io
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from tests.fuzz.cases import Case, Change, Expect, left_out, on, reads, reads_or_leaves_out, reads_or_refused, refused
from tests.fuzz.folders import arrays

NAME = "all.npz"
PLACE = "volumes[2]"


def with_arrays(
    function: Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray | None]], compressed: bool = False
) -> Change:
    """The clean arrays with some of them changed; None takes one away."""

    def change(folder: Path) -> None:
        found = arrays()
        kept = {name: array for name, array in (found | dict(function(found))).items() if array is not None}
        (np.savez_compressed if compressed else np.savez)(folder / NAME, **kept)  # pyright: ignore[reportArgumentType]

    return change


def only(**changes: Callable[[np.ndarray], np.ndarray | None]) -> Change:
    """Changes of single arrays."""
    return with_arrays(lambda found: {name: function(found[name]) for name, function in changes.items()})


def second(value: float) -> Callable[[np.ndarray], np.ndarray]:
    """The same array with another value for n2."""

    def function(array: np.ndarray) -> np.ndarray:
        changed = array.astype(float)
        changed[2] = value
        return changed

    return function


def _without(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.delete(array, 2, axis=0) for name, array in found.items()}


GONE = with_arrays(_without)


def _bytes(function: Callable[[bytes], bytes]) -> Change:
    return lambda folder: (folder / NAME).write_bytes(function((folder / NAME).read_bytes()))


def _archive(members: Mapping[str, bytes]) -> Change:
    def change(folder: Path) -> None:
        with zipfile.ZipFile(folder / NAME, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)

    return change


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _huge() -> bytes:
    head = _npy(np.zeros((6, 10, 16, 14), np.int16))
    return head.replace(b"(6, 10, 16, 14)", b"(6, 10, 16, 9999999)")


def _files() -> Iterator[tuple[str, Change, Expect]]:
    wrong = refused(NAME)
    yield "0 bytes", _bytes(lambda _: b""), wrong
    yield "text", _bytes(lambda _: b"not an archive\n"), wrong
    yield "cut in the middle", _bytes(lambda data: data[: len(data) // 2]), wrong
    yield "a byte changed", _bytes(lambda data: data[:2000] + b"\xff\xff" + data[2002:]), wrong
    yield "an archive without arrays", _archive({"readme.txt": b"x"}), wrong
    yield "an empty archive", _archive({}), wrong
    yield "an array that is none", _archive({"volumes.npy": b"\x93NUMPYxxxx"}), wrong
    yield "an array larger than its file", _archive({"volumes.npy": _huge()}), wrong
    objects = {"volumes": np.array([None] * 6, object)}
    yield "Python objects", lambda folder: np.savez(folder / NAME, allow_pickle=True, **objects), wrong
    yield "Python objects for names", only(names=lambda names: names.astype(object)), wrong
    yield "no volumes", only(volumes=lambda _: None), wrong
    yield "volumes under another name", with_arrays(lambda found: {"volumes": None, "images": found["volumes"]}), wrong
    yield "compressed", with_arrays(lambda _: {}, compressed=True), reads()
    yield "other arrays", with_arrays(lambda _: {"mine": np.zeros(3)}), reads()
    yield "in columns", only(volumes=np.asfortranarray), reads()
    yield "the other byte order", only(volumes=lambda v: v.astype(">i2"), diameter_mm=lambda d: d.astype(">f8")), reads()


def _shapes() -> Iterator[tuple[str, Change, Expect]]:
    wrong = refused(NAME)
    yield "no sample", with_arrays(lambda found: {name: array[:0] for name, array in found.items()}), wrong
    yield "one volume without an axis of samples", only(volumes=lambda v: v[0]), wrong
    yield "5 axes", only(volumes=lambda v: v[..., None]), wrong
    yield "no voxels", only(volumes=lambda v: v[:, :0], masks=lambda m: m[:, :0]), wrong
    yield "one number", only(volumes=lambda v: v[0, 0, 0, 0]), wrong
    for name in ("masks", "names", "groups", "categories", "diameter_mm", "spacing_mm"):
        yield f"{name} of five", only(**{name: lambda array: array[:5]}), refused(NAME, name)
    yield "diameters in a column", only(diameter_mm=lambda d: d[:, None]), reads_or_refused(NAME, "diameter_mm")
    yield "spacing of all", only(spacing_mm=lambda s: s[0]), reads_or_refused(NAME, "spacing_mm")
    yield "two spacings", only(spacing_mm=lambda s: s[:, :2]), refused(NAME, "spacing_mm")


def _values() -> Iterator[tuple[str, Change, Expect]]:
    lost = left_out(GONE, PLACE)
    for kind in (np.int32, np.int64, np.float32, np.float64):
        yield f"{kind.__name__}", only(volumes=lambda v, kind=kind: v.astype(kind)), reads()
    yield "complex numbers", only(volumes=lambda v: v.astype(complex)), refused()
    yield "text for voxels", only(volumes=lambda v: v.astype(str)), refused()
    yield "dates for voxels", only(volumes=lambda v: v.astype("M8[s]")), refused()
    yield "NaN in one", only(volumes=second(np.nan)), lost
    yield "infinity in one", only(volumes=second(np.inf)), lost
    yield "a billion in one", only(volumes=second(1e9)), lost
    yield "0 to 1 in all", only(volumes=lambda v: (v.clip(-1000, 400) + 1000) / 1400), refused("volumes[0]")
    yield "truth values", only(volumes=lambda v: v > -400), refused("volumes[0]")
    for value in (0.0, -3.0, np.nan, np.inf, 1e30, 1e308):
        yield f"diameter {value:g}", only(diameter_mm=second(value)), lost
    for value in (0.0, -1.0, np.nan, 1e30):
        yield f"spacing {value:g}", only(spacing_mm=second(value)), lost
    yield "spacing 1e-30", only(spacing_mm=second(1e-30)), lost
    yield "diameters as text", only(diameter_mm=lambda d: d.astype(str)), reads()
    yield "diameters as words", only(diameter_mm=lambda d: np.array([f"{x:g} mm" for x in d])), refused("diameter_mm")
    yield "masks of 255", only(masks=lambda m: 255 * m), reads()
    yield "masks of truth values", only(masks=lambda m: m.astype(bool)), reads()
    soft = only(masks=lambda m: np.where(m, 0.9, 0.1))
    yield "masks of probabilities", soft, reads_or_refused(NAME)
    yield "names twice", only(names=lambda n: np.array(["n0", *n[1:-1], "n0"])), refused(NAME, "names")
    yield "names as bytes", only(names=lambda n: n.astype("S")), reads_or_refused(NAME)
    yield "groups as bytes", only(groups=lambda n: n.astype("S")), reads_or_refused(NAME)
    yield (
        "groups as numbers",
        only(groups=lambda g: np.array([int(p[1:]) for p in g])),
        reads(only(groups=lambda g: np.array([p[1:] for p in g]))),
    )
    odd = only(names=lambda n: np.array(["a\nb", *n[1:]]))
    yield "a line end in a name", odd, reads(odd)
    yield (
        "nothing but volumes",
        with_arrays(lambda found: dict.fromkeys([name for name in found if name != "volumes"])),
        refused("diameter_mm"),
    )


def cases() -> Iterator[Case]:
    """All cases of arrays in one file."""
    for number, (name, change, expect) in enumerate((*_files(), *_shapes(), *_values())):
        commands = f"prepare, {('evaluate', 'describe', 'evaluate', 'describe', 'sweep')[number % 5]}"
        yield Case(f".npz: {name}", "npz", change, on(commands, expect), root=lambda folder: str(folder / NAME))
    segmented = on("segment", refused(NAME))
    yield Case(".npz: for a segmentation", "npz", lambda _: None, segmented, root=lambda folder: str(folder / NAME))
    other = reads_or_leaves_out(GONE, NAME)
    upper = on("prepare, describe", Expect(other.readings, True, ("ALL.NPZ",)))
    yield Case(
        ".npz: the ending .NPZ",
        "npz",
        lambda folder: (folder / NAME).rename(folder / "ALL.NPZ"),
        upper,
        renamed=True,
        root=lambda folder: str(folder / "ALL.NPZ"),
    )

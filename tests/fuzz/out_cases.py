"""Places to write to that cannot be written, or that hold something already."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.fuzz.cases import STORAGE_FAILED, Case, Change, on, reads, refused, unchanged


def _file(folder: Path) -> None:
    (folder.parent / "out").write_text("mine\n")


def _full(folder: Path) -> None:
    (folder.parent / "out").mkdir()
    (folder.parent / "out" / "thesis.tex").write_text("mine\n")


def _around(folder: Path) -> None:
    (folder.parent / "out").symlink_to(folder.parent / "out")


PLACES: dict[str, tuple[Change, str]] = {
    "a file": (_file, "{folder}/../out"),
    "below a file": (_file, "{folder}/../out/deeper"),
    "two levels below a file": (_file, "{folder}/../out/a/b"),
    "a link to itself": (_around, "{folder}/../out"),
    "/dev/full": (unchanged, "/dev/full"),
    "/proc": (unchanged, "/proc/out"),
    "10,000 characters": (unchanged, "{folder}/../" + "x" * 10_000),
}


def cases() -> Iterator[Case]:
    """All cases of places to write to."""
    for name, (change, place) in PLACES.items():
        options, expect = ("--out", place), refused(place.rpartition("/")[2][:20])
        yield Case(f"--out: {name}", "cubes", change, on("prepare, describe, insert", expect), options)
        yield Case(f"--out: {name}", "generator", change, on("generate", expect), options)
        if name == "/dev/full":  # a file can be there, and is full
            expect = replace(expect, code=STORAGE_FAILED)
        if name != "a file":  # `evaluate` and `export` replace a file
            yield Case(f"--out, a file: {name}", "cubes", change, on("evaluate", expect), options)
            yield Case(f"--out, a file: {name}", "nodules", change, on("export", expect), options)
    kept = ("--out", "{folder}/../out")
    yield Case("--out: a folder with another file", "cubes", _full, on("insert", refused("out")), kept)
    yield Case("--out: a folder with another file", "generator", _full, on("generate", refused("out")), kept)
    odd = ("--out", "{folder}/../a new [folder] ü")
    yield Case("--out: odd characters", "cubes", unchanged, on("prepare", reads()), odd)

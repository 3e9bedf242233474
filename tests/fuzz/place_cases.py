"""Odd names of volumes and folders, files beside the volumes, wrong folders, and places that cannot be written to."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.fuzz.cases import (
    STORAGE_FAILED,
    Case,
    Change,
    Expect,
    Reading,
    left_out,
    on,
    reads,
    reads_or_refused,
    refused,
    unchanged,
)
from tests.fuzz.changes import APPLE_DOUBLE, both, cell, content, gone, image, instead, linked, moved, without_row
from tests.fuzz.folders import CSV, NODULES, hu

FIRST, LAST = 1, 6
"""Rows of the CSV. Names that come before or after all others keep the order of the volumes."""
ODD_NAMES = {
    FIRST: 'a b/it\'s/"a"/a,b/a;b/-rf/--help/100%s/[bold]a[red]/*/$HOME/#1/a&b<c>/a..b/.a/007/=1+1/N1',
    LAST: "{0}{name}/~a/|a`b`/" + "z" * 193 + "/🫁🫁/结节/\u202etfel/ü/zu\u0308",
}
"""Odd names of volumes by their row, divided by slashes."""
MAY_BE_REFUSED = "a\nb/a\tb/a:b/a\\b"


def renamed(row: int, name: str, listed: str | None = None) -> Change:
    """Gives the volume of a row and its mask another name, and lists it by that name or by another one."""
    files = (moved(f"{folder}/n{row - 1}.nii.gz", f"{folder}/{name}.nii.gz") for folder in ("images", "masks"))
    return both(*files, cell("file", f"{listed or name}.nii.gz", row))


def _names() -> Iterator[tuple[str, Change, str, Expect]]:
    odd = [(row, name, reads()) for row, names in ODD_NAMES.items() for name in names.split("/")]
    either = Expect((Reading(), Reading(without_row(FIRST), ("b.nii.gz",))), True, ("b.nii.gz",))
    odd += [(FIRST, name, either) for name in MAY_BE_REFUSED.split("/")]
    for number, (row, name, expect) in enumerate(odd):
        commands = f"prepare, segment, {('describe', 'evaluate', 'describe')[number % 3]}"
        yield f"{name[:20]!r}", renamed(row, name), commands, expect
    either = Expect((Reading(), Reading(without_row(LAST), ("nii.gz",))), True, ("nii.gz",))
    yield "composed in the CSV, decomposed on the disk", renamed(LAST, "zu\u0308", "zü"), "prepare, segment", either
    for name, file, place, command in (
        ("a line end", "a\nb", "b.nii.gz", "evaluate"),
        ("quotes", "a'b\"c", "a'b\"c.nii.gz", "segment"),
        ("markup", "[bold]a[red]", "[bold]a[red].nii.gz", "train"),
    ):
        empty = both(renamed(FIRST, file), content(f"images/{file}.nii.gz", ""))
        lost = left_out(without_row(FIRST), place)
        yield f"{name}, of a volume of 0 bytes", empty, f"prepare, segment, {command}", lost


def _cells() -> Iterator[Case]:
    long = cell("file", "z" * 300 + ".nii.gz")
    yield Case("name: 300 characters, missing", "cubes", long, on("prepare, segment, sweep", left_out(without_row(), "zzz")))
    for column in ("patient", "category"):
        for name, text in {"a line end": "a\nb", "emoji": "🫁", "1,000 characters": "x" * 1000, "a formula": "=1+1"}.items():
            change = cell(column, text)
            yield Case(f"{column}: {name}", "cubes", change, on("prepare, evaluate, describe", reads(change)))


FOLDERS = 'my data (1)/it\'s "mine"/a,b/a=b/-data/🫁 结节 ü/a\nb/100%s{0}/[bold]/*/.data/data.npz/data.nii.gz/' + "d" * 200
"""Odd names of folders, divided by slashes."""


def _folders() -> Iterator[Case]:
    for number, place in enumerate(FOLDERS.split("/")):
        others, name = ("sweep", "train unet", "evaluate", "describe")[number % 4], f"{place[:20]!r}"
        expect = on(f"prepare, segment, {others}", reads())
        if place.endswith(".npz"):
            expect["segment"] = reads_or_refused(place)
        yield Case(f"folder's name: {name}", "cubes", unchanged, expect, place=place)
        if set(place) & set("\n%['"):
            expect = on("prepare, segment, evaluate", refused(CSV))
            yield Case(f"folder's name: {name}; the CSV is empty", "cubes", content(CSV, ""), expect, place=place)


BESIDE: dict[str, Change] = {
    "._ files of macOS": both(
        *(content(f"{name}", APPLE_DOUBLE) for name in ("images/._n0.nii.gz", "masks/._n0.nii.gz", f"._{CSV}"))
    ),
    ".DS_Store and Thumbs.db": both(
        *(content(name, APPLE_DOUBLE) for name in ("images/.DS_Store", ".DS_Store", "images/Thumbs.db"))
    ),
    "a volume that is not listed": content("images/n9.nii.gz", ""),
    "a mask without a volume": content("masks/n9.nii.gz", ""),
    "another CSV": both(content("nodules (1).csv", "x,y\n1,2\n"), content(f"{CSV}~", "file\n")),
    "a folder in the folder": image("deep/er/images/n0.nii.gz", hu(NODULES[1].field())),
    "a link that goes round": lambda folder: (folder / "images" / "round").symlink_to(folder),
    "a name that is not UTF-8": lambda folder: (folder / "images" / os.fsdecode(b"\xff.nii.gz")).touch(),
    "a pipe": lambda folder: os.mkfifo(folder / "images" / "pipe.nii.gz"),
}
"""Files that systems and people leave beside volumes, and that no CSV lists."""

WRONG: dict[str, Change] = {
    "missing": gone(),
    "empty": instead(".", Path.mkdir),
    "a file": instead(".", lambda path: path.write_text("a file\n")),
    "a link to itself": instead(".", lambda path: path.symlink_to(path)),
    "a pipe": instead(".", os.mkfifo),
}
COMMANDS_ON = {
    ("the folder", "cubes"): "prepare, inspect, evaluate, segment, train, train unet, augment, describe, sweep, plan, insert, "
    "judge, judge real",
    ("the scans", "chest"): "insert into, generate into",
    ("the scans", "luna16"): "prepare, evaluate",
    ("the run", "nodules"): "evaluate run, describe with, export, generate, report",
}
"""All commands that take a folder, by its kind."""

ROOTS = {
    "a slash at the end": ("{folder}/", reads()),
    "relative": ("{place}", reads()),
    "relative, with a point": ("./{place}/.", reads()),
    "with two points": ("{folder}/images/..", reads()),
    "empty": ("", refused()),
    "one level too high": ("{folder}/..", refused(CSV)),
    "one level too low": ("{folder}/images", refused(CSV)),
    "the CSV itself": (f"{{folder}}/{CSV}", refused(CSV)),
    "a user's home that is not there": ("~nobody9/data", refused("~nobody9")),
    "10,000 characters": ("{folder}/" + "x" * 10_000, refused("xxx")),
}


def _folder_linked(folder: Path) -> None:
    folder.symlink_to(folder.rename(folder.with_name("other")))


def _paths() -> Iterator[Case]:
    for (what, base), commands in COMMANDS_ON.items():
        for command in commands.split(", "):  # a case for each, because the table thins the commands of a case
            for name, change in WRONG.items():
                yield Case(f"{what}: {name}", base, change, on(command, refused("data")))
    yield Case("the folder: a link", "cubes", _folder_linked, on("prepare, segment, describe", reads()))
    for number, (name, (root, expect)) in enumerate(ROOTS.items()):
        commands = f"prepare, segment, {('describe', 'evaluate', 'sweep')[number % 3]}"
        if name == "empty":
            commands = "prepare, segment, sweep"
        yield Case(f"the path: {name}", "cubes", unchanged, on(commands, expect), root=root)
    either = reads_or_refused("data.npz")
    yield Case("the path: an .npz that is a folder", "cubes", unchanged, on("prepare, describe", either), place="data.npz")


def _lists() -> Iterator[Case]:
    """Places of the CSV."""
    yield Case("the CSV: a folder", "cubes", instead(CSV, Path.mkdir), on("prepare, segment, describe, insert", refused(CSV)))
    yield Case("the CSV: a link", "cubes", linked(CSV, "../other.csv"), on("prepare, segment, describe", reads()))
    for name, change, commands, path, expect in (
        ("elsewhere", moved(CSV, "../other.csv"), "prepare, segment, evaluate, describe", "{folder}/../other.csv", reads()),
        ("another, missing", unchanged, "prepare, segment, sweep", "mine.csv", refused("mine.csv")),
        ("a volume", unchanged, "prepare, segment, sweep", "images/n0.nii.gz", refused("n0.nii.gz")),
        ("/dev/null", unchanged, "prepare, segment", "/dev/null", refused("/dev/null")),
    ):
        yield Case(f"the CSV: {name}", "cubes", change, on(commands, expect), ("--data.csv", path))


OUT = "{folder}/../out"
UNWRITABLE: dict[str, tuple[Change, str]] = {
    "a file": (content("../out", "mine\n"), OUT),
    "below a file": (content("../out", "mine\n"), f"{OUT}/deeper"),
    "two levels below a file": (content("../out", "mine\n"), f"{OUT}/a/b"),
    "a link to itself": (lambda folder: (folder.parent / "out").symlink_to(folder.parent / "out"), OUT),
    "/dev/full": (unchanged, "/dev/full"),
    "/proc": (unchanged, "/proc/out"),
    "10,000 characters": (unchanged, "{folder}/../" + "x" * 10_000),
}


def _outs() -> Iterator[Case]:
    """Places to write to."""
    for name, (change, place) in UNWRITABLE.items():
        options, expect = ("--out", place), refused(place.rpartition("/")[2][:20])
        yield Case(f"--out: {name}", "cubes", change, on("prepare, describe, insert", expect), options)
        yield Case(f"--out: {name}", "generator", change, on("generate", expect), options)
        if name == "/dev/full":  # a file can be there, and is full
            expect = replace(expect, code=STORAGE_FAILED)
        if name != "a file":  # `evaluate` and `export` replace a file
            yield Case(f"--out, a file: {name}", "cubes", change, on("evaluate", expect), options)
            yield Case(f"--out, a file: {name}", "nodules", change, on("export", expect), options)
    full = content("../out/thesis.tex", "mine\n")
    for base, command in {"cubes": "insert", "generator": "generate"}.items():
        yield Case("--out: a folder with another file", base, full, on(command, refused("out")), ("--out", OUT))
    odd = ("--out", "{folder}/../a new [folder] ü")
    yield Case("--out: odd characters", "cubes", unchanged, on("prepare", reads()), odd)


def cases() -> Iterator[Case]:
    """All cases of names and places."""
    for name, change, commands, expect in _names():
        yield Case(f"name: {name}", "cubes", change, on(commands, expect), renamed=True)
    yield from _cells()
    yield from _folders()
    for name, change in BESIDE.items():
        yield Case(f"beside: {name}", "cubes", change, on("prepare, segment, describe", reads()))
    yield from _paths()
    yield from _lists()
    yield from _outs()

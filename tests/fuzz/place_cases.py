"""Odd names of volumes and folders, files beside the volumes, wrong folders, and places that cannot be written to."""

import os
from functools import partial
from pathlib import Path

from tests.fuzz.cases import Expect, itself, left_out, reads, refused, table
from tests.fuzz.changes import (
    APPLE_DOUBLE,
    both,
    cell,
    content,
    gone,
    image,
    instead,
    linked,
    loop,
    moved,
    unchanged,
    without_row,
)
from tests.volume_folders import CSV, NODULES

READERS = "prepare, segment|describe|evaluate|sweep"
FIRST, LAST = 1, 6
"""Rows of the CSV. Names that come before or after all others keep the order of the volumes."""
ODD_NAMES = {
    FIRST: 'a b/it\'s/"a"/a,b/a;b/-rf/--help/100%s/[bold]a[red]/*/$HOME/#1/a&b<c>/a..b/.a/007/=1+1/N1',
    LAST: "{0}{name}/~a/|a`b`/" + "z" * 193 + "/🫁🫁/结节/\u202etfel/ü/zu\u0308",
}
"""Odd names of volumes by their row, divided by slashes."""
EMPTY = {"a\nb": "b.nii.gz", "a'b\"c": "a'b\"c.nii.gz", "[bold]a[red]": "[bold]a[red].nii.gz"}


def renamed(row, name, listed=None):
    """Gives the volume of a row and its mask another name, and lists it by that name or by another one."""
    files = (moved(f"{folder}/n{row - 1}.nii.gz", f"{folder}/{name}.nii.gz") for folder in ("images", "masks"))
    return both(*files, cell("file", f"{listed or name}.nii.gz", row))


names = partial(table, "cubes", "name", READERS, renamed=True)
CASES = [
    *(
        case
        for row, odd in ODD_NAMES.items()
        for case in names(reads(), {name[:20]: renamed(row, name) for name in odd.split("/")})
    ),
    *names(
        Expect(unchanged, without_row(FIRST), ("b.nii.gz",)),
        {repr(name): renamed(FIRST, name) for name in ("a\nb", "a\tb", "a:b", "a\\b")},
    ),
    *names(
        Expect(unchanged, without_row(LAST), ("nii.gz",)),
        {"composed in the CSV, decomposed on the disk": renamed(LAST, "zu\u0308", "zü")},
    ),
    *names(
        left_out(without_row(FIRST)),
        {
            f"{place}: 0 bytes": both(renamed(FIRST, name), content(f"images/{name}.nii.gz", ""))
            for name, place in EMPTY.items()
        },
    ),
    *names(left_out(without_row(), "zzz"), {"300 characters, missing": cell("file", "z" * 300 + ".nii.gz")}),
]
TEXTS = {"a line end": "a\nb", "emoji": "🫁", "1,000 characters": "x" * 1000, "a formula": "=1+1"}
for column in ("patient", "category"):
    for what, text in TEXTS.items():
        CASES += table("cubes", column, "prepare, evaluate|describe", reads(itself), {what: cell(column, text)})

ODD_FOLDERS = 'my data (1)/it\'s "mine"/a,b/a=b/-data/🫁 结节 ü/a\nb/100%s{0}/[bold]/*/.data/data.npz/data.nii.gz/' + "d" * 200
"""Odd names of folders, divided by slashes."""
for place in ODD_FOLDERS.split("/"):
    commands = "prepare, sweep|train unet|evaluate|describe" + ", segment" * (place != "data.npz")
    CASES += table("cubes", "folder's name", commands, reads(), {repr(place[:20]): unchanged}, place=place)
    empty = {f"{place[:20]!r}; the CSV is empty": content(CSV, "")}
    commands = "prepare, evaluate" + "|segment" * (place != "data.npz")
    CASES += table("cubes", "folder's name", commands, refused(CSV), empty, place=place)

CASES += table(
    "cubes",
    "beside",
    "prepare, segment|describe",
    reads(),
    {
        "._ files of macOS": both(
            *(content(name, APPLE_DOUBLE) for name in ("images/._n0.nii.gz", "masks/._n0.nii.gz", f"._{CSV}"))
        ),
        ".DS_Store and Thumbs.db": both(
            *(content(name, APPLE_DOUBLE) for name in ("images/.DS_Store", ".DS_Store", "images/Thumbs.db"))
        ),
        "a volume that is not listed": content("images/n9.nii.gz", ""),
        "a mask without a volume": content("masks/n9.nii.gz", ""),
        "another CSV": both(content("nodules (1).csv", "x,y\n1,2\n"), content(f"{CSV}~", "file\n")),
        "a folder in the folder": image("deep/er/images/n0.nii.gz", NODULES[1].field()),
        "a link that goes round": lambda folder: (folder / "images" / "round").symlink_to(folder),
        "a name that is not UTF-8": lambda folder: (folder / "images" / os.fsdecode(b"\xff.nii.gz")).touch(),
        "a pipe": lambda folder: os.mkfifo(folder / "images" / "pipe.nii.gz"),
    },
)

WRONG = {
    "missing": gone(),
    "empty": instead(".", Path.mkdir),
    "a file": instead(".", lambda path: path.write_text("a file\n")),
    "a link to itself": instead(".", loop),
    "a pipe": instead(".", os.mkfifo),
}
COMMANDS_ON = {
    "cubes": "prepare, inspect, evaluate, segment, train, train unet, augment, describe, sweep, plan, insert, "
    "judge, judge real",
    "chest": "insert into, generate into",
    "luna16": "prepare, evaluate",
    "nodules": "evaluate run, describe with, export, generate, report",
}
"""All commands that take a folder, by its kind."""
ROOTS = {
    "a slash at the end": ("{folder}/", reads()),
    "relative": ("{place}", reads()),
    "relative, with a point": ("./{place}/.", reads()),
    "with two points": ("{folder}/images/..", reads()),
    "one level too high": ("{folder}/..", refused(CSV)),
    "one level too low": ("{folder}/images", refused(CSV)),
    "the CSV itself": (f"{{folder}}/{CSV}", refused(CSV)),
    "a user's home that is not there": ("~nobody9/data", refused("~nobody9")),
    "10,000 characters": ("{folder}/" + "x" * 10_000, refused("xxx")),
}
CASES += [
    *table(
        "cubes",
        "the folder",
        "prepare, segment, describe",
        reads(),
        {"a link": lambda folder: folder.symlink_to(folder.rename(folder.with_name("other")))},
    ),
    *table("cubes", "the path", "prepare, segment, sweep", refused(), {"empty": unchanged}, root=""),
]
for base, commands in COMMANDS_ON.items():
    CASES += table(base, f"{base}, the folder", commands, refused("data"), WRONG)
for what, (root, expect) in ROOTS.items():
    CASES += table("cubes", "the path", READERS, expect, {what: unchanged}, root=root)

lists = partial(table, "cubes", "the CSV")
CASES += [
    *lists("prepare, segment|describe|insert", refused(CSV), {"a folder": instead(CSV, Path.mkdir)}),
    *lists("prepare, segment|describe", reads(), {"a link": linked(CSV, "../other.csv")}),
    *lists(READERS, reads(), {"elsewhere": moved(CSV, "../other.csv")}, options={"data.csv": "{folder}/../other.csv"}),
    *lists(READERS, refused("mine.csv"), {"another, missing": unchanged}, options={"data.csv": "mine.csv"}),
    *lists(READERS, refused("n0.nii.gz"), {"a volume": unchanged}, options={"data.csv": "images/n0.nii.gz"}),
    *lists(READERS, refused("/dev/null"), {"/dev/null": unchanged}, options={"data.csv": "/dev/null"}),
]

for column in ("category_column", "group_column"):
    CASES += lists(
        READERS.replace("|describe", ""), refused(CSV, "kind"), {f"no {column}": unchanged}, options={f"data.{column}": "kind"}
    )

MINE = content("../out", "mine\n")
UNWRITABLE = {
    "a file": (MINE, "{folder}/../out"),
    "below a file": (MINE, "{folder}/../out/deeper"),
    "a link to itself": (lambda folder: loop(folder.parent / "out"), "{folder}/../out"),
    "/dev/full": (unchanged, "/dev/full"),
    "/proc": (unchanged, "/proc/out"),
    "10,000 characters": (unchanged, "{folder}/../" + "x" * 10_000),
}
for what, (change, place) in UNWRITABLE.items():
    expect = refused(place.rpartition("/")[2][:20])
    of_a_file = expect._replace(code=74 if what == "/dev/full" else 2)  # a file can be there, and is full
    out = partial(table, name="--out", changes={what: change}, options={"out": place})
    CASES += out("cubes", commands="prepare, describe, insert", expect=expect)
    CASES += out("generator", commands="generate", expect=expect)
    if what != "a file":  # which `evaluate` and `export` replace
        CASES += out("cubes", commands="evaluate", expect=of_a_file)
        CASES += out("nodules", commands="export", expect=of_a_file)
CASES += table("cubes", "--out", "prepare", reads(), {"odd": unchanged}, options={"out": "{folder}/../a new [folder] ü"})

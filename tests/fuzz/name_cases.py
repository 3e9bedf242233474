"""Odd names of volumes and folders, and files that lie beside the volumes."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.cases import Both, Case, Change, Expect, left_out, on, reads, reads_or_refused, unchanged
from tests.fuzz.csv_cases import Cell, Without
from tests.fuzz.folders import NODULES, hu, write_image
from tests.fuzz.volume_cases import content

FIRST, LAST = 1, 6
"""Rows of the CSV. Names that come before or after all others keep the order of the volumes."""


@dataclass(frozen=True)
class Rename:
    """Gives a volume and its mask another name.

    Attributes:
      row: of the volume in the CSV.
      name: on the disk.
      listed: in the CSV; the same name if empty.
    """

    row: int
    name: str
    listed: str = ""

    def __call__(self, folder: Path) -> None:
        """Renames the files and the row."""
        for below in ("images", "masks"):
            (folder / below / f"n{self.row - 1}.nii.gz").rename(folder / below / self.name)
        Cell("file", self.listed or self.name, self.row)(folder)


NAMES = {
    "a space": (FIRST, "a b.nii.gz"),
    "a quote": (FIRST, "it's.nii.gz"),
    "double quotes": (FIRST, '"a".nii.gz'),
    "a comma": (FIRST, "a,b.nii.gz"),
    "a semicolon": (FIRST, "a;b.nii.gz"),
    "a leading hyphen": (FIRST, "-rf.nii.gz"),
    "two leading hyphens": (FIRST, "--help.nii.gz"),
    "a percent sign": (FIRST, "100%s.nii.gz"),
    "braces": (LAST, "{0}{name}.nii.gz"),
    "brackets": (FIRST, "[bold]a[red].nii.gz"),
    "a star": (FIRST, "*.nii.gz"),
    "a variable": (FIRST, "$HOME.nii.gz"),
    "a tilde": (LAST, "~a.nii.gz"),
    "a hash": (FIRST, "#1.nii.gz"),
    "an ampersand": (FIRST, "a&b<c>.nii.gz"),
    "a bar": (LAST, "|a`b`.nii.gz"),
    "two points": (FIRST, "a..b.nii.gz"),
    "a leading point": (FIRST, ".a.nii.gz"),
    "digits": (FIRST, "007.nii.gz"),
    "an equals sign": (FIRST, "=1+1.nii.gz"),
    "200 characters": (LAST, "z" * 193 + ".nii.gz"),
    "emoji": (LAST, "🫁🫁.nii.gz"),
    "Chinese": (LAST, "结节.nii.gz"),
    "right to left": (LAST, "\u202etfel.nii.gz"),
    "umlauts, composed": (LAST, "ü.nii.gz"),
    "umlauts, decomposed": (LAST, "zu\u0308.nii.gz"),
    "another case of the same name": (FIRST, "N1.nii.gz"),
}
MAY_BE_REFUSED = {
    "a line end": (FIRST, "a\nb.nii.gz"),
    "a tab": (FIRST, "a\tb.nii.gz"),
    "a colon": (FIRST, "a:b.nii.gz"),
    "a backslash": (FIRST, "a\\b.nii.gz"),
}


def _volumes() -> Iterator[Case]:
    for number, (name, (row, file)) in enumerate((NAMES | MAY_BE_REFUSED).items()):
        expect = reads_or_refused("b.nii.gz") if name in MAY_BE_REFUSED else reads()
        if name in MAY_BE_REFUSED:
            expect = Expect((*expect.readings, *left_out(Without(row), "b.nii.gz").readings), True, ("b.nii.gz",))
        third = ("describe", "evaluate", "describe")[number % 3]
        yield Case(f"name: {name}", "cubes", Rename(row, file), on(f"prepare, segment, {third}", expect), renamed=True)
    either = Expect((*reads().readings, *left_out(Without(LAST), "nii.gz").readings), True, ("nii.gz",))
    other = Rename(LAST, "zu\u0308.nii.gz", "zü.nii.gz")
    yield Case(
        "name: composed in the CSV, decomposed on the disk", "cubes", other, on("prepare, segment", either), renamed=True
    )
    empty = Both(Rename(FIRST, "a\nb.nii.gz"), content(b"", "images/a\nb.nii.gz"))
    lost = left_out(Without(FIRST), "b.nii.gz")
    yield Case("name: a line end, of a volume of 0 bytes", "cubes", empty, on("prepare, segment, evaluate", lost), renamed=True)
    quoted = Both(Rename(FIRST, "a'b\"c.nii.gz"), content(b"", "images/a'b\"c.nii.gz"))
    lost = left_out(Without(FIRST), "a'b\"c.nii.gz")
    yield Case("name: quotes, of a volume of 0 bytes", "cubes", quoted, on("prepare, segment", lost), renamed=True)
    long = Cell("file", "z" * 300 + ".nii.gz")
    yield Case("name: 300 characters, missing", "cubes", long, on("prepare, segment, sweep", left_out(Without(), "zzz")))
    markup = Both(Rename(FIRST, "[bold]a[red].nii.gz"), content(b"", "images/[bold]a[red].nii.gz"))
    lost = left_out(Without(FIRST), "[bold]a[red].nii.gz")
    yield Case("name: markup, of a volume of 0 bytes", "cubes", markup, on("prepare, segment, train", lost), renamed=True)


def _texts() -> Iterator[Case]:
    for column in ("patient", "category"):
        for name, text in {"a line end": "a\nb", "emoji": "🫁", "1,000 characters": "x" * 1000, "a formula": "=1+1"}.items():
            change = Cell(column, text)
            yield Case(f"{column}: {name}", "cubes", change, on("prepare, evaluate, describe", reads(change)))


FOLDERS = {
    "spaces": "my data (1)",
    "quotes": 'it\'s "mine"',
    "a comma": "a,b",
    "an equals sign": "a=b",
    "a leading hyphen": "-data",
    "emoji": "🫁 结节 ü",
    "a line end": "a\nb",
    "a percent sign": "100%s{0}",
    "brackets": "[bold]",
    "a star": "*",
    "200 characters": "d" * 200,
    "the ending .npz": "data.npz",
    "the ending .nii.gz": "data.nii.gz",
    "a leading point": ".data",
}


def _folders() -> Iterator[Case]:
    for number, (name, place) in enumerate(FOLDERS.items()):
        others = ("sweep", "train unet", "evaluate", "describe")[number % 4]
        expect = on(f"prepare, segment, {others}", reads())
        if name == "the ending .npz":
            expect["segment"] = reads_or_refused(place)
        yield Case(f"folder's name: {name}", "cubes", unchanged, expect, place=place)
        if name in ("a line end", "a percent sign", "brackets", "quotes"):
            broken = content(b"", "nodules.csv")
            expect = on("prepare, segment, evaluate", Expect((), True, ("nodules.csv",)))
            yield Case(f"folder's name: {name}; the CSV is empty", "cubes", broken, expect, place=place)


def beside() -> Iterator[tuple[str, Change]]:
    """Files that systems and people leave beside volumes, and that no CSV lists."""

    def put(name: str, data: bytes = b"\0\5\x16\7Mac OS X") -> Change:
        def change(folder: Path) -> None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)

        return change

    yield "._ files of macOS", Both(put("images/._n0.nii.gz"), Both(put("masks/._n0.nii.gz"), put("._nodules.csv")))
    yield ".DS_Store and Thumbs.db", Both(put("images/.DS_Store"), Both(put(".DS_Store"), put("images/Thumbs.db")))
    yield "a volume that is not listed", put("images/n9.nii.gz", b"")
    yield "a mask without a volume", put("masks/n9.nii.gz", b"")
    yield "another CSV", Both(put("nodules (1).csv", b"x,y\n1,2\n"), put("nodules.csv~", b"file\n"))
    yield "a folder in the folder", lambda folder: write_image(folder / "deep/er/images/n0.nii.gz", hu(NODULES[1].field()))
    yield "a link that goes round", lambda folder: (folder / "images" / "round").symlink_to(folder)
    yield "a name that is not UTF-8", lambda folder: Path(os.fsdecode(os.fsencode(folder / "images") + b"/\xff.nii.gz")).touch()
    yield "a pipe", lambda folder: os.mkfifo(folder / "images" / "pipe.nii.gz")


def cases() -> Iterator[Case]:
    """All cases of names."""
    yield from _volumes()
    yield from _texts()
    yield from _folders()
    for name, change in beside():
        yield Case(f"beside: {name}", "cubes", change, on("prepare, segment, describe", reads()))

"""Folders that are not there, are no folders, or are not the right ones, for every command that takes one."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree

from tests.fuzz.cases import Case, Change, Expect, on, reads, reads_or_refused, refused, unchanged
from tests.fuzz.folders import CSV

OF_CUBES = "prepare, inspect, evaluate, segment, train, train unet, augment, describe, sweep, plan, insert, judge, judge real"
INTO = "insert into, generate into"
OF_RUNS = "evaluate run, describe with, export, generate, report"


def _gone(folder: Path) -> None:
    rmtree(folder)


def _empty(folder: Path) -> None:
    rmtree(folder)
    folder.mkdir()


def _file(folder: Path) -> None:
    rmtree(folder)
    folder.write_text("a file\n")


def _round(folder: Path) -> None:
    rmtree(folder)
    folder.symlink_to(folder)


def _pipe(folder: Path) -> None:
    rmtree(folder)
    os.mkfifo(folder)


WRONG: dict[str, Change] = {"missing": _gone, "empty": _empty, "a file": _file, "a link to itself": _round, "a pipe": _pipe}


def _csv_as_folder(folder: Path) -> None:
    (folder / CSV).unlink()
    (folder / CSV).mkdir()


def _linked(folder: Path) -> None:
    other = folder.with_name("other")
    folder.rename(other)
    folder.symlink_to(other)


def _csv_linked(folder: Path) -> None:
    other = folder.with_name("other.csv")
    (folder / CSV).rename(other)
    (folder / CSV).symlink_to(other)


def _csv_elsewhere(folder: Path) -> None:
    (folder / CSV).rename(folder.with_name("other.csv"))


def _lists() -> Iterator[Case]:
    """Places of the CSV."""
    yield Case("the CSV: a folder", "cubes", _csv_as_folder, on("prepare, segment, describe, insert", refused(CSV)))
    yield Case("the CSV: a link", "cubes", _csv_linked, on("prepare, segment, describe", reads()))
    elsewhere = ("--data.csv", "{folder}/../other.csv")
    yield Case("the CSV: elsewhere", "cubes", _csv_elsewhere, on("prepare, segment, evaluate, describe", reads()), elsewhere)
    missing = ("--data.csv", "mine.csv")
    yield Case("the CSV: another, missing", "cubes", unchanged, on("prepare, segment, sweep", refused("mine.csv")), missing)
    image = ("--data.csv", "images/n0.nii.gz")
    yield Case("the CSV: a volume", "cubes", unchanged, on("prepare, segment, sweep", refused("n0.nii.gz")), image)
    device = ("--data.csv", "/dev/null")
    yield Case("the CSV: /dev/null", "cubes", unchanged, on("prepare, segment", refused("/dev/null")), device)


ROOTS: dict[str, tuple[Callable[[Path], str], Expect]] = {
    "a slash at the end": (lambda folder: f"{folder}/", reads()),
    "relative": (lambda folder: folder.name, reads()),
    "relative, with a point": (lambda folder: f"./{folder.name}/.", reads()),
    "with two points": (lambda folder: f"{folder}/images/..", reads()),
    "empty": (lambda _: "", refused()),
    "one level too high": (lambda folder: str(folder.parent), refused(CSV)),
    "one level too low": (lambda folder: f"{folder}/images", refused(CSV)),
    "the CSV itself": (lambda folder: f"{folder}/{CSV}", refused(CSV)),
    "a user's home that is not there": (lambda _: "~nobody9/data", refused("~nobody9")),
    "a NUL": (lambda folder: f"{folder}\0", refused()),
    "10,000 characters": (lambda folder: f"{folder}/{'x' * 10_000}", refused("xxx")),
}


def cases() -> Iterator[Case]:
    """All cases of places."""
    kinds = {("the folder", "cubes"): OF_CUBES, ("the scans", "chest"): INTO, ("the scans", "luna16"): "prepare, evaluate"}
    for (what, base), commands in {**kinds, ("the run", "nodules"): OF_RUNS}.items():
        for command in commands.split(", "):  # a case for each, because the table thins the commands of a case
            for name, change in WRONG.items():
                yield Case(f"{what}: {name}", base, change, on(command, refused("data")))
    yield Case("the folder: a link", "cubes", _linked, on("prepare, segment, describe", reads()))
    yield from _lists()
    for number, (name, (root, expect)) in enumerate(ROOTS.items()):
        commands = f"prepare, segment, {('describe', 'evaluate', 'sweep')[number % 3]}"
        if name in ("empty", "a NUL"):
            commands = "prepare, segment, sweep"
        yield Case(f"the path: {name}", "cubes", unchanged, on(commands, expect), root=root)
    either = reads_or_refused("data.npz")
    yield Case("the path: an .npz that is a folder", "cubes", unchanged, on("prepare, describe", either), place="data.npz")

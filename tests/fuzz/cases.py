"""A case of the fuzz test: a damaged folder, the commands that read it, and how each of them must end."""

from collections.abc import Mapping
from typing import NamedTuple
from zlib import crc32

from tests.fuzz.changes import Change, unchanged


class Expect(NamedTuple):
    """How a command must end on a changed folder: with the result of a well-formed folder, or with one error line."""

    reads: Change | None = None  # makes that well-formed folder of the clean one
    rest: Change | None = None  # makes the folder without what cannot be used; the output must then hold `names`
    names: tuple[str, ...] | None = None  # what the error line must hold, such as the place; None: it must not be refused
    near: bool = False  # numbers may differ by rounding, because the same field was sampled on another grid
    code: int = 2  # the exit code of a refusal


def reads(like=unchanged, near=False):
    """The folder must be read, as one with another change is; `itself`: it must only be read."""
    return Expect(like, near=near)


def refused(*names):
    """The folder must be refused."""
    return Expect(names=names)


def either(*names, like=unchanged, near=False):
    """The folder may be read or refused."""
    return Expect(like, None, names, near)


def left_out(rest, *names):
    """A part of the folder cannot be used: the command names it and reads the rest, or names it and refuses the folder."""
    return Expect(None, rest, names)


def itself(folder):
    """Stands for the change of the case."""


class Case(NamedTuple):
    """A damaged folder."""

    base: str  # the clean folder that is changed
    name: str
    change: Change  # how it is damaged
    expect: Expect
    commands: list[str]
    options: Mapping[str, object] = {}  # more options, with `{folder}` for the folder
    place: str = "data"  # the folder's name
    root: str | None = None  # the path that the command is given, with `{folder}` and `{place}`
    renamed: bool = False  # volumes have other names than in the clean folder, and names are not compared


def table(base, name, commands, expect, changes, **more):
    """Returns the cases of changes after which commands must end alike. Commands that are divided by bars take turns.

    The turn is a hash of the case's name, so that a further case leaves the others as they are.
    What stands before a colon in a change's name is a place that the error line, or the output, must name too.
    """
    cases: list[Case] = []
    for what, change in changes.items():
        n = crc32(f"{name}: {what}".encode())
        words = [group.split("|")[n % (group.count("|") + 1)] for group in commands.split(", ")]
        names = None if expect.names is None else (*expect.names, *what.split(": ")[:-1])
        like, rest = (change if like is itself else like for like in expect[:2])
        own = expect._replace(reads=like, rest=rest, names=names)
        cases.append(Case(base, f"{name}: {what}", change, own, words, **more))
    return cases

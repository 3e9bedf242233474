"""A case of the fuzz test: a damaged folder, the commands that read it, and how each of them must end."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

BAD_INPUT = 2
STORAGE_FAILED = 74
"""Exit codes of a refusal: the folder is wrong, or the disk is."""

Change = Callable[[Path], object]
"""Changes a folder in place."""


def unchanged(folder: Path) -> None:
    """Leaves a folder as it is."""


class Reading(NamedTuple):
    """A right way to read a changed folder.

    Attributes:
      like: a change of the clean folder that leaves it well-formed. The right result is that of such a folder.
      says: strings that the output must contain, because something was left out.
    """

    like: Change = unchanged
    says: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expect:
    """How a command must end on a changed folder: with one of the right results, or with an error line.

    Attributes:
      readings: the right results; none if the folder cannot be read.
      refuses: whether the command may refuse the folder.
      names: the place of the damage. The error line must contain each of these strings.
      near: whether numbers may differ by rounding, because the same field was sampled on another grid.
      code: the exit code of a refusal.
    """

    readings: tuple[Reading, ...]
    refuses: bool
    names: tuple[str, ...] = ()
    near: bool = False
    code: int = BAD_INPUT


def reads(like: Change = unchanged, near: bool = False) -> Expect:
    """The folder must be read."""
    return Expect((Reading(like),), refuses=False, near=near)


def refused(*names: str) -> Expect:
    """The folder must be refused."""
    return Expect((), True, names)


def reads_or_refused(*names: str, like: Change = unchanged, near: bool = False) -> Expect:
    """The folder may be read or refused."""
    return Expect((Reading(like),), True, names, near)


def left_out(rest: Change, *names: str) -> Expect:
    """A part of the folder cannot be used: the command names it and reads the rest, or names it and refuses the folder."""
    return Expect((Reading(rest, names),), True, names)


def reads_or_leaves_out(rest: Change, *names: str, like: Change = unchanged, near: bool = False) -> Expect:
    """A part of the folder is odd: it may be read rightly, or be left out as in `left_out`."""
    return Expect((Reading(like), Reading(rest, names)), True, names, near)


Row = tuple[str, Change, Expect]
"""The name of a case, its change, and the end that all commands must come to."""


@dataclass(frozen=True)
class Case:
    """A damaged folder.

    Attributes:
      name: what was done to the folder.
      base: the clean folder that is changed (`tests.fuzz.bench.MAKERS`).
      change: how the folder is damaged.
      expect: by command (`tests.fuzz.commands.COMMANDS`), how that must end.
      options: more arguments of the command; `{folder}` stands for the folder.
      place: the name of the folder.
      renamed: whether volumes have other names than in the clean folder; then names are not compared.
      root: the path that the command is given, with `{folder}` and `{place}`; None: the base's.
      apart: whether each call needs a process of its own, because threads of a library print after it.
    """

    name: str
    base: str
    change: Change
    expect: Mapping[str, Expect]
    options: tuple[str, ...] = ()
    place: str = "data"
    renamed: bool = False
    root: str | None = None
    apart: bool = False


def on(commands: str, expect: Expect) -> dict[str, Expect]:
    """The same expectation of several commands, whose names are divided by commas."""
    return dict.fromkeys(commands.split(", "), expect)


OTHERS = ("evaluate", "describe", "evaluate", "sweep", "evaluate", "describe", "train", "describe", "evaluate", "train unet")
"""Commands that take turns, because they are slow."""


def readers(number: int, expect: Expect, segment: Expect | None = None) -> dict[str, Expect]:
    """The commands that read the case of a number: both readers of volumes, and a command of those that take turns.

    Args:
      number: of the case.
      expect: of all commands.
      segment: of the segmentation, if it must end otherwise.
    """
    other = OTHERS[number % len(OTHERS)]
    own = segment or expect
    return {"prepare": expect, other: own if other == "train unet" else expect, "segment": own}

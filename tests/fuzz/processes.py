"""The calls of the fuzz test, divided among processes that share what is prepared once."""

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.bench import Bench, Trial
from tests.fuzz.cases import Case
from tests.fuzz.table import all_cases, thinned


class Asked(NamedTuple):
    """Which calls are tried, and how.

    Attributes:
      only: a regular expression of 'case × command'.
      all: all commands of each case; otherwise two of them.
      apart: each call in a process of its own.
    """

    only: str = ""
    all: bool = False
    apart: bool = False


class Line(NamedTuple):
    """What is printed and counted of a trial."""

    case: str
    command: str
    kind: str
    text: str

    @property
    def failed(self) -> bool:
        """Whether the call did not end as it must."""
        return self.kind.isupper()


def chosen(asked: Asked) -> list[tuple[Case, str]]:
    """The cases that were asked for, each with a command."""
    cases = all_cases() if asked.all else thinned()
    return [(case, command) for case in cases for command in case.expect if re.search(asked.only, f"{case.name} × {command}")]


def trials(asked: Asked, folder: Path, jobs: int) -> Iterator[Line]:
    """Tries the calls in so many processes, and gives what came of them in their order."""
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (asked, folder)) as processes:
        yield from processes.map(_try, range(len(chosen(asked))))


def _begin(asked: Asked, folder: Path) -> None:
    """Prepares a process. The functions of a case cannot be sent to it, so it makes the table itself."""
    bench = Bench(folder / f"process-{os.getpid()}", folder / "shared")
    PREPARED.append((chosen(asked), partial(bench.trial, apart=asked.apart)))


PREPARED: list[tuple[list[tuple[Case, str]], Callable[[Case, str], Trial]]] = []
"""In a process that tries calls: the calls, and what tries one."""


def _try(number: int) -> Line:
    [(calls, tried)] = PREPARED
    trial = tried(*calls[number])
    return Line(trial.case.name, trial.command, trial.verdict.kind, _line(trial))


def _line(trial: Trial) -> str:
    text = f"{trial.verdict.kind:9} {trial.case.name} × {trial.command}, {trial.seconds:.1f} s"
    return "\n          ".join([text, *filter(None, [trial.verdict.text]), *([trial.line] if trial.verdict.failed else [])])

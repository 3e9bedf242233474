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
    """The choice of calls.

    Attributes:
      only: a regular expression of 'case × command'.
      all: all commands of each case; otherwise two of them.
      apart: each call in a process of its own.
    """

    only: str = ""
    all: bool = False
    apart: bool = False


class Line(NamedTuple):
    """The printed result of a trial."""

    case: str
    command: str
    kind: str
    text: str

    @property
    def failed(self) -> bool:
        """Whether the call did not end as it must."""
        return self.kind.isupper()


def chosen(asked: Asked) -> list[tuple[Case, str]]:
    """Returns the chosen cases, each with a command."""
    cases = all_cases() if asked.all else thinned()
    return [(case, command) for case in cases for command in case.expect if re.search(asked.only, f"{case.name} × {command}")]


def trials(asked: Asked, folder: Path, jobs: int) -> Iterator[Line]:
    """Tries the calls in several processes, and yields the results in order."""
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (asked, folder)) as processes:
        yield from processes.map(_try, range(len(chosen(asked))))


def _begin(asked: Asked, folder: Path) -> None:
    """Prepares a process, which makes the table itself because the functions of a case cannot be pickled."""
    bench = Bench(folder / f"process-{os.getpid()}", folder / "shared")
    PREPARED.append((chosen(asked), partial(bench.trial, apart=asked.apart)))


PREPARED: list[tuple[list[tuple[Case, str]], Callable[[Case, str], Trial]]] = []
"""The calls of a process, and the function that tries one."""


def _try(number: int) -> Line:
    [(calls, tried)] = PREPARED
    trial = tried(*calls[number])
    return Line(trial.case.name, trial.command, trial.verdict.kind, _line(trial))


def _line(trial: Trial) -> str:
    text = f"{trial.verdict.kind:9} {trial.case.name} × {trial.command}, {trial.seconds:.1f} s"
    return "\n          ".join([text, *filter(None, [trial.verdict.text]), *([trial.line] if trial.verdict.failed else [])])

"""The folders and runs that cases share, made on first use; and the trial of a case."""

import re
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gmmae.system import locks
from tests.fuzz import calls, commands, folders, verdict
from tests.fuzz.cases import Case, Change
from tests.fuzz.commands import COMMANDS, Call, Result
from tests.fuzz.verdict import Verdict

SOURCES = {"luna16": "luna16"}
"""`data.source` of a clean folder; otherwise it is `cubes`."""


class Trial(NamedTuple):
    """The trial of a case with one command."""

    case: Case
    command: str
    line: str
    verdict: Verdict
    seconds: float


class Bench:
    """Tries cases in a temporary folder.

    Args:
      root: the folder.
      shared: folder of what the cases share, possibly that of another process.
    """

    def __init__(self, root: Path, shared: Path | None = None) -> None:
        self.root = root
        self.shared = shared or root / "shared"
        self.shared.mkdir(parents=True, exist_ok=True)
        self._count = 0
        self._right = cache(self._result_of)
        self._made = cache(self._make)

    def trial(self, case: Case, command: str, apart: bool = False) -> Trial:
        """Calls a command on a case's folder, in a process of its own if `apart`, and judges the outcome."""
        call = calls.subprocess_of if apart or case.apart else calls.in_process
        expect = case.expect[command]
        folder = self._folder(case.base, case.place)
        case.change(folder)
        where = self._call(case, command, folder)
        line = commands.arguments(command, where, case.options)
        start = time.perf_counter()
        outcome = call(line, folder.parent)
        seconds = time.perf_counter() - start
        found = verdict.judge(
            outcome,
            expect,
            lambda: COMMANDS[command].result(where.work, outcome),
            lambda change: self._right(case.base, command, change),
            case.renamed,
        )
        if not found.failed:
            shutil.rmtree(folder.parent)
        return Trial(case, command, " ".join(["gmmae", *map(_quoted, line)]), found, seconds)

    def _call(self, case: Case, command: str, folder: Path) -> Call:
        for name in NEEDS.get(command, ()):
            self._made(name)
        work = folder.parent / "work"
        work.mkdir(exist_ok=True)
        return Call(case.root(folder), SOURCES.get(case.base, "cubes"), work, self.shared)

    def _folder(self, base: str, place: str) -> Path:
        """Returns a copy of a clean folder, in a folder of its own."""
        self._count += 1
        folder = self.root / str(self._count) / place
        shutil.copytree(self._made(base), folder, symlinks=True)
        return folder

    def _make(self, name: str) -> Path:
        """Makes a clean folder or a run, by name."""
        path, made = self.shared / name, self.shared / f".{name}.made"
        with locks.held(self.shared / f".{name}.lock", lambda _: None):
            if made.exists():
                return path
            if name in folders.BASES:
                folders.BASES[name](path)
            else:
                from tests.fuzz import runs  # it needs JAX

                runs.MAKERS[name](path, self._made)
            made.touch()
        return path

    def _result_of(self, base: str, command: str, change: Change) -> Result:
        """Returns the result of a command on a well-formed folder.

        Raises:
          AssertionError: the command refuses the folder, so the case has no right result.
        """
        case = Case("", base, change, {}, root=_root_of(base))
        folder = self._folder(base, case.place)
        change(folder)
        where = self._call(case, command, folder)
        outcome = calls.in_process(commands.arguments(command, where), folder.parent)
        assert outcome.code == 0, f"{command} must read the folder that is compared with: {outcome.err or outcome.crash}"
        result = COMMANDS[command].result(where.work, outcome)
        shutil.rmtree(folder.parent)
        return result


def _root_of(base: str) -> Callable[[Path], str]:
    """Returns a function that gives the path of a clean folder for a command."""
    return (lambda folder: str(folder / "all.npz")) if base in ("npz", "real") else str


NEEDS: dict[str, tuple[str, ...]] = {
    "evaluate": ("nodules",),
    "augment": ("nodules",),
    "describe": ("nodules",),
    "segment": ("unet",),
    "insert": ("chest",),
    "insert into": ("cubes",),
    "generate into": ("generator",),
    "judge": ("real.npz",),
    "judge real": ("generated",),
    "describe with": ("cubes",),
}
"""The shared folders that a command needs."""


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w./=:-]+", word) else repr(word)

"""The clean folders and runs that cases share, made on first use; the table of all cases; and the trial of a case."""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gmmae.config.toml import to_toml
from gmmae.sweep.grid import run_keys
from gmmae.training.loop import run
from tests import small, sweeps
from tests.fuzz import (
    array_cases,
    calls,
    commands,
    csv_cases,
    folders,
    place_cases,
    run_cases,
    scan_cases,
    verdict,
    volume_cases,
)
from tests.fuzz.cases import Case, Change
from tests.fuzz.commands import COMMANDS, Call, Result
from tests.fuzz.verdict import Verdict
from tests.generation.nodules import balls
from tests.workloads.test_segmentation import small as small_unet


def all_cases() -> Iterator[Case]:
    """Yields every case, in the order of the modules."""
    for module in (csv_cases, volume_cases, place_cases, scan_cases, array_cases, run_cases):
        yield from module.cases()


def thinned() -> Iterator[Case]:
    """Yields every case with two of its commands: the first, and one of the others in turn."""
    for number, case in enumerate(all_cases()):
        first, *others = case.expect.items()
        yield replace(case, expect=dict([first, *(others[number % len(others) :][:1] if others else [])]))


class Trial(NamedTuple):
    """The verdict on a call, and its command line."""

    line: str
    verdict: Verdict


class Bench:
    """Tries cases in a temporary folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shared = root / "shared"
        self.shared.mkdir(parents=True)
        self._count = 0
        self.right = cache(self._result_of)
        self.made = cache(self._make)

    def trial(self, case: Case, command: str) -> Trial:
        """Calls a command on a case's folder, and judges the outcome. The folder of a failure is kept."""
        call_program = calls.subprocess_of if case.apart else calls.in_process
        folder, call = self._prepare(case, command)
        line = commands.arguments(command, call, case.options)
        outcome = call_program(line, folder.parent)
        judged = verdict.judge(
            outcome,
            case.expect[command],
            lambda: COMMANDS[command].result(call.work, outcome),
            lambda change: self.right(case.base, command, change),
            case.renamed,
        )
        if not judged.failed:
            shutil.rmtree(folder.parent)
        return Trial(" ".join(["gmmae", *map(_quoted, line)]), judged)

    def _prepare(self, case: Case, command: str) -> tuple[Path, Call]:
        """Returns a changed copy of a clean folder, in a folder of its own, and the places of a call on it."""
        for name in COMMANDS[command].needs:
            self.made(name)
        self._count += 1
        folder = self.root / str(self._count) / case.place
        shutil.copytree(self.made(case.base), folder, symlinks=True)
        case.change(folder)
        work = folder.parent / "work"
        work.mkdir()
        root = ROOTS.get(case.base, "{folder}") if case.root is None else case.root
        root = root.replace("{folder}", str(folder)).replace("{place}", case.place)
        return folder, Call(root, "luna16" if case.base == "luna16" else "cubes", work, self.shared)

    def _make(self, name: str) -> Path:
        """Makes a clean folder or a run, by name."""
        path = self.shared / name
        MAKERS[name](path, self.made)
        return path

    def _result_of(self, base: str, command: str, change: Change) -> Result:
        """Returns the result of a command on a well-formed folder.

        Raises:
          AssertionError: the command refuses the folder, so the case has no right result.
        """
        folder, call = self._prepare(Case("", base, change, {}), command)
        outcome = calls.in_process(commands.arguments(command, call), folder.parent)
        assert outcome.code == 0, f"{command} must read the folder that is compared with: {outcome.err or outcome.crash}"
        result = COMMANDS[command].result(call.work, outcome)
        shutil.rmtree(folder.parent)
        return result


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w./=:-]+", word) else repr(word)


ROOTS = {"npz": "{folder}/all.npz", "real": "{folder}/all.npz"}
"""The paths that commands are given of some clean folders."""

Made = Callable[[str], Path]
"""Returns the path of another shared folder, which is made if it is missing."""

LATTICE = {"model__decoder": "lattice", "model__lattice_size": 2, "data__samples": 40, "data__validation": 10}


def _generated(path: Path, made: Made) -> None:
    outcome = calls.in_process(["generate", str(made("generator")), "--count", "30", "--out", str(path)], path.parent)
    assert outcome.code == 0, outcome.err


def _real_npz(path: Path, _: Made) -> None:
    nodules = balls(0, 60)
    assert nodules.masks is not None
    texts = {name: np.array(getattr(nodules, name)) for name in ("names", "groups", "categories")}
    np.savez(path, volumes=nodules.values, masks=nodules.masks, allow_pickle=False, **texts)


def _real(path: Path, made: Made) -> None:
    path.mkdir()
    shutil.copy(made("real.npz"), path / "all.npz")


def _sweep(path: Path, _: Made) -> None:
    config = replace(sweeps.GRID, scaling=("strong", "weak"), devices=(1, 2), seeds=(0,))
    for key in run_keys(config):
        sweeps.reach(config, path, key, 10)
    sweeps.add_step_times(path, 1, sweeps.STEPS, sweeps.PASSES)
    (path / "sweep.toml").write_text(to_toml(config), encoding="utf-8")


MAKERS: dict[str, Callable[[Path, Made], object]] = {
    "cubes": lambda path, _: folders.cubes(path),
    "luna16": lambda path, _: folders.luna16(path),
    "npz": lambda path, _: folders.npz(path),
    "chest": lambda path, _: folders.chest(path),
    "nodules": lambda path, _: run(small.small(stop__max_epochs=1), path, small.Recorder()),
    "unet": lambda path, _: run(small_unet(stop__max_epochs=1, model__features=(2,)), path, small.Recorder()),
    "generator": lambda path, _: run(small.small(stop__max_epochs=1, **LATTICE), path, small.Recorder()),
    "generated": _generated,
    "real.npz": _real_npz,
    "real": _real,
    "sweep": _sweep,
}
"""The function that makes each clean folder or run."""

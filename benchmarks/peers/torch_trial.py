"""Trial that finds PyTorch's fastest settings on this machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.backends import BACKENDS
from benchmarks.peers.torch_settings import SETTINGS
from benchmarks.peers.workers import Worker
from benchmarks.spread import ratios, spread
from gmmae.plotting import tables

FASTER = 0.97
"""Ratio of times below which a setting is kept, at the median of the turns."""
TURNS = 7
WARMING = 3
"""Blocks before the timed ones. Compilation is part of the first."""


class Trial(NamedTuple):
    """Seconds of a step with added settings and without them, by turns. Both sides have the settings `beside`."""

    added: tuple[str, ...]
    beside: tuple[str, ...]
    with_them: list[float]
    without: list[float]

    @property
    def kept(self) -> bool:
        """Returns whether the added settings make a step faster."""
        return ratios(self.with_them, self.without).median < FASTER


def trials(name: str, folder: Path, settings: Sequence[str], *, batch: int, steps: int) -> list[Trial]:
    """Tries settings one after the other, each beside those that have made a step faster, and at last these together.

    Two processes live side by side but work one at a time.

    Args:
      name: the backend.
      folder: holds the problem.
      settings: settings to try.
      batch: samples in a step.
      steps: steps in a timed block.
    """

    def block(worker: Worker, turn: int) -> float:
        return worker.ask("train", samples=batch * steps, epoch=turn + 1)["seconds"] / steps

    def warm(*kept: str) -> Worker:
        worker = Worker(name, folder, settings=kept)
        for turn in range(WARMING):
            block(worker, turn)
        return worker

    def timed(added: tuple[str, ...], without: Worker, with_them: Worker) -> Trial:
        blocks: dict[Worker, list[float]] = {without: [], with_them: []}
        for turn in range(TURNS):
            for worker in (without, with_them)[:: 1 if turn % 2 else -1]:
                blocks[worker].append(block(worker, turn))
        return Trial(added, without.settings, blocks[with_them], blocks[without])

    found: list[Trial] = []
    base = warm()
    try:
        for setting in settings:
            other = warm(*base.settings, setting)
            try:
                found.append(timed((setting,), base, other))
                if found[-1].kept:
                    base, other = other, base
            finally:
                other.close()
        if len(base.settings) > 1:
            other = warm()
            try:
                found.append(timed(base.settings, other, base))
            finally:
                other.close()
    finally:
        base.close()
    return found


def chosen(found: Sequence[Trial]) -> tuple[str, ...]:
    """Returns the settings that are faster, together too. It is none if chance has chosen them."""
    kept = tuple(name for trial in found if trial.kept and len(trial.added) == 1 for name in trial.added)
    return () if len(kept) > 1 and not found[-1].kept else kept


def table(name: str, found: Sequence[Trial]) -> str:
    """Returns the table of a backend's settings."""
    columns = ("setting", "what it does", "beside", "ms a step", "over that without it (quartiles)", "kept")
    rows = [
        (
            ", ".join(trial.added),
            SETTINGS[trial.added[0]].meaning if len(trial.added) == 1 else "all that were kept",
            ", ".join(trial.beside),
            spread(trial.with_them).text(scale=1000),
            ratios(trial.with_them, trial.without).text(),
            "yes" if trial.kept else "no",
        )
        for trial in found
    ]
    return tables.table(columns, rows, f"Settings of {BACKENDS[name].title}")

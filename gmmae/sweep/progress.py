"""The progress of a sweep: finished and running runs, and an estimate of the time that is left."""

import time
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from gmmae.sweep.grid import RunKey, SweepConfig, run_keys
from gmmae.sweep.runs import FAILED

INTERRUPTED = "interrupted"
"""The state of an interrupted run. The next call computes it."""


class _EndedRun(NamedTuple):
    keys: tuple[RunKey, ...]
    seconds: float


class SweepProgress:
    """Counts the runs of a sweep, and estimates the time that is left.

    Attributes:
      total: number of runs in the grid.
      computed: number of runs to compute. Each stands for all runs of the grid with its path.
      concurrent: how many computed runs may run at the same time.
      running: the states of the running computed runs by name, the oldest first.
    """

    def __init__(self, config: SweepConfig, done: Mapping[RunKey, str], computed: int):
        keys = run_keys(config)
        self.total, self.computed, self.concurrent = len(keys), computed, config.concurrent(computed)
        self.running: dict[str, str] = {}
        self._by_name = {key.name: key for key in keys}
        self._done = {key: text for key, text in done.items() if key.name in self._by_name}
        self._started: dict[str, float] = {}  # the running computed runs, by name
        self._active: set[RunKey] = set()
        self._ended: dict[str, _EndedRun] = {}
        self._began = time.monotonic()

    def start(self, name: str) -> None:
        """Notes that a computed run has started."""
        self.running[name] = "starting"
        self._started[name] = time.monotonic()

    def tick(self, states: Mapping[RunKey, str]) -> None:
        """Notes the states of all running runs."""
        self._active = set(states)
        self.running |= {key.name: text for key, text in states.items() if key.name in self.running}

    def end(self, name: str, states: Mapping[RunKey, str], seconds: float) -> None:
        """Notes that a computed run has ended, with the states of the runs that it stands for."""
        self.running.pop(name, None)
        self._started.pop(name, None)
        self._active -= states.keys()
        finished = {key: text for key, text in states.items() if text != INTERRUPTED}
        self._done |= finished
        if finished:
            self._ended[name] = _EndedRun(tuple(finished), seconds)

    @property
    def done(self) -> int:
        """The number of runs with a result, or with a failure that is not computed again."""
        return len(self._done)

    @property
    def failed(self) -> int:
        """The number of failed runs among `done`."""
        return sum(text.startswith(FAILED) for text in self._done.values())

    def elapsed_s(self) -> float:
        """Returns the seconds since the sweep started."""
        return time.monotonic() - self._began

    def left_s(self) -> float | None:
        """Returns an estimate of the remaining seconds, or None if nothing is known.

        A run is expected to take as long as those of the same strategy and number of devices, or else as the mean of all. The
        first run of each worker includes the worker's start. It counts only while there is no other.
        """
        if not self._ended:
            return None
        ended = list(self._ended.values())
        known = _Durations(ended[self.concurrent :] or ended)
        now = time.monotonic()
        running_s = [max(known.run_s(self._by_name[name]) - (now - started), 0.0) for name, started in self._started.items()]
        shares = [share for key in self._waiting() if (share := known.share(key)) is not None]
        # The other waiting runs are of strategies and numbers of devices that have had no run yet.
        others = max(self.computed - len(ended) - len(self.running) - sum(share.runs for share in shares), 0.0)
        waiting_s = sum(share.seconds for share in shares) + others * known.mean_s
        one_run_s = min(waiting_s, known.mean_s)  # it cannot be divided
        return max((waiting_s + sum(running_s)) / self.concurrent, one_run_s, *running_s) or None

    def _waiting(self) -> Iterable[RunKey]:
        begun = {*self._done, *self._active}
        return (key for name, key in self._by_name.items() if key not in begun and name not in self.running)


class _Share(NamedTuple):
    """What one run of the grid is of a computed run, which may stand for several."""

    runs: float
    seconds: float


class _Durations:
    """The durations of ended runs, by strategy and number of devices."""

    def __init__(self, ended: Sequence[_EndedRun]):
        self.mean_s = fmean(run.seconds for run in ended)
        self._alike: dict[tuple[str, int], list[_EndedRun]] = {}
        for run in ended:
            for key in run.keys:
                self._alike.setdefault((key.scaling, key.devices), []).append(run)

    def run_s(self, key: RunKey) -> float:
        """Returns the expected seconds of a computed run."""
        alike = self._alike.get((key.scaling, key.devices))
        return fmean(run.seconds for run in alike) if alike else self.mean_s

    def share(self, key: RunKey) -> _Share | None:
        """Returns the expected share of a run of the grid. It is None if no run had its strategy and number of devices."""
        alike = self._alike.get((key.scaling, key.devices))
        if not alike:
            return None
        return _Share(fmean(1 / len(run.keys) for run in alike), fmean(run.seconds / len(run.keys) for run in alike))

"""The progress of a sweep: finished and running runs, and an estimate of the time that is left."""

import time
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from gmmae.sweep.grid import RunKey, SweepConfig, run_keys
from gmmae.sweep.runs import FAILED

INTERRUPTED = "interrupted"
"""The state of an interrupted run. The next call computes it."""


class _EndedJob(NamedTuple):
    keys: tuple[RunKey, ...]
    seconds: float


class SweepProgress:
    """Counts the runs of a sweep, and estimates the time that is left.

    Attributes:
      total: number of runs in the grid.
      jobs: number of jobs that compute the missing runs. Runs with the same path share a job.
      concurrent: how many jobs may run at the same time.
      running: the states of the running runs by name, the oldest first. A job is named after its first run.
    """

    def __init__(self, config: SweepConfig, done: Mapping[RunKey, str], jobs: int):
        keys = run_keys(config)
        self.total, self.jobs, self.concurrent = len(keys), jobs, config.concurrent(jobs)
        self.running: dict[str, str] = {}
        self._by_name = {key.name: key for key in keys}
        self._done = {key: text for key, text in done.items() if key.name in self._by_name}
        self._starts: dict[str, float] = {}
        self._active: set[RunKey] = set()
        self._ended: dict[str, _EndedJob] = {}
        self._began = time.monotonic()

    def start(self, name: str) -> None:
        """Notes that a job has started."""
        self.running[name] = "starting"
        self._starts[name] = time.monotonic()

    def tick(self, states: Mapping[RunKey, str]) -> None:
        """Notes the states of all running runs."""
        self._active = set(states)
        self.running |= {key.name: text for key, text in states.items() if key.name in self.running}

    def end(self, name: str, states: Mapping[RunKey, str], seconds: float) -> None:
        """Notes that a job has ended, with the states of its runs."""
        self.running.pop(name, None)
        self._active -= states.keys()
        finished = {key: text for key, text in states.items() if text != INTERRUPTED}
        self._done |= finished
        if finished:
            self._ended[name] = _EndedJob(tuple(finished), seconds)

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

        A job is expected to take as long as those of the same strategy and number of devices, or else as the mean of all. The
        first job of each worker includes the worker's start. It counts only while there is no other.
        """
        if not self._ended:
            return None
        jobs = list(self._ended.values())
        known = _Durations(jobs[self.concurrent :] or jobs)
        now = time.monotonic()
        running_s = [max(known.job_s(self._by_name.get(name)) - (now - self._starts[name]), 0.0) for name in self.running]
        shares = [share for key in self._waiting() if (share := known.share(key)) is not None]
        # The other waiting jobs are of strategies and numbers of devices that no job has had yet.
        others = max(self.jobs - len(jobs) - len(self.running) - sum(share.jobs for share in shares), 0.0)
        waiting_s = sum(share.seconds for share in shares) + others * known.mean_s
        one_job_s = min(waiting_s, known.mean_s)  # it cannot be divided
        return max((waiting_s + sum(running_s)) / self.concurrent, one_job_s, *running_s) or None

    def _waiting(self) -> Iterable[RunKey]:
        begun = {*self._done, *self._active}
        return (key for name, key in self._by_name.items() if key not in begun and name not in self.running)


class _Share(NamedTuple):
    """What one run is of a job that computes several runs at once."""

    jobs: float
    seconds: float


class _Durations:
    """The durations of ended jobs, by strategy and number of devices."""

    def __init__(self, jobs: Sequence[_EndedJob]):
        self.mean_s = fmean(job.seconds for job in jobs)
        self._alike: dict[tuple[str, int], list[_EndedJob]] = {}
        for job in jobs:
            for key in job.keys:
                self._alike.setdefault((key.scaling, key.devices), []).append(job)

    def job_s(self, first: RunKey | None) -> float:
        """Returns the expected seconds of the job that is named after a run."""
        alike = self._alike.get((first.scaling, first.devices)) if first else None
        return fmean(job.seconds for job in alike) if alike else self.mean_s

    def share(self, key: RunKey) -> _Share | None:
        """Returns the expected share of a run, or None if no job had its strategy and number of devices."""
        alike = self._alike.get((key.scaling, key.devices))
        if not alike:
            return None
        return _Share(fmean(1 / len(job.keys) for job in alike), fmean(job.seconds / len(job.keys) for job in alike))

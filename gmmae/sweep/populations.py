"""The populations of a sweep: runs of one batch that one program trains together, where a measurement finds that faster.

Runs of the same batch and optimiser have the same program, whatever their seeds and learning rates. The batches are compared
from the smallest one on. A larger batch gains less, so the first one that gains too little ends the comparisons. What a batch
can save must also be worth the compilation.
"""

import json
import math
from collections import deque
from collections.abc import Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gmmae.scaling import strategies
from gmmae.sweep.grid import RunKey, SweepConfig
from gmmae.sweep.jobs import training_job, worker_job
from gmmae.sweep.processes import Job
from gmmae.sweep.runs import SweepDir
from gmmae.system import json_files
from gmmae.system.files import write_text
from gmmae.system.json_files import checked

MAX_RUNS = 16
"""The maximum number of runs in a program. More save little time, and need more memory."""

MIN_RATIO = 1.5
"""How many times faster runs must be together. Places of ended runs are computed for a while, which costs up to half of it."""

EPOCHS_SHARE = 0.25
"""The share of the largest number of epochs that a run is assumed to take. Most runs reach their target before."""

COMPILATIONS = 2
"""The number of programs for training together that a batch is assumed to need: a second one for the runs that take longest."""


class Member(NamedTuple):
    """A run of a population, for its worker."""

    config: Path
    workdir: Path
    log: Path


class Speed(NamedTuple):
    """The seconds of an epoch for each run, trained one after the other and together."""

    runs: int
    alone_s: float
    together_s: float | None  # None: not measured, because it could not pay
    compile_s: float  # of the program that trains them together

    @property
    def ratio(self) -> float:
        """How many times faster the runs are together."""
        return self.alone_s / self.together_s if self.together_s else 0.0

    def pays(self, runs: int, max_epochs: int) -> bool:
        """Returns whether to train some runs together.

        >>> [Speed(6, 0.04, 0.02, compile_s=compile_s).pays(6, max_epochs=400) for compile_s in (5.0, 50.0)]
        [True, False]
        """
        saved_s = (self.alone_s - (self.together_s or math.inf)) * runs * max_epochs * EPOCHS_SHARE
        return self.ratio >= MIN_RATIO and saved_s > COMPILATIONS * self.compile_s


def read(path: Path) -> list[Member]:
    """Returns the members that `_write` wrote."""
    return [Member(*map(Path, member)) for member in json.loads(path.read_text(encoding="utf-8"))]


class Populations:
    """The jobs of a sweep's pending runs. The ends of some jobs lead to further jobs.

    Args:
      config: the sweep.
      folder: its work directory.
      pending: the runs to compute.
      samples: the size of the training set.
    """

    def __init__(self, config: SweepConfig, folder: SweepDir, pending: Sequence[RunKey], samples: int) -> None:
        self._config, self._folder, self._pending = config, folder, pending
        self._runs_of: dict[str, list[RunKey]] = {}
        self._undecided: deque[tuple[int, list[RunKey]]] = deque()
        self._alone: list[RunKey] = list(pending)
        if config.train_together != "off" and not config.alone_because and config.mode == "virtual":
            groups = self._groups(pending, samples)
            self._undecided.extend(groups)
            together = {run for _, runs in groups for run in runs}
            self._alone = [run for run in pending if run not in together]

    def first_jobs(self) -> list[Job]:
        """Returns the jobs to begin with."""
        return [*self._decide(), *self._single(self._alone)]

    def runs_of(self, job: Job) -> list[RunKey]:
        """Returns the runs that a job computes. A comparison computes none."""
        return self._runs_of[job.name]

    def one_by_one(self, job: Job) -> list[Job]:
        """Returns jobs that compute the runs of a failed population one by one. A failed single run has no further job."""
        if job.arguments[0] != "train_together":
            return []
        return [single._replace(attempts=1) for single in self._single(self._runs_of[job.name])]  # the second attempt

    def compared(self, job: Job, succeeded: bool) -> tuple[str, list[Job]]:
        """Returns a line about a comparison that has ended, and the jobs that follow."""
        batch, runs = self._undecided[0]
        speed = self._read_speed(batch) if succeeded else None
        if speed is None:
            return f"batch {batch}: the comparison failed ({job.log})", self._rest_one_by_one()
        if not speed.together_s:
            why = f"an epoch of one takes {speed.alone_s:.3g} s, and together would not pay"
            return f"batch {batch}: runs train one by one; {why}", self._decide()
        how = "together" if self._pays(speed, runs) else "one by one"
        return f"batch {batch}: runs train {how}; {speed.runs} together are {speed.ratio:.2g} times as fast", self._decide()

    def _groups(self, pending: Sequence[RunKey], samples: int) -> list[tuple[int, list[RunKey]]]:
        """Returns the runs that share a program with others, by batch."""
        groups: dict[tuple[int, Hashable], list[RunKey]] = {}
        for run in pending:
            strategy = strategies.resolve(run.scaling, self._config.run.optim, run.devices, samples)
            if len(strategy.stages) == 1:  # a batch that grows needs several programs
                groups.setdefault((strategy.global_batch, strategy.optimization.optimizer), []).append(run)
        return sorted((batch, runs) for (batch, _), runs in groups.items() if len(self._shares(runs)[0]) > 1)

    def _shares(self, runs: Sequence[RunKey]) -> list[Sequence[RunKey]]:
        """Returns the runs of each program, the most first. Every process of the sweep gets a program where it can."""
        count = max(math.ceil(len(runs) / MAX_RUNS), min(self._config.jobs, len(runs)))
        return [runs[i::count] for i in range(count)]

    def _decide(self) -> list[Job]:
        """Returns the jobs of the next batches that are decided, and the comparison of the first one that is not."""
        jobs: list[Job] = []
        while self._undecided:
            batch, runs = self._undecided[0]
            speed = self._read_speed(batch)
            automatic = self._config.train_together == "auto"
            if automatic and speed is None:
                return [*jobs, self._comparison(batch, runs)]
            if automatic and speed is not None and speed.ratio < MIN_RATIO:
                return [*jobs, *self._rest_one_by_one()]
            if automatic and speed is not None and not self._pays(speed, runs):
                jobs += self._single(runs)
            else:
                jobs += self._together(batch, runs)
            self._undecided.popleft()
        return jobs

    def _pays(self, speed: Speed, runs: Sequence[RunKey]) -> bool:
        return speed.pays(len(runs), self._config.run.stop.max_epochs)

    def _rest_one_by_one(self) -> list[Job]:
        """Returns jobs that compute each run of the undecided batches alone, seed by seed."""
        rest = {run for _, runs in self._undecided for run in runs}
        self._undecided.clear()
        return self._single([run for run in self._pending if run in rest])

    def _single(self, runs: Sequence[RunKey]) -> list[Job]:
        jobs = [training_job(self._config, self._folder, run) for run in runs]
        self._runs_of |= {job.name: [run] for job, run in zip(jobs, runs, strict=True)}
        return jobs

    def _together(self, batch: int, runs: Sequence[RunKey]) -> list[Job]:
        """Returns the jobs that train the runs of a batch together."""
        name = f"population-batch{batch}-"
        first = 1 + sum(known.startswith(name) for known in self._runs_of)  # a batch may have several optimisers
        return [self._job("train_together", f"{name}{i}", share) for i, share in enumerate(self._shares(runs), first)]

    def _comparison(self, batch: int, runs: Sequence[RunKey]) -> Job:
        speed = self._folder.speed(batch)
        speed.parent.mkdir(exist_ok=True)
        job = self._job("compare", f"population-batch{batch}", self._shares(runs)[0], str(speed))
        self._runs_of[job.name] = []
        return job

    def _job(self, command: str, name: str, runs: Sequence[RunKey], *arguments: str) -> Job:
        members = self._folder.log(name).parent / "runs.json"
        members.parent.mkdir(parents=True, exist_ok=True)
        singles = self._single(runs)
        files = [[*job.arguments[1:], str(job.log)] for job in singles]
        write_text(members, json.dumps(files, indent=2) + "\n")
        self._runs_of[name] = list(runs)
        job = worker_job(self._config, self._folder, name, (command, str(members), *arguments))
        return job._replace(environment=singles[0].environment, stays=singles[0].stays, time_limit_s=0.0)

    def _read_speed(self, batch: int) -> Speed | None:
        path, change = self._folder.speed(batch), "delete it, and the sweep compares again"
        try:
            return json_files.read(path, "be a comparison of runs", change, partial(checked, Speed))
        except FileNotFoundError:
            return None

"""A sweep's jobs as processes of this host, started by submitit's local executor; they end with the sweep."""

import contextlib
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from gmmae.sweep.cluster.host import Submitted, importable, load_submitit, result_of, task, without_result
from gmmae.sweep.grid import SweepConfig
from gmmae.sweep.supervisor import Ended, Job
from gmmae.system.gpus import least_used


class Local:
    """submitit's local executor. While entered, this process alone holds a pipe at whose end its jobs die."""

    tick_s = 0.5

    def __init__(self, config: SweepConfig, folder: Path, at_once: int, places: Sequence[Mapping[str, str]]) -> None:
        self._grace_s = config.grace_s
        self._at_once = at_once
        self._places = places
        shutil.rmtree(folder, ignore_errors=True)  # jobs are called by their process's number, which comes again
        self._executor = load_submitit().LocalExecutor(folder)
        # submitit wants a limit; a cell's own is the task's business.
        self._executor.update_parameters(timeout_min=60 * 24 * 365, setup=())

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._read, self._write):
            os.close(end)

    def submit(self, waiting: deque[Job], current: list[Submitted]) -> None:
        while waiting and len(current) < self._at_once:
            job = waiting.popleft()
            place = least_used(self._places, [each.job.environment for each in current])
            job = job._replace(environment={**job.environment, **place})
            job.log.parent.mkdir(parents=True, exist_ok=True)
            with importable(), self._bound():
                current.append(Submitted(job, self._executor.submit(task(job, self._grace_s, local=True)), runs=True))

    @contextlib.contextmanager
    def _bound(self) -> Iterator[None]:
        """What is started in the meantime has the pipe as its standard input, and Ctrl-C in the terminal does not reach it."""
        before = os.dup(0)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        os.dup2(self._read, 0)
        try:
            yield
        finally:
            os.dup2(before, 0)
            os.close(before)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def look(self, current: Sequence[Submitted]) -> list[Ended | None]:
        return [self._end_of(each) for each in current]

    def _end_of(self, each: Submitted) -> Ended | None:
        if each.handle.get_info()["jobState"] == "RUNNING":
            return None
        return self.result(each) or without_result(each, "killed")

    def result(self, each: Submitted) -> Ended | None:
        return result_of(each)

    def end(self, current: Sequence[Submitted]) -> None:
        until = time.monotonic() + self._grace_s + 5
        with contextlib.suppress(KeyboardInterrupt):
            while (running := [each for each in current if self._end_of(each) is None]) and time.monotonic() < until:
                for each in running:  # again and again: a task that is just starting does not hear it
                    os.kill(int(each.handle.job_id), signal.SIGTERM)
                time.sleep(self.tick_s)

    def forget(self, gone: Iterable[Submitted]) -> None:
        for each in gone:
            each.handle.paths.result_pickle.unlink(missing_ok=True)

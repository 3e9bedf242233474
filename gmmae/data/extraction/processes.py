"""A pool of worker processes with time limits, in which a crash ends only one worker.

`multiprocessing` is not used for two reasons. Its spawned workers import the caller's main module again, and jax with it. And
a worker that is killed for memory, or crashes in a decoder, would break the whole pool. Each worker is a fresh interpreter that
runs `serve`. It reads pickled tasks from standard input, answers on standard output, and ends with its parent. A worker that
does not answer in time is killed.
"""

import math
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple

from gmmae.data.extraction.extract import extract
from gmmae.data.extraction.tasks import Extracted, Task, Transient
from gmmae.data.settings import DataConfig

WORKER_PROGRAM = "from gmmae.data.extraction.processes import serve; serve()"
"""The program of a worker."""

START_TIMEOUT_S = 120.0
"""Longest time for the imports of a worker."""

POLL_INTERVAL_S = 0.2
"""Seconds between two checks of a waiting thread whether it should stop."""

KILL_TIMEOUT_S = 5.0
"""Longest wait for a killed process. One that waits for a dead network disk cannot be killed, and is left behind."""


class WorkerError(RuntimeError):
    """A bug in a worker process, with its traceback."""


class _Failed(NamedTuple):
    traceback: str


Answer = tuple[Task, Extracted | Transient]


def extract_all(tasks: Sequence[Task], config: DataConfig, workers: int) -> Generator[Answer, None, None]:
    """Yields all tasks with their results, in the order in which they finish.

    Args:
      tasks: one for each scan.
      config: how cubes are cut, and the longest time for a volume.
      workers: number of processes; 0: this process, without a time limit.

    Raises:
      WorkerError: a bug; broken data give faults in the results instead.
    """
    if workers == 0:
        yield from ((task, extract(task, config)) for task in tasks)
        return
    stop = threading.Event()
    idle: SimpleQueue[_Worker] = SimpleQueue()

    def answer(task: Task) -> Extracted | Transient:
        try:
            worker = idle.get_nowait()
        except Empty:
            try:
                worker = _Worker(stop)
            except OSError as error:
                return Transient(f"no process could be started to read it: {error}")
        try:
            result = worker.ask(task, config)
        except BaseException:
            worker.process.kill()
            worker.end()
            raise
        if result is None:
            return Transient(worker.end())
        idle.put(worker)
        if isinstance(result, _Failed):
            raise WorkerError(result.traceback)
        return result

    # A thread for each worker waits for its answers.
    with ThreadPoolExecutor(max(1, min(workers, len(tasks)))) as pool:
        try:
            task_of = {pool.submit(answer, task): task for task in tasks}
            for future in as_completed(task_of):
                yield task_of[future], future.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
            while not idle.empty():
                idle.get().end()


class _Worker:
    """A process that answers one task at a time."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop
        self.started = False
        self.late = ""  # the reason why the process was killed
        # What a native library prints must not fill a pipe that nobody reads; `end` closes the file.
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER_PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        )

    def ask(self, task: Task, config: DataConfig) -> Extracted | Transient | _Failed | None:
        """Returns the answer, or None when the process ended, exceeded the limit, or should stop."""
        assert self.process.stdin is not None
        try:
            if not self.started:
                self.started = self._answer(START_TIMEOUT_S, "the process to read it did not start") is not None
            if not self.started:
                return None
            pickle.dump((task, config), self.process.stdin)
            self.process.stdin.flush()
            answer = self._answer(_limit_s(task, config), "it was not read")
            assert answer is None or isinstance(answer, (Extracted, Transient, _Failed))
            return answer
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            return None

    def _answer(self, limit_s: float, otherwise: str) -> object:
        """Returns the next answer of the process, or kills it and returns None after the limit."""
        assert self.process.stdout is not None
        answers = select.poll()
        answers.register(self.process.stdout, select.POLLIN)
        end = time.monotonic() + limit_s if limit_s else math.inf
        while not answers.poll(1000 * POLL_INTERVAL_S):
            if self.stop.is_set() or time.monotonic() > end:
                self.late = f"{otherwise} within {limit_s:g} s"
                self.process.kill()
                return None
        return pickle.load(self.process.stdout)

    def end(self) -> str:
        """Closes the process, and returns how it ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        try:
            status = self.process.wait(KILL_TIMEOUT_S if self.late else None)
        except subprocess.TimeoutExpired:
            status = None
        self.errors.seek(0)
        last = self.errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        self.errors.close()
        if self.late:
            return f"{self.late} (data.scan_time_limit_s is for each volume)"
        how = f"status {status}" + (f", {last}" if last else "")
        return f"the process reading it died ({how}): killed, too little memory, or a file that breaks its decoder"


def _limit_s(task: Task, config: DataConfig) -> float:
    """Returns the longest time for a task; 0: no limit."""
    return (config.scan_time_limit_s or 0.0) * task.volumes


def serve() -> None:
    """Runs the loop of a worker until its parent closes the pipe or dies."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # What native libraries print goes to standard error, so that it cannot get between the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    pickle.dump(True, answers)
    answers.flush()
    while True:
        try:
            task, config = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        # The parent kills a worker that takes too long. Where the parent has died meanwhile, the kernel does.
        limit_s = _limit_s(task, config)
        signal.alarm(math.ceil(limit_s) + 5 if limit_s else 0)
        try:
            answer: Extracted | Transient | _Failed = extract(task, config)
        except Exception:
            answer = _Failed(traceback.format_exc())
        signal.alarm(0)
        pickle.dump(answer, answers)
        answers.flush()

"""Tasks shared out over worker processes that crash alone.

Not `multiprocessing`: its spawned workers import the caller's main module again, and with that jax; and one worker killed for
memory, or crashing in a decoder, would break the whole pool. Each worker here is a fresh interpreter that runs `serve`: it is
sent pickled tasks on its standard input, answers on its standard output, and ends with its parent.
"""

import os
import pickle
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Generator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple

from gmmae.data.annotations import Fault
from gmmae.data.extract import Extracted, Options, extract
from gmmae.data.tasks import Task

WORKER = "from gmmae.data.processes import serve; serve()"
"""The program of a worker."""


class WorkerError(RuntimeError):
    """A bug met in a worker process, with its traceback."""


class _Failed(NamedTuple):
    traceback: str


def cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def extract_all(tasks: Sequence[Task], options: Options, workers: int) -> Generator[Extracted, None, None]:
    """The results of all tasks, in the order in which they are finished.

    Args:
      tasks: one for each scan.
      options: how cubes are cut.
      workers: processes; 0 is one a core. With 1, or one task, the work is done in this process.

    Raises:
      WorkerError: a bug; broken data give faults in the results instead.
    """
    workers = min(workers or cores(), len(tasks))
    if workers <= 1:
        yield from (extract(task, options) for task in tasks)
        return
    waiting: SimpleQueue[Task] = SimpleQueue()
    done: SimpleQueue[Extracted | BaseException] = SimpleQueue()
    for task in tasks:
        waiting.put(task)
    stop = threading.Event()
    threads = [threading.Thread(target=_drive, args=(waiting, done, options, stop), daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    try:
        for _ in tasks:
            result = done.get()
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _drive(
    waiting: "SimpleQueue[Task]", done: "SimpleQueue[Extracted | BaseException]", options: Options, stop: threading.Event
) -> None:
    """One thread for one worker process, which is started again when it dies."""
    worker: _Worker | None = None
    try:
        while not stop.is_set():
            try:
                task = waiting.get_nowait()
            except Empty:
                break
            worker = worker or _Worker()
            answer = worker.ask(task, options)
            if answer is None:
                text = f"the process reading it died ({worker.end()}): too little memory, or a file that breaks its decoder"
                answer = Extracted((), (Fault("unreadable", task.label, text, len(task.items)),), 0.0, 0.0)
                worker = None
            done.put(WorkerError(answer.traceback) if isinstance(answer, _Failed) else answer)
    except BaseException as error:
        done.put(error)
    finally:
        if worker is not None:
            worker.end()


class _Worker:
    """A process that answers one task at a time."""

    def __init__(self) -> None:
        # What a native library prints must not fill a pipe that nobody reads; `end` closes the file.
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        )

    def ask(self, task: Task, options: Options) -> Extracted | _Failed | None:
        """The answer, or None when the process died over it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            pickle.dump((task, options), self.process.stdin)
            self.process.stdin.flush()
            return pickle.load(self.process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            return None

    def end(self) -> str:
        """Close the process; how it ended."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        status = self.process.wait()
        self.errors.seek(0)
        last = self.errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        self.errors.close()
        return f"status {status}" + (f", {last}" if last else "")


def serve() -> None:
    """A worker's loop: until its parent closes the pipe, or dies."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # What native libraries print goes to standard error, so that it cannot get between the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while True:
        try:
            task, options = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: Extracted | _Failed = extract(task, options)
        except Exception:
            answer = _Failed(traceback.format_exc())
        pickle.dump(answer, answers)
        answers.flush()

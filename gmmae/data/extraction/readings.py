"""Reads all scans of a plan by worker processes, and repeats readings that fail for transient reasons.

A killed process, a time-out, or an error of the disk or the network says nothing about the scan. So it is read again, alone,
because other scans may have taken the memory. A scan that fails every time ends the extraction: its nodules would be missing.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from itertools import islice
from multiprocessing import active_children
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import ModuleType

import numpy as np
from pebble import ProcessExpired, ProcessPool

from gmmae.data.extraction.annotations import raise_first
from gmmae.data.extraction.arrays import array_names, member
from gmmae.data.extraction.extract import extract
from gmmae.data.extraction.progress import Say, progress
from gmmae.data.extraction.tasks import Cube, Plan, Reading, Task
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError, TransientError, central_section
from gmmae.system.environment import cores
from gmmae.system.files import whole_file

PAUSES_S = (1.0, 5.0)
MAX_FAILURES_IN_A_ROW = 8
"""The extraction ends after so many, or after as many as there are workers, if more."""


def read(config: DataConfig, plan: Plan, kept: Mapping[Task, Path], say: Say) -> list[Reading]:
    """Reads all scans of a plan; `kept` names the file of each scan's result.

    Raises:
      DataError: a scan is broken and `data.on_error` is "refuse".
      TransientError: scans failed at every attempt, or too many in a row.
    """
    readings = [reading for task in plan.tasks if (reading := _load(kept[task], task))]
    done = {reading.task for reading in readings}
    left = [task for task in plan.tasks if task not in done]
    if done:
        say(f"{len(done)} of {len(plan.tasks)} scans were read before, {len(left)} are left")
    workers = cores() if config.workers == "auto" else config.workers
    # Only another process can be killed.
    workers = 0 if workers == 1 and config.scan_time_limit_s is None else workers
    failures, in_a_row, most = dict[Task, str](), 0, max(MAX_FAILURES_IN_A_ROW, workers)
    for pause_s in (0.0, *PAUSES_S):
        if not left or in_a_row == most:
            break
        time.sleep(pause_s)
        failed, in_a_row = list[Task](), 0
        with closing(_extract_all(left, config, min(workers, 1) if failures else workers)) as answers:
            for task, answer in progress(answers, len(left), "scans", say):
                if isinstance(answer, str):
                    say(f"not read: {task.label}: {answer}")
                    failures[task] = answer
                    failed.append(task)
                    in_a_row += 1
                    if in_a_row == most:
                        break
                    continue
                in_a_row = 0
                if config.on_error == "refuse":
                    raise_first(answer.faults, plan.remedy)
                if len(answer.cubes) == len(task.items):  # what has a fault is read again
                    with whole_file(kept[task]) as part, part.open("wb") as file:
                        np.savez(file, allow_pickle=False, **cube_arrays(answer.cubes))
                readings.append(answer)
        left = failed
    if left:
        raise TransientError(
            f"every scan must be read, or be broken itself; {len(left)} failed for transient reasons, "
            f"the first: {left[0].label}: {failures[left[0]]}: run the same command again (without --refresh), "
            "which reads only what is missing; to do without a scan, take its rows out of the CSV"
        )
    return readings


def cube_arrays(cubes: Sequence[Cube]) -> dict[str, np.ndarray]:
    """The fields of cubes, but the item. Beside images, volumes count by their central slice."""
    axes = min(cube.values.ndim for cube in cubes)
    columns = zip(*(cube[1:] for cube in cubes), strict=True)
    sections = ([central_section(np.array([field]), axes) for field in column] for column in columns)
    return dict(zip(Cube._fields[1:], map(np.concatenate, sections), strict=True))


def _load(path: Path, task: Task) -> Reading | None:
    with suppress(OSError, DataError, ValueError, TypeError):
        rows = zip(task.items, *(member(path, name) for name in array_names(path)), strict=True)
        return Reading(task, [Cube(*row) for row in rows])
    return None


def _extract_all(tasks: Sequence[Task], config: DataConfig, workers: int) -> Generator[tuple[Task, Reading | str], None, None]:
    """0 workers: this process, without a time limit."""
    if workers == 0:
        yield from ((task, extract(task, config)) for task in tasks)
        return
    waiting, running = iter(tasks), dict[Future[Reading | str], Task]()
    pool = ProcessPool(min(workers, len(tasks)), initializer=_begin, context=_Context())
    try:
        while pool.active:
            for task in islice(waiting, 2 * workers - len(running)):
                volumes = 1 if task.items[0].part is None else len(task.items)
                limit_s = (config.scan_time_limit_s or 0.0) * volumes
                running[pool.schedule(extract, (task, config), timeout=limit_s)] = task
            if not running:
                return
            # A broken pool may leave some without an answer.
            for future in wait(running, timeout=1.0, return_when=FIRST_COMPLETED).done:
                try:
                    answer = future.result()
                except TimeoutError:
                    answer = f"it was not read within data.scan_time_limit_s = {config.scan_time_limit_s} for each volume"
                except ProcessExpired as error:
                    why = "killed, too little memory, or a file that breaks its decoder"
                    answer = f"the process reading it died (status {error.exitcode}): {why}"
                yield running.pop(future), answer
        raise BrokenProcessPool("they end at once")
    except BrokenProcessPool as error:
        raise TransientError(
            f"processes must start to read the scans; it failed ({error}): run the same command again, perhaps with fewer "
            "data.workers"
        ) from error
    finally:
        pool.stop()
        _Worker.kill_all()  # Pebble takes their locks away first, and one that is still starting would print a traceback
        pool.join()


class _Worker(SpawnProcess):
    """A process that does not run the caller's main module again, and is deaf to Ctrl-C.

    A script without a guard would begin again in it, and `train.py` would import jax.
    """

    def start(self) -> None:
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @staticmethod
    def kill_all() -> None:
        for child in active_children():
            if isinstance(child, _Worker):
                child.kill()


class _Context(SpawnContext):
    Process = _Worker


def _begin() -> None:
    # PR_SET_PDEATHSIG: the kernel kills it with its parent, even in a hanging decoder.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    # Native libraries print between the command's lines.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)

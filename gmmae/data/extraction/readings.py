"""Reads all scans of a plan by worker processes, and repeats readings that fail for transient reasons.

A killed process, a time-out, or an error of the disk or the network says nothing about the scan. So the scan is read again,
alone, because other scans may have taken the memory. A scan that fails every time ends the extraction. Without this, a cache
entry would lack its nodules because of a transient error.

The result of each scan is kept in a file until the extraction is finished, so no scan is read twice after an interruption.
"""

import ctypes
import os
import signal
import sys
import time
import zipfile
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from queue import Empty, SimpleQueue
from types import ModuleType

import numpy as np
from pebble import ProcessExpired, ProcessPool

from gmmae.data.extraction.annotations import refuse
from gmmae.data.extraction.progress import Say, progress
from gmmae.data.extraction.tasks import Cube, Extracted, Plan, Reading, Task, Transient
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import TransientError
from gmmae.system.environment import cores
from gmmae.system.files import whole_file

PAUSES_S = (1.0, 5.0)
"""Seconds before each repetition."""
MAX_FAILURES_IN_A_ROW = 8
"""Consecutive failures after which the extraction ends. With more workers than this, their number counts."""
MAX_SCANS_NAMED = 5
"""Largest number of scans in the error. Earlier lines name all of them."""
POOL_CHECK_S = 1.0
"""Longest wait for an answer before a look whether the pool still works."""
PR_SET_PDEATHSIG = 1
"""Of Linux' `prctl`: the signal that a process gets when its parent ends."""


def read(config: DataConfig, plan: Plan, kept: Mapping[Task, Path], say: Say) -> list[Reading]:
    """Returns the results of all scans of a plan.

    Args:
      config: how cubes are cut, by how many processes, and whether broken scans end the extraction.
      plan: the scans.
      kept: the file of each scan's result.
      say: takes lines for the user.

    Raises:
      DataError: a scan is broken and `data.on_error` is "refuse".
      TransientError: scans failed at every attempt, or too many failed one after the other.
    """
    found = {task: _load(kept[task], task) for task in plan.tasks}
    readings = [Reading(task, result, ()) for task, result in found.items() if result]
    left = [task for task, result in found.items() if not result]
    if readings:
        say(f"{len(readings)} of {len(plan.tasks)} scans were read before, {len(left)} are left")
    with closing(_read_all(left, config, say)) as results:
        for reading in progress(results, len(left), "scans", say):
            task, result, _ = reading
            if config.on_error == "refuse":
                refuse(result.faults, plan.way_out)
            if len(result.cubes) == len(task.items):  # what has a fault is read again
                with whole_file(kept[task]) as part, part.open("wb") as file:
                    np.savez(file, allow_pickle=False, **cube_arrays(result.cubes))
            readings.append(reading)
    return readings


def cube_arrays(cubes: Sequence[Cube]) -> dict[str, np.ndarray]:
    """Returns the fields of cubes as arrays. `masked` says which have a mask; the others get zeros."""
    fields = ("values", "centre_mm", "edge_mm", "filled")
    return {name: np.array([getattr(cube, name) for cube in cubes]) for name in fields} | {
        "masked": np.array([cube.mask is not None for cube in cubes]),
        "masks": np.array([np.zeros(cube.values.shape, np.uint8) if cube.mask is None else cube.mask for cube in cubes]),
    }


def _load(path: Path, task: Task) -> Extracted | None:
    """Returns the kept result of a scan with the task's present items, or None where it cannot be read."""
    try:
        # NumPy leaves a damaged file open if it opens it itself.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            arrays: dict[str, np.ndarray] = dict(content)
        cubes = tuple(
            Cube(
                item,
                arrays["values"][i],
                arrays["masks"][i] if arrays["masked"][i] else None,
                tuple(arrays["centre_mm"][i].tolist()),
                float(arrays["edge_mm"][i]),
                float(arrays["filled"][i]),
            )
            for i, item in enumerate(task.items)
        )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return Extracted(cubes, ())


def _read_all(tasks: Sequence[Task], config: DataConfig, say: Say) -> Generator[Reading, None, None]:
    """Yields the reading of each task in the order in which they finish. Repeated ones come last."""
    # Only another process can be killed. Without a time limit, one worker may as well be this process.
    wanted = cores() if config.workers == "auto" else config.workers
    workers = 0 if config.workers == 1 and config.scan_time_limit_s is None else wanted
    failures = defaultdict[Task, list[str]](list)
    left, untried = list(tasks), 0
    for pause_s in (0.0, *PAUSES_S):
        time.sleep(pause_s)
        if failures:
            say(f"scans that are read again, one at a time: {len(left)}; the first: {left[0].label}: {failures[left[0]][-1]}")
        failed: list[Task] = []
        in_a_row = 0
        with closing(_extract_all(left, config, min(workers, 1) if failures else workers)) as answers:
            for tried, (task, answer) in enumerate(answers, start=1):
                if isinstance(answer, Extracted):
                    in_a_row = 0
                    yield Reading(task, answer, tuple(failures[task]))
                    continue
                failures[task].append(answer.text)
                failed.append(task)
                in_a_row += 1
                if in_a_row == max(MAX_FAILURES_IN_A_ROW, workers) and (untried := len(left) - tried):
                    break
        left = failed
        if not left:
            return
        if untried:
            break
    lines = [f"{task.label}: {failures[task][-1]}" for task in left]
    for line in lines:
        say(f"not read: {line}")
    more = f"; and {len(lines) - MAX_SCANS_NAMED} more" if len(lines) > MAX_SCANS_NAMED else ""
    rest = f", {untried} more were not tried" if untried else ""
    raise TransientError(
        f"every scan must be read, or be broken itself; {len(lines)} failed for transient reasons{rest}: "
        f"{'; '.join(lines[:MAX_SCANS_NAMED])}{more}; run the same command again (without --refresh): it reads only what is "
        "missing; to do without a scan, take its rows out of the CSV"
    )


def _extract_all(
    tasks: Sequence[Task], config: DataConfig, workers: int
) -> Generator[tuple[Task, Extracted | Transient], None, None]:
    """Yields all tasks with their results, in the order in which they finish. 0 workers: this process, without a time limit."""
    if workers == 0:
        yield from ((task, _extract(task, config)) for task in tasks)
        return
    left = {task: (config.scan_time_limit_s or 0.0) * task.volumes for task in tasks}
    finished = SimpleQueue[tuple[Task, "Future[Extracted | Transient]"]]()
    pool, broken = ProcessPool(min(workers, len(tasks)), initializer=_begin, context=_Context()), False
    try:
        try:
            for task, limit_s in left.items():
                future = pool.schedule(_extract, (task, config), timeout=limit_s)
                future.add_done_callback(lambda future, task=task: finished.put((task, future)))
        except RuntimeError:  # as where the system starts no process
            broken = True
        while left and not (broken and finished.empty()):
            try:
                task, future = finished.get(timeout=POOL_CHECK_S)
            except Empty:
                broken = not pool.active
                continue
            limit_s = left.pop(task)
            try:
                answer = future.result()
            except TimeoutError:
                answer = Transient(f"it was not read within {limit_s:g} s (data.scan_time_limit_s is for each volume)")
            except (OSError, BrokenProcessPool) as error:
                how = f"status {error.exitcode}" if isinstance(error, ProcessExpired) else error
                why = "killed, too little memory, or a file that breaks its decoder"
                answer = Transient(f"the process reading it died ({how}): {why}")
            yield task, answer
        # Of these a broken pool says nothing.
        yield from ((task, Transient("no process to read it could be started")) for task in left)
    finally:
        pool.stop()
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


class _Context(SpawnContext):
    Process = _Worker


def _begin() -> None:
    """Prepares a worker. Imports do not count for the time limit of its first scan."""
    import gmmae.data.extraction.extract  # noqa: F401

    # The kernel kills it with its parent, even in a decoder that hangs.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # What native libraries print would get between the lines of the command.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)


def _extract(task: Task, config: DataConfig) -> Extracted | Transient:
    # SimpleITK is only needed where scans are read, and costs half a second to import.
    from gmmae.data.extraction.extract import extract

    return extract(task, config)

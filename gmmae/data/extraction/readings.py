"""Reads all scans of a plan, and repeats readings that fail for transient reasons.

A killed process, a time-out, or an error of the disk or the network says nothing about the scan. So the scan is read again,
alone, because other scans may have taken the memory. A scan that fails every time ends the extraction. Without this, a cache
entry would lack its nodules because of a transient error.

The part of each scan is kept, so that no scan is read twice after an interruption.
"""

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from gmmae.data.extraction.annotations import refuse
from gmmae.data.extraction.processes import extract_all
from gmmae.data.extraction.progress import Say, progress
from gmmae.data.extraction.scan_cache import load, part_path, save
from gmmae.data.extraction.tasks import Extracted, Plan, Reading, Task
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import TransientError
from gmmae.system.environment import cores

PAUSES_S = (1.0, 5.0)
"""Seconds before each repetition."""

MAX_FAILURES_IN_A_ROW = 8
"""Consecutive failures after which the extraction ends. With more workers than this, their number counts."""

MAX_SCANS_NAMED = 5
"""Largest number of scans in the error. Earlier lines name all of them."""


def read(config: DataConfig, plan: Plan, version: int, folder: Path, say: Say) -> list[Reading]:
    """Returns the results of all scans of a plan.

    Args:
      config: how cubes are cut, by how many processes, and whether broken scans end the extraction.
      plan: the scans.
      version: of the results.
      folder: of the parts.
      say: takes lines for the user.

    Raises:
      DataError: a scan is broken and `data.on_error` is "refuse".
      TransientError: scans failed at every attempt, or too many failed one after the other.
    """
    paths = {task: part_path(folder, version, task, config) for task in plan.tasks}
    kept = {task: result for task, path in paths.items() if (result := load(path, task)) is not None}
    readings = [Reading(task, result, ()) for task, result in kept.items()]
    left = [task for task in plan.tasks if task not in kept]
    if kept:
        say(f"{len(kept)} of {len(plan.tasks)} scans were read before, {len(left)} are left")
    with closing(_read_all(left, config, say)) as results:
        for reading in progress(results, len(left), "scans", say):
            if config.on_error == "refuse":
                refuse(reading.result.faults, plan.way_out)
            save(paths[reading.task], reading.task, reading.result)
            readings.append(reading)
    return readings


def _read_all(tasks: Sequence[Task], config: DataConfig, say: Say) -> Generator[Reading, None, None]:
    """Yields the reading of each task in the order in which they finish. Repeated ones come last."""
    # Only another process can be killed. Without a time limit, one worker may as well be this process.
    wanted = cores() if config.workers == "auto" else config.workers
    workers = 0 if config.workers == 1 and config.scan_time_limit_s is None else wanted
    failures: dict[Task, tuple[str, ...]] = {}
    left, most = list(tasks), max(MAX_FAILURES_IN_A_ROW, workers)
    for repetitions, pause_s in enumerate((0.0, *PAUSES_S)):
        time.sleep(pause_s)
        failed: list[Task] = []
        in_a_row = tried = 0
        with closing(extract_all(left, config, workers)) as answers:
            for task, result in answers:
                tried += 1
                if isinstance(result, Extracted):
                    in_a_row = 0
                    yield Reading(task, result, failures.get(task, ()))
                    continue
                failures[task] = (*failures.get(task, ()), result.text)
                failed.append(task)
                in_a_row += 1
                if in_a_row == most and tried < len(left):
                    raise _error(failed, failures, len(left) - tried, say)
        if not failed:
            return
        left, workers = failed, min(workers, 1)
        if repetitions < len(PAUSES_S):
            say(f"scans that are read again, one at a time: {len(left)}; the first: {_line(left[0], failures)}")
    raise _error(left, failures, 0, say)


def _error(failed: Sequence[Task], failures: Mapping[Task, Sequence[str]], untried: int, say: Say) -> TransientError:
    for task in failed:
        say(f"not read: {_line(task, failures)}")
    named = "; ".join(_line(task, failures) for task in failed[:MAX_SCANS_NAMED])
    more = f"; and {len(failed) - MAX_SCANS_NAMED} more" if len(failed) > MAX_SCANS_NAMED else ""
    rest = f", {untried} more were not tried" if untried else ""
    return TransientError(
        f"every scan must be read, or be broken itself; {len(failed)} failed for transient reasons{rest}: {named}{more}; "
        "run the same command again (without --refresh): it reads only what is missing; to do without a scan, take its rows "
        "out of the CSV"
    )


def _line(task: Task, failures: Mapping[Task, Sequence[str]]) -> str:
    return f"{task.label}: {failures[task][-1]}"

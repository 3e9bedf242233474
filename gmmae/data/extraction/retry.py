"""Reads all scans, and repeats readings that fail for transient reasons.

A killed process, a time-out, or an error of the disk or the network says nothing about the scan. So the scan is read again,
alone, because other scans may have taken the memory. A scan that fails every time ends the extraction. Without this, a cache
entry would lack its nodules because of a transient error.
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing

from gmmae.data.extraction.extract import Options
from gmmae.data.extraction.processes import extract_all
from gmmae.data.extraction.tasks import Extracted, Reading, Task
from gmmae.data.volumes import TransientError

PAUSES_S = (1.0, 5.0)
"""Seconds before each repetition."""

MAX_FAILURES_IN_A_ROW = 8
"""Consecutive failures after which the extraction ends. With more workers than this, their number counts."""

MAX_SCANS_NAMED = 5
"""Largest number of scans in the error. Earlier lines name all of them."""


def read_all(
    tasks: Sequence[Task], options: Options, workers: int, limit_s: float, say: Callable[[str], None]
) -> Generator[Reading, None, None]:
    """Yields the reading of each task in the order in which they finish. Repeated ones come last.

    Args:
      tasks: one for each scan.
      options: how cubes are cut.
      workers: number of processes; 0: this process, without a time limit.
      limit_s: longest time for a volume, or 0.
      say: takes lines for the user.

    Raises:
      TransientError: scans failed at every attempt, or too many failed one after the other.
    """
    failures: dict[Task, tuple[str, ...]] = {}
    left, most = list(tasks), max(MAX_FAILURES_IN_A_ROW, workers)
    for repetitions, pause_s in enumerate((0.0, *PAUSES_S)):
        time.sleep(pause_s)
        failed: list[Task] = []
        row = tried = 0
        with closing(extract_all(left, options, workers, limit_s)) as answers:
            for task, result in answers:
                tried += 1
                if isinstance(result, Extracted):
                    row = 0
                    yield Reading(task, result, failures.get(task, ()))
                    continue
                failures[task] = (*failures.get(task, ()), result.text)
                failed.append(task)
                row += 1
                if row == most and tried < len(left):
                    raise _error(failed, failures, len(left) - tried, say)
        if not failed:
            return
        left, workers = failed, min(workers, 1)
        if repetitions < len(PAUSES_S):
            say(f"scans that are read again, one at a time: {len(left)}; the first: {_line(left[0], failures)}")
    raise _error(left, failures, 0, say)


def _error(
    failed: Sequence[Task], failures: dict[Task, tuple[str, ...]], untried: int, say: Callable[[str], None]
) -> TransientError:
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


def _line(task: Task, failures: dict[Task, tuple[str, ...]]) -> str:
    return f"{task.label}: {failures[task][-1]}"

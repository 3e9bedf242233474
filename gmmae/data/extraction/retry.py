"""Reading all scans although some readings fail for reasons that pass.

A killed process, an error of the disk or the network, or a time-out says nothing about the scan, so it is read again; alone, so
that memory which others took is free. What fails every time is named and ends the extraction: if it were left out as a broken
scan is, its nodules would be lost for as long as the cache lives, because of one bad moment.
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
"""So many failures one after the other, or as many as there are workers, are no scans' any more: nothing else is tried."""

MAX_SCANS_NAMED = 5
"""Scans that the error names; all are said before."""


def read_all(
    tasks: Sequence[Task], options: Options, workers: int, limit_s: float, say: Callable[[str], None]
) -> Generator[Reading, None, None]:
    """Every task's reading, in the order in which they are finished; those that failed at first come last.

    Args:
      tasks: one for each scan.
      options: how cubes are cut.
      workers: processes; 0 is this one, without a limit.
      limit_s: longest time for a volume, or 0.
      say: takes lines for the user.

    Raises:
      TransientError: scans are left that could not be read at any attempt, or too many failed one after the other.
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
        f"every scan must be read, or be broken itself; {len(failed)} failed for reasons that may pass{rest}: {named}{more}; "
        "run the same command again (without --refresh): it reads only what is missing; to do without a scan, take its rows "
        "out of the CSV"
    )


def _line(task: Task, failures: dict[Task, tuple[str, ...]]) -> str:
    return f"{task.label}: {failures[task][-1]}"

"""What Slurm says of its queue, and of the task that asks."""

import os
import re
import subprocess
from typing import NamedTuple

DEFAULT_MAX_ARRAY_SIZE = 1001
"""Slurm's own limit of an array, for a cluster that does not state another."""


class Listed(NamedTuple):
    """The user's jobs in Slurm, including those that ended in the last minutes."""

    states: dict[str, str]  # by number, such as 7, or 7_2 in an array
    numbers: dict[str, str]  # by name and index in the array, such as gmmae-1f_2


def listed() -> Listed | None:
    """Returns the jobs that Slurm lists, or None when it does not answer."""
    text = slurm_answer("squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i %T %j")
    if text is None:
        return None
    lines = [line.split(maxsplit=2) for line in text.splitlines()]
    states = {number: state for number, state, *_ in lines}
    named = (line for line in lines if len(line) == 3)
    return Listed(states, {name + "".join(number.partition("_")[1:]): number for number, _, name in named})


def max_array_size() -> int:
    """Returns the maximum number of jobs that the cluster accepts in one array."""
    limit = re.search(r"^MaxArraySize\s*=\s*(\d+)", slurm_answer("scontrol", "show", "config") or "", re.MULTILINE)
    return max(1, int(limit[1])) if limit else DEFAULT_MAX_ARRAY_SIZE


def slurm_number() -> str:
    """Returns Slurm's number of this task. The number of an array alone may mean all of its tasks."""
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID')}"
    return os.environ.get("SLURM_JOB_ID", "")


def still_running() -> bool:
    """Returns whether Slurm lists this job as running, so that it is not being cancelled."""
    states = slurm_answer("squeue", "--noheader", f"--jobs={slurm_number()}", "--format=%T")
    return states is not None and states.split() == ["RUNNING"]


def slurm_answer(*command: str) -> str | None:
    """Returns the output of one of Slurm's commands, or None if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None

"""What cluster_slurm and cluster_local have in common: a job that submitit has, and the result that it leaves."""

import contextlib
import math
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gmmae.sweep.cluster.task import ClusterTask
from gmmae.sweep.supervisor import Ended, Job, last_lines
from gmmae.system.errors import InputError


@dataclass
class Submitted:
    job: Job
    handle: Any  # submitit's job
    runs: bool = False
    began: float = math.nan
    gone: float = math.nan  # since when it is over without a result


class Host(Protocol):
    """Where jobs run."""

    tick_s: float

    def submit(self, waiting: deque[Job], current: list[Submitted]) -> None: ...
    def look(self, current: Sequence[Submitted]) -> list[Ended | None]: ...
    def result(self, each: Submitted) -> Ended | None: ...
    def end(self, current: Sequence[Submitted]) -> None: ...
    def forget(self, gone: Iterable[Submitted]) -> None: ...


def result_of(each: Submitted) -> Ended | None:
    """What the first task has left: the others follow it, since it tells of their loss as of its own failure."""
    try:
        outcome, value = pickle.loads(each.handle.paths.result_pickle.read_bytes())
    except (FileNotFoundError, EOFError):
        return None
    return value if outcome == "success" else without_result(each, value.strip().rpartition("\n")[2])


def without_result(each: Submitted, why: str) -> Ended:
    last = last_lines(each.handle.paths.stderr)
    why = why if not last or last in why else f"{why}: {last}"
    text = f"job {each.handle.job_id} ended without a result, {why} ({each.handle.paths.stderr})"
    return Ended(each.job.name, -signal.SIGKILL, False, 0.0, error=text)


def load_submitit() -> Any:
    try:
        import submitit
    except ImportError as error:
        raise InputError(
            f"executor must be processes where submitit is missing; got no {error.name or 'submitit'}: "
            "pip install -e '.[cluster]', or --executor processes"
        ) from None
    return submitit


def task(job: Job, grace_s: float, *, local: bool) -> ClusterTask:
    """What submitit is given for a job; a cluster's nodes see the log and this folder under the same names."""
    return ClusterTask(job._replace(log=job.log.absolute()), grace_s, os.getcwd(), local)


@contextlib.contextmanager
def importable() -> Iterator[None]:
    """What is started in the meantime imports what this process can."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before

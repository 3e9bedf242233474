"""A sweep's jobs through submitit: Slurm's jobs, or processes of this host that are started in the same way.

The counterpart of `supervisor.supervise`. What runs in a job is `cluster_task`.
"""

import contextlib
import math
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gmmae.sweep.cluster.host import Host, Submitted
from gmmae.sweep.cluster.local import Local
from gmmae.sweep.cluster.slurm import Slurm
from gmmae.sweep.grid import SweepConfig
from gmmae.sweep.supervisor import Ended, Job
from gmmae.system.interrupts import Interrupts


def run_jobs(
    jobs: Sequence[Job],
    *,
    config: SweepConfig,
    folder: Path,
    at_once: int,
    timed: bool,
    on_start: Callable[[Job], None],
    on_end: Callable[[Job, Ended], None],
    on_tick: Callable[[Sequence[tuple[Job, float]]], None] = lambda _: None,
    places: Sequence[Mapping[str, str]] = (),
) -> str | None:
    """Submit the jobs, and return when all have ended.

    SIGTERM or SIGINT to this process cancels the jobs, and they write checkpoints; SIGINT after that ends the waiting for them.
    If this process is killed, local jobs end with it. Slurm's go on, and the next call takes them over; so it is where a
    closed terminal ends this process by SIGHUP.

    Args:
      jobs: the programs.
      config: executor, grace, and what Slurm is asked for.
      folder: submitit's files, and which jobs are submitted; the nodes see it under the same name.
      at_once: the most that run at a time, with the local executor.
      timed: whether times are measured: Slurm jobs then get whole nodes.
      on_start, on_end, on_tick: as of `supervise`.

    Returns:
      None, or the reason of `gmmae.training.stopping` when it was interrupted.

    Raises:
      InputError: submitit is missing, or Slurm, or what is asked of it is refused.
    """
    if not jobs:
        return None
    with Interrupts(hangup=config.executor != "slurm") as signals, contextlib.ExitStack() as stack:
        if config.executor == "slurm":
            host: Host = Slurm(config, folder / "slurm", timed)
        else:
            host = stack.enter_context(Local(config, folder / "local", at_once, places))
        waiting, current = deque(jobs), list[Submitted]()
        try:
            while (waiting or current) and signals.reason is None:
                host.submit(waiting, current)
                for each, ended in zip(list(current), host.look(current), strict=True):
                    if math.isnan(each.began) and (ended or each.runs):
                        each.began = time.monotonic()
                        on_start(each.job)
                    if ended:
                        current.remove(each)
                        on_end(each.job, _as_failure(each, ended))
                        host.forget([each])
                now = time.monotonic()
                on_tick([(each.job, now - each.began) for each in current if not math.isnan(each.began)])
                if current:
                    time.sleep(host.tick_s)
        finally:
            host.end(current)
        for each in current:
            if not math.isnan(each.began):
                seconds = time.monotonic() - each.began
                ended = host.result(each) or Ended(each.job.name, -signal.SIGTERM, False, seconds, interrupted=True)
                on_end(each.job, ended)
    return signals.reason


def _as_failure(each: Submitted, ended: Ended) -> Ended:
    """A job that somebody else cancelled is no interruption of the sweep."""
    if not ended.interrupted:
        return ended
    return ended._replace(interrupted=False, error=f"job {each.handle.job_id} was cancelled")

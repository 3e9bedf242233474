"""When a fault strikes: each of these starts a run's processes and returns at its moment, with what is true just then.

Every moment takes the run, its random numbers and the process that is meant. A moment is hit if what it returns is still true
after the fault.
"""

import time
from collections.abc import Callable
from random import Random

from tests.faults.runs import EPOCHS, EVERY, PATIENCE_S, Run

Moment = Callable[[Run, Random, int], Callable[[], bool]]


def alone(run: Run, rng: Random, rank: int) -> Callable[[], bool]:
    """One process only is there, and imports JAX; the other is started after the fault."""
    run.start(rank)
    run.wait_until(lambda: run.starts_jax(rank), 0.002)
    time.sleep(rng.uniform(0.0, 2.0))
    return lambda: True


def waiting(run: Run, rng: Random, rank: int) -> Callable[[], bool]:
    """Process 0 listens; the other one is started after the fault."""
    run.start(0)
    run.wait_until(run.listens, 0.002)
    return run.listens


def unmet(run: Run, rng: Random, rank: int) -> Callable[[], bool]:
    """Both have been started, and have not met."""
    run.start(0, 1)
    time.sleep(rng.uniform(0.05, 0.6))
    return lambda: not run.met()


def starting(run: Run, rng: Random, rank: int) -> Callable[[], bool]:
    """They have met; JAX starts, the programs are compiled."""
    run.start(0, 1)
    run.wait_until(run.met, 0.002)
    time.sleep(rng.uniform(0.0, 4.0))
    return lambda: run.epochs() == 0


def epoch(run: Run, rng: Random, rank: int) -> Callable[[], bool]:
    """Training or validation, no checkpoint being written."""
    _go_on(run, rng)
    time.sleep(rng.uniform(0.0, 0.08))
    run.wait_until(lambda: not run.saving())
    return lambda: run.epochs() < EPOCHS and not run.saving()


def checkpoint(run: Run, rng: Random, rank: int) -> Callable[[], bool]:
    """Orbax's temporary folder is there."""
    _go_on(run, rng)
    wait_s = rng.uniform(0.0, 0.1)
    while True:
        run.wait_until(lambda: not run.saving())
        run.wait_until(run.saving)
        time.sleep(wait_s)
        if run.saving():
            return run.saving
        wait_s /= 2


def _go_on(run: Run, rng: Random) -> None:
    """A new run has its first checkpoint afterwards; one that has been struck before, new epochs."""
    done = run.epochs()
    after = done + rng.randint(1, 2) if done else rng.randint(EVERY + 1, 12)
    run.start(0, 1)
    run.wait_until(lambda: run.epochs() >= after)


def first_epoch(run: Run, rng: Random, rank: int) -> Callable[[], bool]:
    """A moment before the first checkpoint."""
    run.start(0, 1)
    run.wait_until(lambda: run.epochs() >= 1)
    return lambda: run.epochs() <= EVERY and not (run.workdir / "checkpoints" / str(EVERY)).exists()


def last_row_of_a_page(run: Run, rng: Random, rank: int) -> Callable[[], bool]:
    """The next row or the one after needs another page of memory for `history.csv`."""
    run.start(0, 1)
    history = run.workdir / "history.csv"
    run.wait_until(lambda: history.exists() and history.stat().st_size > 4096 - 320)
    return lambda: history.stat().st_size < 4096 and not run.saving()


def extraction(run: Run, rng: Random, rank: int) -> Callable[[], bool]:
    """Workers read scans."""
    run.start(0, 1)
    run.wait_until(lambda: len(run.workers()) > 0)
    return lambda: len(run.workers()) > 0


def figures(run: Run, rng: Random, rank: int) -> Callable[[], bool]:
    """The run has ended, and process 1 with it; process 0 draws the figures."""
    run.start(0, 1)
    run.processes[1].wait(PATIENCE_S)
    return lambda: not (run.workdir / "figures" / "losses.png").exists()


MOMENTS: dict[str, Moment] = {
    "before the other process is there": alone,
    "while it waits for the other process": waiting,
    "before they have met": unmet,
    "JAX's start and compilation": starting,
    "an epoch": epoch,
    "a checkpoint": checkpoint,
    "the first epoch": first_epoch,
    "end of a page of the history": last_row_of_a_page,
    "the figures": figures,
    "the extraction": extraction,
}

"""Faults in a row on one run, each after the run has gone on from the one before: one start a fault, half of a trial's."""

import time
from collections.abc import Iterator, Sequence
from random import Random

from tests.faults.faults import BESIDE, STOPPED, Fault
from tests.faults.runs import PATIENCE_S
from tests.faults.trials import MANY_CHECKPOINTS, Bench, Trial, again, befall, clear, compare, look_back, no_disk

FIRST_EPOCHS = 7
"""Epochs before the first fault: there have to be more checkpoints than damages when these come."""


def in_a_row(bench: Bench, faults: Sequence[Fault], seed: str) -> Iterator[Trial]:
    """The trials as they end; the last one also says whether the run has the bits of the undisturbed one.

    A fault between two runs leaves it to the next start to show what the fault before it did. A moment that was missed is not
    tried again.
    """
    run, rng = bench.run(MANY_CHECKPOINTS), Random(seed)
    last: Trial | None = None
    try:
        no_mount = no_disk(run)
        run.start(0, 1)
        run.wait_until(lambda: run.epochs() >= FIRST_EPOCHS)
        for fault in faults:
            start = time.monotonic()
            trial = Trial(fault.kind, fault.moment, bound_s=fault.bound_s)
            if fault.disk and no_mount:
                trial.skipped = no_mount
                yield trial
                continue
            try:
                befall(fault, rng, run, trial)
            except Exception as error:
                trial.failed(error)
            if last:
                if fault.moment != STOPPED:
                    look_back(run, last)
                yield last
            trial.wall_s = time.monotonic() - start
            last = trial
            if trial.complaints:
                break
        if last:
            codes = run.finish(PATIENCE_S) if last.moment == BESIDE else again(run, last)
            compare(run, codes, bench.wanted, last)
            yield last
    finally:
        clear(run)

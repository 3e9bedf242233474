"""Estimates the minutes of the paper's grid on one H100, in three ways. Nothing runs: every result is an estimate.

    python -m benchmarks.sweep_estimate [--run.stop.max-epochs 400] [...]

The three ways are a process for each run, one worker that stays, and one worker that trains the runs of a batch together. All
options are those of sweep.py, and the configuration is `sweep_paper`. `H100` has the numbers that the estimate rests on, each
with its source. This command measures what is estimated, on the GPU at hand:

    python sweep.py --config sweep_paper
"""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.child import ROOT
from benchmarks.options import Parser, guarded
from gmmae.cli.arguments import parse_sweep
from gmmae.plotting.tables import Table, markdown
from gmmae.scaling.batches import plan_batches
from gmmae.scaling.strategies import resolve
from gmmae.sweep.grid import SweepConfig, run_groups
from gmmae.sweep.populations import MAX_RUNS
from gmmae.system.stop_reasons import TARGET_REACHED
from gmmae.training import fingerprint

STUDY = ROOT / "results" / "study" / "nodules_real" / "cells.csv"
"""The runs of a sweep with the paper's model, learning rate and target, on 574 real nodules (docs/study.md, 1)."""


class Speed(NamedTuple):
    """Seconds of the parts of a run of `paper.toml` in float32.

    Attributes:
      start: of a process, from its beginning to the first epoch. Its programs are compiled meanwhile.
      compile: of all programs of a batch, with nothing cached.
      reuse: of a run in a worker that has its data and its programs: initial state, files and pictures.
      step: of a step, whatever its number of samples.
      sample: of a sample in a step, beside that.
      further_run: of a further run in a step of several, beside its samples.
      between_epochs: of validation and the host's work after an epoch of a run.
    """

    start: float
    compile: float
    reuse: float
    step: float
    sample: float
    further_run: float
    between_epochs: float


H100 = Speed(
    # Measured for quickstart, with jax 0.11.2, where each run was a process. The start of paper.toml was not measured.
    start=22.0,
    # Measured for paper.toml: docs/measurements/h100.md. The numbers below are from there, unless said otherwise.
    compile=35.9,
    # Assumed.
    reuse=1.0,
    # A step of 32 samples takes 438 µs. This is without its samples.
    step=265e-6,
    # The three convolutions take 310 µs at batch 32 and 1348 µs at 256. The kernel of the loss takes 25 µs at 32.
    sample=5.4e-6,
    # 82 MB, counted in a compiled program of several runs, at the 1768 GB/s of a measured copy.
    further_run=46e-6,
    # 60 epochs take 2.4 s without compilation. This is without their 58 steps each.
    between_epochs=14.6e-3,
)
"""Measured on an H100 80GB HBM3, or derived from such measurements."""


class Run(NamedTuple):
    """A run to compute.

    Attributes:
      batch: its global batch.
      steps: of an epoch.
      epochs: to its end.
    """

    batch: int
    steps: int
    epochs: int


class Minutes(NamedTuple):
    """Minutes of a sweep by what they are spent on."""

    starts: float
    compiling: float
    steps: float
    between_epochs: float


def runs(config: SweepConfig, samples: int, steps_to_target: Mapping[tuple[str, int, int], int]) -> list[Run]:
    """Returns the runs that a sweep computes.

    Args:
      config: the sweep.
      samples: the size of the training set.
      steps_to_target: by strategy, number of devices and seed. A run without an entry trains for all its epochs.
    """
    most = config.run.stop.max_epochs
    found = []
    for key, _ in run_groups(config, samples):
        batch = resolve(key.scaling, config.run.optim, key.devices, samples).global_batch
        steps = plan_batches(samples, batch, 1).steps
        epochs = math.ceil(steps_to_target[key] / steps) if key in steps_to_target else most
        found.append(Run(batch, steps, min(epochs, most)))
    return found


def steps_to_target(path: Path = STUDY) -> dict[tuple[str, int, int], int]:
    """Returns the steps of the runs that reached their target, by strategy, number of devices and seed."""
    with path.open(newline="", encoding="utf-8") as file:
        return {
            (row["scaling"], int(row["devices"]), int(row["seed"])): int(row["steps"])
            for row in csv.DictReader(file)
            if row["outcome"] == TARGET_REACHED
        }


def in_processes(found: Sequence[Run], speed: Speed) -> Minutes:
    """Returns the minutes of a process for each run, one after the other. Each compiles its programs in its start."""
    return _minutes(speed.start * len(found), 0.0, sum(_steps_s(run, speed) for run in found), found, speed)


def in_a_worker(found: Sequence[Run], speed: Speed) -> Minutes:
    """Returns the minutes of one worker that compiles the programs of each batch once."""
    starts = speed.start + speed.reuse * len(found)
    compiling = speed.compile * len({run.batch for run in found})
    return _minutes(starts, compiling, sum(_steps_s(run, speed) for run in found), found, speed)


def together(found: Sequence[Run], speed: Speed) -> Minutes:
    """Returns the minutes of one worker that trains the runs of each batch together, as `gmmae.training.population` does.

    A program has a place for each run. Once half of the places are free, another program has fewer of them.
    """
    compiled: set[tuple[int, int]] = set()
    steps_s = 0.0
    for batch in {run.batch for run in found}:
        runs_of_batch = [run for run in found if run.batch == batch]
        parts = math.ceil(len(runs_of_batch) / MAX_RUNS)
        for part in range(parts):
            active, places, epoch = runs_of_batch[part::parts], 0, 0
            while active:
                if len(active) <= places / 2 or not places:
                    places = len(active)
                    compiled.add((batch, places))
                first = min(active, key=lambda run: run.epochs)
                steps_s += _steps_s(first._replace(epochs=first.epochs - epoch), speed, places)
                active, epoch = [run for run in active if run.epochs > first.epochs], first.epochs
    return _minutes(speed.start + speed.reuse * len(found), speed.compile * len(compiled), steps_s, found, speed)


def _steps_s(run: Run, speed: Speed, count: int = 1) -> float:
    """Returns the seconds of the steps of a run, or of `count` runs together."""
    step = speed.step + count * run.batch * speed.sample + (count - 1) * speed.further_run
    return run.epochs * run.steps * step


def _minutes(starts_s: float, compiling_s: float, steps_s: float, found: Sequence[Run], speed: Speed) -> Minutes:
    between_s = speed.between_epochs * sum(run.epochs for run in found)
    return Minutes(*(seconds / 60 for seconds in (starts_s, compiling_s, steps_s, between_s)))


WAYS = {
    "a process for each run": in_processes,
    "a worker that stays": in_a_worker,
    "a worker that stays, runs of a batch together": together,
}


def table(config: SweepConfig, samples: int, speed: Speed = H100) -> Table:
    """Returns the estimates for epochs as in the study, and for all epochs."""
    rows = []
    for epochs, of_runs in (("as in the study", steps_to_target()), ("all", {})):
        found = runs(config, samples, of_runs)
        for name, way in WAYS.items():
            minutes = way(found, speed)
            rows.append((epochs, name, *(f"{value:.1f}" for value in minutes), f"{sum(minutes):.0f}"))
    columns = ("epochs", "way", "starts, min", "compiling, min", "steps, min", "between epochs, min", "all, min")
    return Table("sweep_estimate", "The paper's grid on one H100: estimates, not measured", columns, tuple(rows), NOTES)


NOTES = (
    "Epochs as in the study: each run takes as many steps as the same run on real nodules took to the target. Runs that missed "
    "it there take all epochs. The paper's data here are synthetic, so this is a guess.",
    "A process compiles in its start. A worker compiles the programs of each batch once, with nothing cached: an upper limit.",
    "Steps above a batch of 32, and those of several runs together, were not timed. Their times follow from parts of them.",
)


def main() -> None:
    """Prints the table."""
    parser = Parser(__doc__, "python -m benchmarks.sweep_estimate", allow_abbrev=False)  # the options are sweep.py's
    _, words = parser.parse_known_args()
    config = parse_sweep(["--config", "sweep_paper", *words], parser.prog).config
    print(markdown(table(config, fingerprint.load(config.run).samples)), end="")


if __name__ == "__main__":
    guarded(main)

"""Measures strong scaling from one core to two, by step time and by time to the target.

    python benchmarks/strong_scaling.py [--rounds 3] [--epochs 6] [--to-target]
    python benchmarks/strong_scaling.py --one-process --config paper    # two devices of one process instead

Each process is pinned to its own core. Two processes communicate by Gloo, two devices through memory. Two more kinds of runs
explain the loss of efficiency: half the batch on one core alone, and on both cores at once without communication.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from benchmarks.child import ROOT, free_ports
from benchmarks.options import Parser, at_least, guarded
from gmmae.config.toml import find
from gmmae.training.records import read_history
from gmmae.workloads.configuration import read_config

WARM = 1
"""Number of first epochs that are not counted."""


class Kind(NamedTuple):
    """Kind of run: processes at the same time, each on its own core."""

    name: str
    processes: int
    share: float = 1.0  # of the configuration's batch
    together: bool = False  # whether the processes are one run
    cores: int = 1  # of a process, each of which is a device


ONE = Kind("one core", 1)
TWO = Kind("two cores", 2, together=True)
DEVICES = Kind("two devices of one process", 1, cores=2)
HALF = Kind("half the batch, one core", 1, share=0.5)
HALVES = Kind("half the batch, on each core by itself", 2, share=0.5)


def main() -> None:
    """Prints the tables."""
    parser = Parser(__doc__)
    parser.add_argument("--config", default="quickstart")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="number of timed rounds of all kinds of runs")
    parser.add_argument(
        "--epochs", type=at_least(1 + WARM), default=6, help="epochs of each run, of which the first is not counted"
    )
    parser.add_argument("--one-process", action="store_true", help="two devices of one process rather than two processes")
    parser.add_argument("--to-target", action="store_true", help="also run to the target, once on one and once on two cores")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        parser.error(f"two cores must be there; got {len(cores)}")
    print(f"jax {jax.__version__}, Python {sys.version.split()[0]}, cores {cores[:2]}, {args.config}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        shared = DEVICES if args.one_process else TWO
        steps_table(shared, args.config, Path(folder), cores, args.rounds, args.epochs)
        if args.to_target:
            target_table(shared, args.config, Path(folder), cores)


def steps_table(shared: Kind, config: str, folder: Path, cores: Sequence[int], rounds: int, epochs: int) -> None:
    """Prints the step times of all kinds, measured alternately so that other work affects them alike."""
    limits = ("--stop.target", "none", "--stop.max-epochs", str(epochs))
    times: dict[Kind, list[float]] = {kind: [] for kind in (ONE, shared, HALF, HALVES)}
    for i in range(rounds):
        for kind, found in times.items():
            found.append(step_s(train(kind, config, folder / f"{i}-{kind.name}", cores, limits)))
    one, two, half, halves = (1000 * statistics.median(found) for found in times.values())
    print("\n| runs | step, ms | least, most |\n|---|---|---|")
    for kind, found in times.items():
        print(f"| {kind.name} | {1000 * statistics.median(found):.1f} | {1000 * min(found):.1f}, {1000 * max(found):.1f} |")
    print(f"\nefficiency {_percent(efficiencies(times[ONE], times[shared]))}")
    print(f"efficiency if communication were free {_percent(efficiencies(times[ONE], times[HALVES]))}")
    print("\n| a step on two cores | ms |\n|---|---|")
    print(f"| half of a step on one core | {one / 2:.1f} |")
    print(f"| half the batch takes more than half the time | {half - one / 2:+.1f} |")
    print(f"| two cores at work share caches, memory, clock rate | {halves - half:+.1f} |")
    print(f"| all-reduce, and waiting for the slower one | {two - halves:+.1f} |")
    print(f"| measured | {two:.1f} |", flush=True)


def efficiencies(one: Sequence[float], two: Sequence[float]) -> list[float]:
    """Returns the efficiency of two cores in each round, from the times of one core and of two.

    >>> efficiencies([40.0, 44.0], [25.0, 22.0])
    [0.8, 1.0]
    """
    return [first / (2 * second) for first, second in zip(one, two, strict=True)]


def _percent(shares: Sequence[float]) -> str:
    return f"{100 * statistics.median(shares):.1f} % ({100 * min(shares):.1f} to {100 * max(shares):.1f})"


def target_table(shared: Kind, config: str, folder: Path, cores: Sequence[int]) -> None:
    """Prints the times to the target."""
    print("\n| runs | epochs | validation loss | time to target, s |\n|---|---|---|---|")
    times = []
    for kind in (ONE, shared):
        [place, *_] = train(kind, config, folder / f"target-{kind.name}", cores, ())
        record = json.loads((place / "record.json").read_text())
        times.append(record["time_to_target_s"] or float("inf"))
        print(f"| {kind.name} | {record['epochs']} | {record['final_val_loss']:.6f} | {times[-1]:.1f} |", flush=True)
    print(f"\nefficiency by time to target {100 * times[0] / (2 * times[1]):.1f} %")


def step_s(places: Sequence[Path]) -> float:
    """Returns the seconds of a step of the slowest process, as median over epochs."""
    medians = []
    for place in places:
        rows = read_history(place / "history.csv")
        steps = rows[1].steps - rows[0].steps
        medians.append(float(np.median(np.diff([row.train_s for row in rows])[WARM - 1 :])) / steps)
    return max(medians)


def train(kind: Kind, config: str, folder: Path, cores: Sequence[int], options: Sequence[str]) -> list[Path]:
    """Runs one kind and returns its work directories."""
    batch = round(kind.share * read_config(find(config)).optim.batch_size)
    places = [folder / ("run" if kind.together else str(i)) for i in range(kind.processes)]
    address, processes = f"127.0.0.1:{free_ports(1)[0]}", []
    for i, place in enumerate(places):
        words = ["--config", config, "--workdir", str(place), "--optim.batch-size", str(batch), "--log.no-tensorboard"]
        words += ["--checkpoint.every-epochs", "1000000", *options]
        if kind.together:
            words += ["--distributed.coordinator", address, "--distributed.num-processes", "2"]
            words += ["--distributed.process-id", str(i)]
        own = ",".join(map(str, cores[i : i + kind.cores]))
        command = ["taskset", "--cpu-list", own, sys.executable, "train.py", *words]
        processes.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    for process in processes:
        _, error = process.communicate()
        if process.returncode:
            raise SystemExit(f"{' '.join(map(str, process.args))} ended with {process.returncode}: {error}")
    return places[:1] if kind.together else places


if __name__ == "__main__":
    guarded(main)

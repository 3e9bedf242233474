"""Tables and the figure of local steps: what they take, and where they pay.

    python -m experiments.local_times --out results/study/local       # prints the tables, and writes time_to_target.svg

Reads zoo.csv there (of experiments.local_steps) and cells.csv (runs of real nodules).
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.options import Parser, guarded
from experiments import headline, machines, outcomes, tables
from experiments.local_steps import RATE_FACTORS
from experiments.machines import H100
from gmmae.plotting import comparison
from gmmae.plotting.comparison import Measured
from gmmae.plotting.tables import table
from gmmae.scaling import cost
from gmmae.scaling.cost import Cluster, StepTimes

SET = ("discs_segmentation", "teacher_clean", "digits_autoencoder", "mixture_density")
JUDGED = ("language_attention", "friedman_deep", "digits_momentum", "language_recurrent")
OVERHEADS, REDUCTIONS = (0.01, 0.1, 1.0), (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
STATE = 3
"""Numbers of a round over those of the gradient: parameters and Adam's two moments."""
Steps = Mapping[tuple[int, int, int, str], float]
"""Median steps by factor of the batch, devices, local steps and factor of the rate."""


def zoo(path: Path) -> dict[str, Steps]:
    """Returns the steps of each workload."""
    found: dict[str, dict[tuple[int, int, int, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in tables.read(path):
        key = int(row["batch"]) // int(row["base_batch"]), int(row["devices"]), int(row["local_steps"]), row["rate"]
        found[row["workload"]][key].append(float(row["steps"]))
    return {name: {key: float(np.median(steps)) for key, steps in of.items()} for name, of in found.items()}


def rule_table(of: Mapping[str, Steps]) -> str:
    """Returns steps over those of strong scaling at the base rate, for two base rates: at this rate, and at √n times it."""
    rows = []
    for name in (*SET, *JUDGED):
        row, steps = [name, "set" if name in SET else "judged"], of[name]
        for n, every in itertools.product((8, 32), (4, 16, 64)):
            at = {}
            for kind, factor in (("η", 1.0), ("√n η", math.sqrt(n))):
                keys = [((1, 1, 1, f"{base:.4g}"), (1, n, every, f"{base * factor:.4g}")) for base in (1, 2)]
                at[kind] = " ".join(f"{steps[local] / steps[strong]:.2f}" for strong, local in keys if local in steps)
            row.append("; ".join(text for text in at.values() if text) or "–")
        rows.append(row)
    return table(("workload", "", *(f"n = {n}, H = {h}" for n, h in itertools.product((8, 32), (4, 16, 64)))), rows)


def times(of: Steps, n: int, a: float, c: float) -> dict[str, float]:
    """Returns the least time of each strategy over its rates, in units of the base batch's computation on one device."""
    found: dict[str, float] = defaultdict(lambda: math.inf)
    for (share, devices, every, _), steps in of.items():
        kinds = {}
        if devices == 1 and share == 1:
            kinds = {"one device": a + 1, "strong": a + 1 / n + c}
        elif devices == 1 and share == n:
            kinds = {"weak and rules": a + 1 + c}
        elif devices == n:
            kinds = {"local" if share == 1 else "local-weak": a + share / n + STATE * c / every}
        for kind, seconds in kinds.items():
            found[kind] = min(found[kind], steps * seconds)
    return found


def map_table(of: Mapping[str, Steps], n: int) -> str:
    """Returns the least time of local steps over that of the others: median, range, and how many are below .95."""
    rows = []
    for a in OVERHEADS:
        row = [f"{a:g}"]
        for c in REDUCTIONS:
            ratios = []
            for steps in of.values():
                if not any(devices == n and share == 1 for share, devices, *_ in steps):
                    continue
                found = times(steps, n, a, c)
                local = min(found["local"], found["local-weak"])
                ratios.append(local / min(found["one device"], found["strong"], found["weak and rules"]))
            sooner = f"{sum(ratio < 0.95 for ratio in ratios)} of {len(ratios)}"
            row.append(f"{np.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}), {sooner}")
        rows.append(row)
    return table(("a \\ c", *(f"{c:g}" for c in REDUCTIONS)), rows)


def machine(name: str) -> tuple[Cluster, StepTimes, float]:
    """Returns links, times of a step on the device, and the seconds of validating a sample."""
    measured = machines.paper_measurements()
    if name == H100:
        return cost.read_cluster("h200_nvlink"), machines.h100_steps(), 0.0
    cluster = cost.read_cluster(name)
    assert measured.train
    assert measured.passes
    scale = cost.scale(cluster, measured.train)
    seconds = tuple(scale * one for one in measured.train.seconds)
    last = measured.passes.batches[-1]
    return cluster, StepTimes(measured.train.batches, seconds), scale * measured.passes.at(last) / last


def run_s(name: str, row: outcomes.Row) -> float:
    """Returns the seconds of a run of real nodules on a machine, projected; infinity for a miss."""
    cluster, steps, validation_s = machine(name)
    measured, n, every = machines.paper_measurements(), int(row["devices"]), int(row.get("local_steps") or 0)
    reduce_s = cost.all_reduce_s(cluster, n, measured.gradient_bytes * (STATE if every else 1))
    stages, epochs, total = headline.stages(row), outcomes.arrived_epochs(row), 0.0
    for (first, batch), end in zip(stages, [*(first for first, _ in stages[1:]), epochs + 1], strict=True):
        count = math.ceil(measured.samples / batch)
        step_s = float(cost.seconds_range(steps, math.ceil(batch / n))[0])
        of_epoch = (
            count * step_s + math.ceil(count / (every or 1)) * reduce_s + validation_s * math.ceil(measured.validation / n)
        )
        total += max(min(end, epochs + 1) - first, 0) * of_epoch
    return total


PANELS = {"k80_1gbe": "K80s, Gigabit Ethernet", "cpu_1gbe": "CPUs, Gigabit Ethernet", H100: "H100s, NVLink"}
LABELS = {
    "strong": "Strong scaling",
    "weak": "Weak scaling",
    "growing": "Growing batch",
    "local, H = 4": "Local steps, H = 4",
    "local, H = 16": "Local steps, H = 16",
}


def nodules(path: Path) -> dict[tuple[str, int], list[outcomes.Row]]:
    """Returns the runs by strategy and devices; strong scaling has the same epochs on any number of devices."""
    found: dict[tuple[str, int], list[outcomes.Row]] = defaultdict(list)
    for row in headline.rows():
        if row["scaling"] in ("strong", "weak", "growing") and int(row["devices"]) in (1, 2, 8, 32):
            found[row["scaling"], int(row["devices"])].append(row)
    for row in tables.read(path):
        found[f"{row['scaling']}, H = {row['local_steps']}", int(row["devices"])].append(row)
    return found


def relative(name: str, of: Mapping[tuple[str, int], Sequence[outcomes.Row]]) -> dict[tuple[str, int], list[float]]:
    """Returns the times over strong scaling's on one device, median of its seeds."""
    found = {key: [run_s(name, row) for row in rows] for key, rows in of.items()}
    one = float(np.median(found["strong", 1]))
    return {key: [each / one for each in values] for key, values in found.items()}


def figure(of: Mapping[tuple[str, int], Sequence[outcomes.Row]]) -> Figure:
    """Draws a panel for each machine."""
    panels = []
    for name in PANELS:
        values, lines = relative(name, of), []
        for kind, label in LABELS.items():
            counts = tuple(sorted(n for scaling, n in values if scaling == kind))
            if not counts:
                continue
            each = [np.sort(values[kind, n]) for n in counts]
            medians = tuple(float(np.median(one)) for one in each)
            ends = (tuple(float(one[i]) for one in each) for i in (0, -1))
            reached = tuple(int(np.isfinite(one).sum()) for one in each)
            lines.append(Measured(label, counts, medians, *ends, reached, tuple(map(len, each))))
        panels.append(lines)
    return comparison.time_to_target(
        *panels,
        titles=[*PANELS.values()],
        title="Real nodules, projected time to the target: median and range of the seeds",
        y_label="time / one device's",
        height=3.1,
    )


def main() -> None:
    """Prints the tables and writes the figure."""
    parser = Parser(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    of = zoo(out / "zoo.csv")
    print(f"Rates {RATE_FACTORS}\n\n{rule_table(of)}\n")
    for n in (8, 32):
        print(f"{n} devices\n\n{map_table(of, n)}\n")
    runs = nodules(out / "cells.csv")
    rows = []
    for key in sorted(runs):
        medians = [f"{np.median(relative(name, runs)[key]):.2f}" for name in PANELS]
        rows.append((*map(str, key), outcomes.outcome(runs[key]), *medians))
    print(table(("strategy", "n", "epochs", *PANELS.values()), rows))
    print(comparison.canvas.save(figure(runs), out / "time_to_target.png"))


if __name__ == "__main__":
    guarded(main)

"""Draws the time to the target on a fast and on a slow machine: the first figure of the README.

    python -m experiments.headline --out docs/headline.png

The runs are those of real nodules, six seeds. Their epochs are measured. Their times are projected, and relative to strong
scaling on one device of the same machine.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.options import Parser, guarded
from experiments import machines
from experiments import plan as plans
from experiments.outcomes import Row, arrived_epochs, by_arm, cells, middle, on_one_device, reached
from gmmae.planner.prediction import DeviceGroup
from gmmae.plotting import comparison
from gmmae.plotting.comparison import Measured
from gmmae.scaling.strategies import STRATEGIES

ARMS = ("strong", "weak")

PANELS = {
    machines.H100: "H100s and NVLink",
    "k80_1gbe": "K80s and Gigabit Ethernet",
}
"""Machines and the titles of their panels."""


def rows() -> list[Row]:
    """Returns the runs of the strategies. The growing batch has a sweep of its own, of the same nodules and seeds."""
    return [*cells(plans.PAPER_DATA), *(row for row in cells("growing") if row["scaling"] == "growing")]


def relative_times(machine: str, of: Sequence[Row]) -> dict[tuple[str, int], list[float]]:
    """Returns the time to the target of each seed by strategy and devices. A miss is infinite.

    The unit is the median time of strong scaling on one device.
    """
    measured = machines.paper_measurements()
    one = float(np.median([seconds(row, machines.machines(measured, 1)[machine]) for row in on_one_device(of)]))
    return {
        (scaling, n): [seconds(row, machines.machines(measured, n)[machine]) / one for row in seeds]
        for (scaling, n), seeds in by_arm(of, ARMS).items()
    }


def lines(times: Mapping[tuple[str, int], Sequence[float]], of: Sequence[Row]) -> list[Measured]:
    """Returns a line for each strategy: the medians of the seeds, their ranges, and how many reached the target."""
    grouped = by_arm(of, ARMS)
    found = []
    for scaling in ARMS:
        counts = tuple(sorted(n for name, n in grouped if name == scaling))
        values = [np.sort(times[scaling, n]) for n in counts]
        found.append(
            Measured(
                STRATEGIES[scaling].label,
                counts,
                tuple(float(np.median(one)) if math.isfinite(one[len(one) // 2]) else math.inf for one in values),
                tuple(float(one[0]) for one in values),
                tuple(float(one[-1]) for one in values),
                tuple(sum(map(reached, grouped[scaling, n])) for n in counts),
                tuple(len(grouped[scaling, n]) for n in counts),
            )
        )
    return found


def stages(row: Row) -> list[tuple[int, int]]:
    """Returns the first epoch and the batch of each stage of a run.

    >>> stages({"global_batch": "32", "growth": "6:64 11:128"})
    [(1, 32), (6, 64), (11, 128)]
    """
    later = (text.split(":") for text in row.get("growth", "").split())
    return [(1, int(row["global_batch"])), *((int(first), int(batch)) for first, batch in later)]


def seconds(row: Row, at: DeviceGroup) -> float:
    """Returns the time of a run to its target on a machine, or infinity for a miss."""
    epochs = arrived_epochs(row)
    if math.isinf(epochs):
        return math.inf
    firsts = [first for first, _ in stages(row)]
    ends = [*firsts[1:], epochs + 1]
    counts = (max(min(end, epochs + 1) - first, 0) for first, end in zip(firsts, ends, strict=True))
    return sum(count * float(at.epoch_s(batch)) for count, (_, batch) in zip(counts, stages(row), strict=True))


def time_ratios(rows: Sequence[Row], against: Sequence[Row], arm: str, n: int) -> dict[str, list[float]]:
    """Returns the time of a strategy over that of another one, seed by seed, by machine.

    Args:
      rows: runs of the strategy, among others.
      against: runs to compare with: of as many devices where there are such, otherwise of one device.
      arm: the strategy.
      n: number of devices.
    """
    other = {(int(row["devices"]), row["seed"]): row for row in against}
    pairs = [(row, other.get((n, row["seed"]), other.get((1, row["seed"])))) for row in by_arm(rows, (arm,))[arm, n]]
    return {
        name: [seconds(row, at) / seconds(base, at) for row, base in pairs if base is not None]
        for name, at in machines.machines(machines.paper_measurements(), n).items()
    }


def sooner(ratios: Sequence[float]) -> str:
    """Returns in how many seeds a strategy takes less time than the other.

    >>> sooner([0.9, 1.1, float("inf")])
    '1 of 3'
    """
    return f"{sum(ratio < 1 for ratio in ratios)} of {len(ratios)}"


def ratios() -> dict[tuple[str, int, str], list[float]]:
    """Returns the time over that of strong scaling on as many devices, seed by seed: by strategy, devices and machine."""
    of = rows()
    one = on_one_device(of)
    return {
        (scaling, n, machine): time_ratios(of, one, scaling, n)[machine]
        for scaling, n in by_arm(of, ("weak", "growing"))
        if n > 1
        for machine in PANELS
    }


def ratio_rows() -> list[str]:
    """Returns the rows of the table of `ratios` in Markdown: a median with its range, and the seeds that are sooner."""
    found = ratios()
    keys = sorted({(scaling, n) for scaling, n, _ in found}, key=lambda key: (key[0] == "growing", key[1]))
    lines = []
    for scaling, n in keys:
        texts = (f"{middle(of, '.2f')} | {sooner(of)}" for of in (found[scaling, n, machine] for machine in PANELS))
        lines.append(f"| {STRATEGIES[scaling].label}, {n} | {' | '.join(texts)} |")
    return lines


def figure() -> Figure:
    """Draws a panel for each machine."""
    of = rows()
    return comparison.time_to_target(
        *(lines(relative_times(machine, of), of) for machine in PANELS),
        titles=[*PANELS.values()],
        title="Real nodules, projected time to the target: median and range of six seeds",
        y_label="time / one device's",
        height=3.1,
    )


def main() -> None:
    """Writes the figure."""
    parser = Parser(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    print(comparison.canvas.save(figure(), parser.parse_args().out))


if __name__ == "__main__":
    guarded(main)

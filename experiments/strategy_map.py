"""Draws the map of strategies: the fastest one on real nodules, by devices and by the overhead of a step.

    python -m experiments.strategy_map --out docs/pictures/strategy_map.svg

The runs are those of real nodules, six seeds. Their epochs are measured. The times are projected to devices of each overhead.
A strategy is placed by the median of its seeds. The black lines are the machines of the first figure of the README.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.options import Parser, guarded
from experiments import headline, machines
from experiments.other_strategies import seconds
from experiments.outcomes import Row, by_arm
from gmmae.planner import figures, prediction
from gmmae.planner.page import RATIOS
from gmmae.plotting import canvas
from gmmae.scaling import cost
from gmmae.scaling.strategies import STRATEGIES

DEVICES = (2, 8, 32)
"""Numbers of devices that every strategy was run on, the growing batch included."""


def median_seconds(of: Sequence[Row], at: prediction.DeviceGroup) -> float:
    """Returns the median time to the target on a machine. A miss is infinite."""
    times = np.sort([seconds(row, at) for row in of])
    return float(np.median(times)) if math.isfinite(times[len(times) // 2]) else math.inf


def fastest(rows: Sequence[Row], devices: int, ratio: float) -> str:
    """Returns the strategy with the least median time to the target.

    Args:
      rows: runs of all strategies.
      devices: number of devices.
      ratio: overhead of a step, relative to the time of the base batch's samples.
    """
    at = prediction.hypothetical_group(machines.paper_measurements(), ratio, devices)
    times = {scaling: median_seconds(of, at) for (scaling, n), of in by_arm(rows, headline.ARMS).items() if n == devices}
    return min(times, key=lambda scaling: times[scaling])


def overheads(machine: str) -> list[float]:
    """Returns the overhead of a step on a machine of the README's first figure, by number of devices."""
    measured = machines.paper_measurements()
    groups = [machines.machines(measured, n)[machine] for n in DEVICES]
    found = []
    for group in groups:
        a, b = cost.affine(group.measured.train)
        found.append((group.scale * a + group.reduce_s) / (group.scale * b * measured.optim.batch_size))
    return found


def figure() -> Figure:
    """Draws the map."""
    rows = headline.rows()
    best = [[STRATEGIES[fastest(rows, n, ratio)].label for n in DEVICES] for ratio in RATIOS]
    return figures.best_strategies(
        best,
        [STRATEGIES[scaling].label for scaling in headline.ARMS],
        DEVICES,
        RATIOS,
        {title: overheads(machine) for machine, title in headline.PANELS.items()},
        title="Real nodules: the fastest strategy (epochs measured, times projected)",
    )


def main() -> None:
    """Writes the map."""
    parser = Parser(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    print(canvas.save(figure(), parser.parse_args().out))


if __name__ == "__main__":
    guarded(main)

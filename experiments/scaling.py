"""Draws the slides' figure, and finds when each strategy reaches a fraction of the one-device metric.

    python -m experiments.scaling --runs FOLDER --out DIR [--metric dice] [--share 0.98]

FOLDER is a sweep's, or holds its `history_ARM-nN-seedS.csv`. The threshold is a fraction of strong scaling's last value on
one device with the same seed. Strategies are compared by the first epoch and step that reach it. Runs that were cut off keep
the epochs that they have.

DIR gets reached.csv, and for each strategy losses_ARM.png, the loss by epoch for each number of devices. For several seeds
medians are drawn.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.options import Parser, guarded
from experiments import tables
from gmmae.plotting import canvas
from gmmae.plotting.loss_curves import LossCurve, losses_by_devices
from gmmae.scaling.strategies import STRATEGIES
from gmmae.sweep.grid import RunKey
from gmmae.training.records import Epoch, read_history

NAME = re.compile(r"(?:history_)?(.+)-n(\d+)-seed(\d+)")


def histories(folder: Path) -> dict[RunKey, list[Epoch]]:
    """Returns the epochs of each run of a folder, by strategy, devices and seed."""
    runs = {path.parent.name: path for path in folder.glob("runs/*/history.csv")}
    runs |= {path.stem: path for path in folder.glob("history_*.csv")}
    named = [(NAME.fullmatch(name), path) for name, path in runs.items()]
    found = {RunKey(match[1], int(match[2]), int(match[3])): read_history(path) for match, path in named if match}
    if not found:
        raise SystemExit(
            f"--runs must hold runs/*/history.csv or history_ARM-nN-seedS.csv; got {folder}: give a sweep's folder"
        )
    return dict(sorted(found.items()))


def reached(runs: dict[RunKey, list[Epoch]], metric: str, share: float) -> list[dict[str, Any]]:
    """Returns a row for each run: the first epoch and step with a fraction of one device's last metric, or empty values.

    Larger values are better. Every seed needs its run of strong scaling on one device.
    """
    rows = []
    for key, epochs in runs.items():
        target = share * runs[RunKey("strong", 1, key.seed)][-1].metrics[metric]
        hit = next((epoch for epoch in epochs if epoch.metrics[metric] >= target), None)
        rows.append({
            **key._asdict(),
            "epochs": len(epochs),
            "target": round(target, 4),
            "epoch": hit.epoch if hit else "",
            "steps": hit.steps if hit else "",
            f"best_{metric}": round(max(epoch.metrics[metric] for epoch in epochs), 4),
            f"last_{metric}": round(epochs[-1].metrics[metric], 4),
        })  # fmt: skip
    return rows


def figure(runs: dict[RunKey, list[Epoch]], scaling: str, path: Path) -> Path:
    """Draws a strategy's losses by epoch from one device to many, as medians over seeds. One device is strong scaling's run."""
    by_devices: dict[int, list[list[Epoch]]] = defaultdict(list)
    for key, epochs in runs.items():
        if key == RunKey("strong", 1, key.seed) or (key.scaling == scaling and key.devices > 1):
            by_devices[key.devices].append(epochs)
    courses = [_course(f"n = {n}", of) for n, of in sorted(by_devices.items())]
    seeds = len({key.seed for key in runs})
    title = f"{STRATEGIES[scaling].label}, medians of {seeds} seeds" if seeds > 1 else STRATEGIES[scaling].label
    return canvas.save(losses_by_devices(courses, title=title, target=None, x_label="epoch"), path)


def _course(label: str, seeds: Sequence[Sequence[Epoch]]) -> LossCurve:
    """Returns the curve over the epochs that all seeds have."""
    losses = np.median(
        [[(epoch.train_loss, epoch.val_loss) for epoch in epochs] for epochs in zip(*seeds, strict=False)], axis=1
    )
    return LossCurve(label, np.arange(1.0, len(losses) + 1), losses[:, 0], losses[:, 1])


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the table and the figures."""
    parser = Parser(__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="a sweep's folder, or one of its histories")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--metric", default="dice", help="of validation; more is better")
    parser.add_argument("--share", type=float, default=0.98, help="of one device's last value")
    args = parser.parse_args(arguments)
    runs = histories(args.runs)
    rows = reached(runs, args.metric, args.share)
    args.out.mkdir(parents=True, exist_ok=True)
    tables.write(args.out / "reached.csv", rows)
    for row in rows:
        print(" ".join(f"{key} {value}" for key, value in row.items()))
    for scaling in sorted({key.scaling for key in runs} - {"strong"}):
        print(figure(runs, scaling, args.out / f"losses_{scaling}.png"))


if __name__ == "__main__":
    guarded(main)

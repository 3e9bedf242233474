"""The slides' figure: the loss by epoch for each number of devices; and when each arm is as good as one device.

python -m studies.scaling --runs FOLDER --out DIR [--metric dice] [--share 0.98]

FOLDER is a sweep's, or holds the `history_ARM-nN-seedS.csv` of one. The value that counts is a share of what strong scaling on
one device has after its last epoch, with the same seed; arms are compared by the epoch and the step in which they first reach
it. Runs that were cut off stand with the epochs that they have.

DIR gets reached.csv, and for each arm losses_ARM.png.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gmmae.base.arms import ARMS
from gmmae.base.records import Epoch, read_history
from gmmae.figures import canvas
from gmmae.figures.courses import Course, losses_by_devices
from gmmae.sweep.grid import Cell
from studies import tables

NAME = re.compile(r"(?:history_)?(.+)-n(\d+)-seed(\d+)")


def histories(folder: Path) -> dict[Cell, list[Epoch]]:
    """The epochs of each run of a folder, by arm, devices and seed."""
    runs = {path.parent.name: path for path in folder.glob("runs/*/history.csv")}
    runs |= {path.stem: path for path in folder.glob("history_*.csv")}
    named = [(NAME.fullmatch(name), path) for name, path in runs.items()]
    found = {Cell(match[1], int(match[2]), int(match[3])): read_history(path) for match, path in named if match}
    if not found:
        raise SystemExit(
            f"--runs must hold runs/*/history.csv or history_ARM-nN-seedS.csv; got {folder}: give a sweep's folder"
        )
    return dict(sorted(found.items()))


def reached(runs: dict[Cell, list[Epoch]], metric: str, share: float) -> list[dict[str, Any]]:
    """A row for each run: the first epoch and step with a share of the metric of one device's last epoch; empty if none has.

    More is better. Every seed needs its run of strong scaling on one device.
    """
    rows = []
    for cell, epochs in runs.items():
        target = share * runs[Cell("strong", 1, cell.seed)][-1].metrics[metric]
        hit = next((epoch for epoch in epochs if epoch.metrics[metric] >= target), None)
        rows.append({
            **cell._asdict(),
            "epochs": len(epochs),
            "target": round(target, 4),
            "epoch": hit.epoch if hit else "",
            "steps": hit.steps if hit else "",
            f"best_{metric}": round(max(epoch.metrics[metric] for epoch in epochs), 4),
            f"last_{metric}": round(epochs[-1].metrics[metric], 4),
        })  # fmt: skip
    return rows


def figure(runs: dict[Cell, list[Epoch]], arm: str, path: Path) -> Path:
    """The losses of an arm's first seed by epoch, from one device, which is strong scaling's run, to many."""
    seed = min(cell.seed for cell in runs)
    chosen = {1: runs[Cell("strong", 1, seed)]}
    chosen |= {cell.devices: epochs for cell, epochs in runs.items() if cell.seed == seed and cell.arm == arm}
    courses = [_course(f"n = {n}", epochs) for n, epochs in sorted(chosen.items())]
    drawn = losses_by_devices(courses, title=ARMS[arm].label, target=None, x_label="epoch")
    return canvas.save(drawn, path)


def _course(label: str, epochs: Sequence[Epoch]) -> Course:
    columns = zip(*((float(epoch.epoch), epoch.train_loss, epoch.val_loss) for epoch in epochs), strict=True)
    return Course(label, *map(np.array, columns))


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="a sweep's folder, or one of its histories")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--metric", default="dice", help="of validation; more is better")
    parser.add_argument("--share", type=float, default=0.98, help="of one device's last value")
    asked = parser.parse_args(arguments)
    runs = histories(asked.runs)
    rows = reached(runs, asked.metric, asked.share)
    asked.out.mkdir(parents=True, exist_ok=True)
    tables.write(asked.out / "reached.csv", rows)
    for row in rows:
        print(" ".join(f"{key} {value}" for key, value in row.items()))
    for arm in sorted({cell.arm for cell in runs} - {"strong"}):
        print(figure(runs, arm, asked.out / f"losses_{arm}.png"))


if __name__ == "__main__":
    main()

"""The figures of a run, drawn from what its work directory holds."""

import math
from pathlib import Path

import numpy as np

from gmmae.base.config import Config
from gmmae.base.records import Record, read_history
from gmmae.base.workdir import WorkDir
from gmmae.figures.curves import losses
from gmmae.figures.mixtures import Snapshot, reconstructions
from gmmae.training.journal import storage

MOST_SNAPSHOTS = 5
"""Columns of `reconstructions.png` at most: more would be too small to see."""


def draw(config: Config, record: Record, workdir: WorkDir) -> list[Path]:
    """Draws `reconstructions.png` and `losses.png`; returns their paths.

    Args:
      config, record: of the run.
      workdir: with its history and snapshots.

    Raises:
      StorageError: the work directory cannot be written.
    """
    with storage(workdir.figures):
        return _draw(config, record, workdir)


def _draw(config: Config, record: Record, workdir: WorkDir) -> list[Path]:
    title = f"{record.arm}, {record.devices} × {record.device_kind}, seed {record.seed}"
    history = read_history(workdir.history)
    inputs, snapshots = read_snapshots(workdir.snapshots, len(history))
    paths = [reconstructions(inputs, snapshots, workdir.figures / "reconstructions.png", title=title)]
    if history:
        columns = {
            name: np.array([getattr(row, name) for row in history]) for name in ("epoch", "train_loss", "val_loss", "lr")
        }
        paths.append(
            losses(
                columns["epoch"],
                columns["train_loss"],
                columns["val_loss"],
                columns["lr"],
                workdir.figures / "losses.png",
                target=config.stop.target or None,
                title=title,
            )
        )
    return paths


def read_snapshots(folder: Path, epochs: int) -> tuple[np.ndarray, list[Snapshot]]:
    """The shown volumes and their reconstructions up to the last epoch, thinned out evenly; none where there are none."""
    paths = [path for path in sorted(folder.glob("epoch_*.npz")) if int(path.stem.rpartition("_")[2]) <= epochs]
    if len(paths) > MOST_SNAPSHOTS:
        paths = [paths[math.floor(i)] for i in np.linspace(0, len(paths) - 1, MOST_SNAPSHOTS)]
    inputs, snapshots = np.empty(0), []
    for path in paths:
        with np.load(path, allow_pickle=False) as saved:
            inputs = saved["inputs"]
            fields = {name: saved[name] for name in ("density", "weights", "means", "covariances")}
            snapshots.append(Snapshot(epoch=int(saved["epoch"]), val_loss=float(saved["val_loss"]), **fields))
    return inputs, snapshots

"""A run's figures, from its work directory."""

from pathlib import Path

import numpy as np

from gmmae.config.schema import Config
from gmmae.plotting.loss_curves import losses
from gmmae.training.records import Record, epoch_ends
from gmmae.training.workdir import WorkDir, storage
from gmmae.workloads import registry
from gmmae.workloads.interface import Snapshot


def draw(config: Config, record: Record, workdir: WorkDir) -> list[Path]:
    """Draws the workload's picture of its samples and `losses.png`; returns their paths."""
    best = record.best_epoch
    title = f"{record.scaling}, {record.devices} × {record.device_kind}, seed {record.seed}"
    title += f", best epoch {best}" if best else ""
    with storage(workdir.figures):
        history = epoch_ends(workdir.read_rows())
        kept = workdir.snapshots / f"epoch_{best or 0:06d}.npz"  # which earlier versions did not write
        epochs = best if best and kept.exists() else len(history)
        files = [path for path in sorted(workdir.snapshots.glob("epoch_*.npz")) if int(path.stem.rpartition("_")[2]) <= epochs]
        snapshots = []
        for i in np.linspace(0, len(files) - 1, min(len(files), 5)).astype(int):  # more would be too small to see
            with np.load(files[i], allow_pickle=False) as saved:
                arrays = dict(saved)
            snapshots.append(Snapshot(int(arrays.pop("epoch")), float(arrays.pop("val_loss")), arrays))
        draw_samples = getattr(registry.load(config.workload), "draw", None)
        paths = [draw_samples(snapshots, workdir.figures, title, "png")] if draw_samples and snapshots else []
        if history:
            columns = ("epoch", "train_loss", "val_loss", "lr")
            epoch, train, validation, rate = (np.array([getattr(row, name) for row in history]) for name in columns)
            path = workdir.figures / "losses.png"
            paths.append(losses(epoch, train, validation, rate, path, target=config.stop.target_loss, title=title))
    return paths

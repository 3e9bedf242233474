"""TensorBoard: scalars, histograms of the mixture's parameters, images of central slices, and HParams, in one run."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float
from tensorboardX import SummaryWriter
from tensorboardX.summary import hparams

from gmmae.base.records import Epoch, Record

SCALARS = {"loss/train": "train_loss", "loss/validation": "val_loss", "optimiser/learning_rate": "lr"}
RESULTS = {"result/time_to_target_s": "time_to_target_s", "result/epochs": "epochs", "result/best_val_loss": "best_val_loss"}
QUEUE = 10_000
FLUSH_S = 1
"""Between two times that what has been written is made sure to be on the disk."""
TIMES = {f"time/{name}": name for name in ("train_s", "eval_s", "total_s")}


class Details(NamedTuple):
    """Arrays on the host that describe the shown validation nodules after an epoch; leading axis: nodules."""

    inputs: Float[np.ndarray, "nodules *volume"]
    density: Float[np.ndarray, "nodules *volume"]
    weights: Float[np.ndarray, "nodules k"]
    means: Float[np.ndarray, "nodules k n"]
    covariances: Float[np.ndarray, "nodules k n n"]


class Board(Protocol):
    """Where a run's course is shown."""

    def epoch(self, row: Epoch) -> None: ...
    def details(self, epoch: int, details: Details) -> None: ...
    def result(self, record: Record) -> None: ...
    def close(self) -> None: ...


class NoBoard:
    """Shows nothing."""

    def epoch(self, row: Epoch) -> None:
        pass

    def details(self, epoch: int, details: Details) -> None:
        pass

    def result(self, record: Record) -> None:
        pass

    def close(self) -> None:
        pass


class TensorBoard:
    """Events of one run under a folder.

    Args:
      folder: made when needed.
      parameters: the run's hyperparameters by name, for the HParams tab.
      start: the epoch to go on from. Whatever an earlier process has written of it and of later ones is purged, so all of
        that has to come again.
      times: tags of an epoch's clocks, each with its field of `Epoch`.
      results: tags of the outcome, each with its field of `Record`.
    """

    def __init__(
        self,
        folder: Path,
        parameters: Mapping[str, Any],
        start: int = 0,
        times: Mapping[str, str] = TIMES,
        results: Mapping[str, str] = RESULTS,
    ):
        self._epoch_tags, self._result_tags = {**SCALARS, **times}, results
        # A queue that never fills: where the disk is full the thread that empties it ends, and a full one would wait for ever.
        self._writer = SummaryWriter(str(folder), purge_step=start, flush_secs=FLUSH_S, max_queue=QUEUE)
        self._next_flush = 0.0
        # SummaryWriter.add_hparams would open a run of its own, named by the time, for the same purpose.
        plain = {key: value if isinstance(value, bool | int | float | str) else str(value) for key, value in parameters.items()}
        # A warning for each NaN: here they are results, and the record says so.
        logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)
        assert self._writer.file_writer is not None
        for summary in hparams(plain, dict.fromkeys([*SCALARS, *results], 0.0)):
            self._writer.file_writer.add_summary(summary)

    def epoch(self, row: Epoch) -> None:
        """The scalars of an epoch; they are on disk about a second later.

        Raises:
          OSError: earlier ones cannot be written.
        """
        for tag, name in self._epoch_tags.items():
            self._writer.add_scalar(tag, getattr(row, name), row.epoch)
        if time.monotonic() >= self._next_flush:  # it waits for the disk, longer than a short epoch takes
            self._writer.flush()  # of what has arrived so far: a full disk shows here, in the caller's thread
            self._next_flush = time.monotonic() + FLUSH_S

    def details(self, epoch: int, details: Details) -> None:
        """Histograms of α, μ, σ and ρ, and central slices of each shown nodule: input left, reconstruction right."""
        for name, values in _mixture_parameters(details).items():
            if values.size and np.isfinite(values).all():
                self._writer.add_histogram(f"mixture/{name}", values, epoch)
        for i, (volume, density) in enumerate(zip(details.inputs, details.density, strict=True)):
            if volume.ndim > 1:
                self._writer.add_image(f"nodule_{i}/input_and_reconstruction", slices(volume, density), epoch, dataformats="HW")

    def result(self, record: Record) -> None:
        """The outcome of a run, for the columns of the HParams tab; what the run did not reach is left out."""
        for tag, name in self._result_tags.items():
            value = getattr(record, name)
            if value is not None:
                self._writer.add_scalar(tag, value, record.epochs)

    def close(self) -> None:
        self._writer.close()


def _mixture_parameters(details: Details) -> dict[str, np.ndarray]:
    variances = np.diagonal(details.covariances, axis1=-2, axis2=-1)
    sigma = np.sqrt(variances)
    rows, columns = np.triu_indices(sigma.shape[-1], k=1)
    rho = details.covariances[..., rows, columns] / (sigma[..., rows] * sigma[..., columns])
    return {"alpha": details.weights, "mu": details.means, "sigma": sigma, "rho": rho}


def slices(
    volume: Float[np.ndarray, "*volume"], density: Float[np.ndarray, "*volume"], zoom: int = 8
) -> Float[np.ndarray, "height width"]:
    """Central slices side by side on one grey scale in [0, 1], input left, reconstruction right, magnified `zoom` times.

    The scale is the input's range; NaN is drawn black.
    """
    while volume.ndim > 2:
        volume, density = volume[len(volume) // 2], density[len(density) // 2]
    low, high = float(volume.min()), float(volume.max())
    pair = np.hstack([volume, np.full((len(volume), 1), high), density])
    grey = np.clip((np.nan_to_num(pair, nan=low) - low) / max(high - low, 1e-12), 0, 1)
    return np.kron(grey, np.ones((zoom, zoom)))

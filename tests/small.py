"""A run that takes seconds: 8³ volumes, two small convolutions, four components."""

import dataclasses
import hashlib
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gmmae.config.schema import CheckpointConfig, Config, LogConfig, OptimConfig, ParallelConfig, StopConfig, changed
from gmmae.data.settings import DataConfig
from gmmae.models.settings import ModelConfig
from gmmae.training import checkpoint, loop, preparation
from gmmae.training.parallel import AXIS
from gmmae.training.records import Epoch, Record, epoch_ends, read_history
from gmmae.training.terminal import Plain
from gmmae.workloads import nodules, registry, settings

EXACT = {"parallel__deterministic": True, "parallel__deterministic_shards": 8}
"""Options of the exact reduction."""

SMALL_LATTICE = {
    "model__decoder": "lattice",
    "model__lattice_size": 2,
    "data__samples": 60,
    "data__validation": 20,
    "stop__max_epochs": 1,
}
"""Options of the smallest run that nodules can be generated from."""

SMALL = registry.configuration(
    settings=nodules.Config(
        data=DataConfig(shape=8, samples=28, validation=6),
        model=ModelConfig(filters=(3, 3), kernels=(3, 3), latent_dim=8, components=4),
    ),
    optim=OptimConfig(batch_size=8),
    stop=StopConfig(max_epochs=3),
    parallel=ParallelConfig(devices=1),
    checkpoint=CheckpointConfig(every_epochs=2),
    log=LogConfig(tensorboard=False, figure_epochs=(0,), figure_samples=2),
)

CHEAP = {
    "data__ndim": 2,
    "model": ModelConfig(filters=(3,), kernels=(3,), latent_dim=8, components=2, activation="silu"),
    "log__figure_samples": 1,
}
"""Options of a run that compiles in half of the time, for tests in which the model does not matter. It is smooth."""

SMALL_SEGMENTATION = registry.configuration(
    "segmentation",
    settings=settings.SegmentationConfig(
        data=settings.PatchConfig(shape=8, jitter=2, samples=6, validation=2),
        model=settings.UNetConfig(features=(2, 3)),
    ),
    optim=OptimConfig(batch_size=8, learning_rate=0.003),
    stop=StopConfig(monitor="dice", mode="max", max_epochs=2),
    parallel=ParallelConfig(devices=1),
    checkpoint=CheckpointConfig(every_epochs=1),
    log=LogConfig(tensorboard=False, figure_epochs=(0,), figure_samples=2),
)
"""The smallest run of the U-Net."""

RATES = {"adam": 0.001, "sgd": 0.5, "momentum": 0.1, "nesterov": 0.1, "adamw": 0.001, "lamb": 0.01, "lars": 1.0}
"""Learning rates by optimiser at which the losses of `SMALL` change in each epoch, and no run diverges."""


def small(**changes: Any) -> Config:
    """`SMALL` with changes: `small(scaling="weak", stop__max_epochs=5)`."""
    return changed(SMALL, **changes)


def on_one_device(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compiles a function that takes means over devices, for one device and outside of `pmap`."""
    return jax.jit(jax.vmap(partial(function, **options), None, None, axis_name=AXIS, axis_size=1))


class Recorder(Plain):
    """A display that keeps what it is told, and calls `then` when epoch `at` ends."""

    def __init__(self, at: int = 0, then: Callable[[], object] = lambda: None):
        self._at, self._then = at, then
        self.facts: Mapping[str, str] = {}
        self.rows: list[Epoch] = []
        self.lines: list[str] = []

    def start(self, facts: Mapping[str, str], *, max_epochs: int, done: int):
        self.facts = facts

    def epoch(self, row: Epoch):
        self.rows.append(row)
        if row.epoch == self._at:
            self._then()

    def say(self, line: str):
        self.lines.append(line)

    def close(self):
        pass


def interrupt(number: int = signal.SIGTERM):
    """Sends this process a signal, as a scheduler would in the middle of training."""
    os.kill(os.getpid(), number)


def fail():
    """Ends a run amid an epoch, as kill -9 would: no checkpoint, no closing of logs."""
    raise MemoryError


def finish(config: Config, workdir: Path, *interruption: Any) -> tuple[Record, Recorder]:
    """Runs to the end, or to an interruption as `Recorder` takes it; returns the record and what the display was told."""
    display = Recorder(*interruption)
    return loop.run(config, workdir, display), display


def losses(rows: list[Epoch]) -> list[tuple[int, Any, float]]:
    """What must not depend on the clock."""
    return [(row.epoch, row.train_loss, row.val_loss) for row in rows]


def fingerprint(config: Config, workdir: Path) -> str:
    """SHA-256 of all that must not depend on devices: the last checkpoint's arrays, and every loss of the history."""
    like = preparation.initial_state(preparation.prepare(dataclasses.replace(config, parallel=ParallelConfig(devices=1))))
    saved = checkpoint.restore(checkpoint.opened(workdir / "checkpoints"), like, print)
    assert saved is not None
    ends = epoch_ends(read_history(workdir / "history.csv"))
    digest = hashlib.sha256(repr((losses(ends), saved.progress.best_epoch)).encode())
    for leaf in jax.tree.leaves((saved.state, saved.best)):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


def checkpoint_epochs(workdir: Path) -> list[int]:
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())

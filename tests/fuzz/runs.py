"""Trained runs and generated nodules that cases share. Each takes seconds, with the calls of other tests."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from gmmae.config.toml import to_toml
from gmmae.sweep.grid import run_keys
from gmmae.training.loop import run
from tests import small, sweeps
from tests.fuzz.calls import in_process
from tests.generation.nodules import balls
from tests.workloads.test_segmentation import small as small_unet

Made = Callable[[str], Path]
"""Returns the path of another shared folder, which is made if it is missing."""

CELLS = {
    "model__decoder": "lattice",
    "model__lattice_size": 2,
    "data__samples": 40,
    "data__validation": 10,
    "stop__max_epochs": 1,
}


def _nodules(path: Path, _: Made) -> None:
    run(small.small(stop__max_epochs=1), path, small.Recorder())


def _unet(path: Path, _: Made) -> None:
    run(small_unet(stop__max_epochs=1, model__features=(2,)), path, small.Recorder())


def _generator(path: Path, _: Made) -> None:
    run(small.small(**CELLS), path, small.Recorder())


def _generated(path: Path, made: Made) -> None:
    outcome = in_process(["generate", str(made("generator")), "--count", "30", "--out", str(path)], path.parent)
    assert outcome.code == 0, outcome.err


def _real(path: Path, _: Made) -> None:
    found = balls(0, 60)
    assert found.masks is not None
    texts = {name: np.array(getattr(found, name)) for name in ("names", "groups", "categories")}
    np.savez(path, volumes=found.values, masks=found.masks, allow_pickle=False, **texts)


def _real_folder(path: Path, made: Made) -> None:
    path.mkdir()
    (path / "all.npz").write_bytes(made("real.npz").read_bytes())


def _sweep(path: Path, _: Made) -> None:
    config = replace(sweeps.GRID, scaling=("strong", "weak"), devices=(1, 2), seeds=(0,))
    for key in run_keys(config):
        sweeps.reach(config, path, key, 10)
    sweeps.add_step_times(path, 1, sweeps.STEPS, sweeps.PASSES)
    (path / "sweep.toml").write_text(to_toml(config), encoding="utf-8")


MAKERS: dict[str, Callable[[Path, Made], None]] = {
    "nodules": _nodules,
    "unet": _unet,
    "generator": _generator,
    "generated": _generated,
    "real.npz": _real,
    "real": _real_folder,
    "sweep": _sweep,
}
"""The function that makes each shared folder."""

"""gmmae trains as `examples/one_file.py` does, which shares no code with it: same parameters, order and losses."""

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from gmmae.scaling.batches import epoch_order
from gmmae.training import preparation
from gmmae.workloads import registry
from tests.commands import rows
from tests.launched import ROOT, python
from tests.small import finish, losses, small

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("optimised")]

ONE_FILE = ROOT / "examples" / "one_file.py"
STRATEGIES = ("strong", "weak", "linear", "linear-warmup")
EPOCHS, WARMUP_EPOCHS, SAMPLES, VALIDATION = 3, 2, 46, 10
"""On eight devices a growing batch is capped at the training set, and on all the last step is a partial one."""


def config(precision: Any, strategy: str = "strong", devices: int = 1):
    return small(
        data__shape=16,
        data__samples=SAMPLES + VALIDATION,
        data__validation=VALIDATION,
        model__filters=(2, 3),
        model__kernels=(5, 3),
        model__rho="sigmoid",
        model__activation="silu",
        optim__scaling_warmup_epochs=WARMUP_EPOCHS,
        stop__max_epochs=EPOCHS,
        log__figure_epochs=(),
        precision=precision,
        scaling=strategy,
        parallel__devices=devices,
    )


def one_file(folder: Path, precision: str, devices: tuple[int, ...]):
    """Returns the losses of each epoch, by strategy and number of devices, of a run of the one file."""
    of = config(precision)
    data = registry.build(of).load()
    orders = [epoch_order(0, epoch, SAMPLES) for epoch in range(1, EPOCHS + 1)]
    np.savez(folder / "cubes.npz", train=data.train, validation=data.validation, orders=orders)
    # gmmae's first parameters by the names of the one file, which has the channels of a volume last
    tree = preparation.initial_state(preparation.prepare(of)).params["params"]
    arrays = {f"Conv_{i}/{name}": tree["encoder"][f"Conv_{i}"][name] for i in (0, 1) for name in ("kernel", "bias")}
    latent, heads, channels = tree["encoder"]["Dense_0"], tree["heads"], of.settings.model.filters[-1]
    size = latent["kernel"].shape[1]
    arrays["latent/kernel"] = latent["kernel"].reshape(channels, -1, size).swapaxes(0, 1).reshape(-1, size)
    arrays["latent/bias"] = latent["bias"]
    ends = np.cumsum([1, 3, 3]) * of.settings.model.components
    for kind in ("kernel", "bias"):
        parts = np.split(np.asarray(heads[kind]), ends, axis=-1)
        arrays |= {f"{name}/{kind}": part for name, part in zip(("alpha", "mu", "sigma", "rho"), parts, strict=True)}
    np.savez(folder / "start.npz", **jax.device_get(arrays))
    command = [ONE_FILE, folder / "cubes.npz", "--start", folder / "start.npz", "--losses", folder / "losses.csv"]
    command += ["--devices", *devices, "--batch", of.optim.batch_size, "--rate", of.optim.learning_rate, "--epochs", EPOCHS]
    command += ["--filters", 2, 3, "--kernels", 5, 3, "--latent", 8, "--components", 4, "--warmup-epochs", WARMUP_EPOCHS]
    command += ["--activation", "silu", *["--float64"] * (precision == "float64")]
    done = python(*command, env={**os.environ, "JAX_NUM_CPU_DEVICES": str(max(devices))})
    assert len(done.stdout.splitlines()) == 1 + len(devices) * len(STRATEGIES)
    found: dict[tuple[str, int], list[tuple[int, float, float]]] = {}
    for row in rows(folder / "losses.csv"):
        epoch = int(row["epoch"]), float(row["train_loss"]), float(row["val_loss"])
        found.setdefault((row["strategy"], int(row["devices"])), []).append(epoch)
    return found


@pytest.mark.parametrize(("precision", "devices", "rtol"), [("float64", (1, 8), 1e-8), ("float32", (2,), 1e-3)])
def test_the_losses_are_those_of_the_one_file(tmp_path, precision, devices, rtol):
    expected = one_file(tmp_path, precision, devices)
    assert set(expected) == {(strategy, count) for strategy in STRATEGIES for count in devices}
    for (strategy, count), epochs in expected.items():
        _, display = finish(config(precision, strategy, count), tmp_path / f"{strategy}_{count}")
        np.testing.assert_allclose(losses(display.rows), epochs, rtol=rtol, err_msg=f"{strategy} on {count} devices")

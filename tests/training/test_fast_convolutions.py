"""Runs of a workload with Flax convolutions, with and without `parallel.fast_convolutions`."""

import numpy as np
import pytest

from gmmae.config.schema import LogConfig, OptimConfig, ParallelConfig, StopConfig, changed
from gmmae.workloads import registry
from tests.small import EXACT, fingerprint, finish, losses

pytestmark = pytest.mark.usefixtures("optimised")

WORKLOAD = """
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from gmmae.workloads.interface import Splits, Workload


@dataclass(frozen=True)
class Config:
    pass


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Conv(2, (3, 3, 3), strides=2)(x[..., None]))
        x = nn.tanh(nn.ConvTranspose(3, (2, 2, 2), strides=(2, 2, 2))(x))
        layers = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}, "length": 2}
        scan = nn.scan(lambda conv, x, _: (nn.tanh(conv(x)), None), **layers)
        x, _ = scan(nn.Conv(3, (3, 3, 3)), x, None)
        x = nn.tanh(nn.Conv(4, (3, 3), strides=2)(x.reshape(len(x), 6, 6, -1)))
        x = nn.tanh(nn.Conv(4, (3, 3), kernel_dilation=2, feature_group_count=2)(x))
        return nn.ConvTranspose(1, (3, 3), strides=(2, 2))(x)[..., 0]


def build(config):
    model = Model()

    def load():
        x = np.random.default_rng(0).normal(size=(30, 6, 6, 6)).astype(np.float32)
        samples = {"x": x, "y": x.mean(3)}
        return Splits(*({name: array[part] for name, array in samples.items()} for part in (slice(24), slice(24, 30))))

    def losses(params, samples, keys):
        y = samples["y"]
        error = jax.lax.cond(y[0, 0, 0] > 0, lambda: model.apply(params, samples["x"]) - y, lambda: y - model.apply(params, samples["x"]))
        return (error**2).mean((1, 2))

    return Workload(load, lambda key: model.init(key, jnp.zeros((1, 6, 6, 6))), losses)
"""  # noqa: E501


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(WORKLOAD)
    return registry.configuration(
        str(path),
        optim=OptimConfig(batch_size=8),
        stop=StopConfig(max_epochs=2),
        parallel=ParallelConfig(devices=1),
        log=LogConfig(tensorboard=False),
    )


def of_run(config, workdir):
    return losses(finish(config, workdir)[1].rows)


@pytest.mark.parametrize("inside", [None, 1])
def test_losses_are_those_without_to_rounding(config, tmp_path, inside):
    exact = changed(config, precision="float64", stop__validate_every_steps=inside)
    fast, plain = (of_run(changed(exact, parallel__fast_convolutions=on), tmp_path / f"{on}") for on in (True, False))
    assert len({row[1] for row in fast}) == 2, "losses that do not change would say nothing"
    assert fast != plain, "the switch must have an effect"
    np.testing.assert_allclose(fast, plain, rtol=1e-9)


@pytest.mark.slow
def test_the_exact_reduction_has_the_same_bits_on_any_number_of_devices(config, tmp_path):
    config = changed(config, **EXACT)
    bits = set()
    for devices in (1, 2, 8):
        of_run(changed(config, parallel__devices=devices), tmp_path / f"{devices}")
        bits.add(fingerprint(config, tmp_path / f"{devices}"))
    assert len(bits) == 1

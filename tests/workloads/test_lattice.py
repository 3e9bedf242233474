"""The nodules' workload with the lattice decoder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.training.loop import run
from gmmae.workloads import registry
from gmmae.workloads.augment import symmetries
from tests.small import Recorder, losses, small

LATTICE = {
    "model__decoder": "lattice",
    "model__lattice_size": 2,
    "model__activation": "silu",  # with ReLU two equal runs part once an input within rounding of zero falls on the other side
    "optim__learning_rate": 0.002,
}


@pytest.fixture(scope="module")
def workload():
    return registry.build(small(**LATTICE))


@pytest.fixture(scope="module")
def data(workload):
    return workload.load()


@pytest.fixture(scope="module")
def params(workload):
    return jax.jit(workload.init)(jax.random.key(0))


def test_samples_are_densities_masks_and_masses(data):
    train = data.train
    assert {name: array.shape for name, array in train.items()} == {
        "density": (22, 8, 8, 8),
        "mask": (22, 8, 8, 8),
        "log_mass": (22,),
    }
    np.testing.assert_allclose(train["density"].mean((1, 2, 3)), 1 / 8, rtol=1e-5)
    assert set(np.unique(train["mask"])) == {0, 1}
    assert len(data.names["train"]) == len(data.groups["train"]) == 22


def test_the_loss_is_the_weighted_sum_of_its_parts(params, data):
    samples = data.validation

    def of(**weights):
        built = registry.build(
            small(**LATTICE, **{f"model__{name}_weight": weights.get(name, 0.0) for name in ("mask", "mass")})
        )
        return jax.jit(lambda: (built.losses(params, samples, None), built.metrics(params, samples)))()

    alone, metrics = of()
    np.testing.assert_allclose(alone, metrics["density"], rtol=1e-6)
    np.testing.assert_allclose(of(mass=1.0)[0] - alone, np.square(metrics["log_mass"]), rtol=1e-3)
    mask = of(mask=1.0)[0] - alone
    np.testing.assert_allclose(of(mask=2.0, mass=1.0)[0], alone + 2 * mask + np.square(metrics["log_mass"]), rtol=1e-4)
    assert (mask > 0).all()


def test_a_mask_is_turned_with_its_volume(params, data):
    """The loss of a volume turned in training is that of a volume and a mask that were turned before."""
    built = registry.build(small(**LATTICE, data__augment=True, model__mask_weight=1.0))
    keys, samples = jax.random.split(jax.random.key(3), 6), data.validation
    turn = jax.jit(symmetries)
    turned = {**samples, "density": turn(samples["density"], keys), "mask": turn(samples["mask"], keys)}
    losses = jax.jit(built.losses)
    np.testing.assert_allclose(losses(params, samples, keys), losses(params, turned, None), rtol=1e-6)
    assert np.abs(losses(params, samples, None) - losses(params, samples, keys)).max() > 1e-4


def test_what_is_decoded_is_what_is_described(workload, data, params):
    samples = data.validation
    described = jax.jit(workload.describe)(params, samples)
    decoded = jax.jit(lambda params: workload.decode(params, workload.encode(params, samples)))(params)
    for name, values in decoded.items():
        np.testing.assert_allclose(described[name], values, rtol=1e-6, atol=1e-7)  # two programs
    alone = jax.jit(workload.describe)(params, samples["density"])
    np.testing.assert_array_equal(alone["density"], described["density"])
    assert described["weights"].shape == (6, 16)


@pytest.mark.slow
def test_two_devices_train_what_one_trains(tmp_path):
    rows = []
    for devices in (1, 2):
        display = Recorder()
        run(small(**LATTICE, stop__max_epochs=2, parallel__devices=devices), tmp_path / str(devices), display)
        rows.append(np.array(losses(display.rows)))
    np.testing.assert_allclose(rows[1], rows[0], rtol=1e-5)
    assert rows[0][1, 1] < 0.9 * rows[0][0, 1]


def test_other_numbers_of_axes_are_built():
    built = registry.build(small(**LATTICE, data__ndim=2))
    assert built.decode is not None
    decoded = jax.eval_shape(built.decode, jax.eval_shape(built.init, jax.random.key(0)), jnp.zeros((2, 8)))
    assert decoded["means"].shape == (2, 8, 2)

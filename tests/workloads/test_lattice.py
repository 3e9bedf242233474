"""The nodules' workload with the lattice decoder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.data import sources
from gmmae.workloads import registry
from gmmae.workloads.augment import symmetries
from gmmae.workloads.lattice import samples_of
from tests.small import small

LATTICE = {"model__decoder": "lattice", "model__lattice_size": 2}


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
    shapes = {"density": (22, 8, 8, 8), "mask": (22, 8, 8, 8), "log_mass": (22,)}
    assert {name: array.shape for name, array in train.items()} == shapes
    np.testing.assert_allclose(train["density"].mean((1, 2, 3)), 1 / 8, rtol=1e-5)
    assert set(np.unique(train["mask"])) == {0, 1}
    assert len(data.names["train"]) == len(data.groups["train"]) == 22


def test_nodules_without_a_mask_are_said_and_have_no_dice(workload, params, capsys):
    config = small(**LATTICE).settings.data
    loaded = sources.load(config)
    assert loaded.nodules.masks is not None
    masks = loaded.nodules.masks.copy()
    masks[loaded.split.validation[0]] = 0
    found = samples_of(loaded._replace(nodules=loaded.nodules._replace(masks=masks)), config)
    assert "1 of 28 nodules have no mask" in capsys.readouterr().err
    assert found.may_be_undefined == ("dice",)
    dice = workload.metrics(params, jax.tree.map(jnp.ones_like, found.validation) | {"mask": found.validation["mask"]})["dice"]
    assert np.isnan(dice).tolist() == [True] + [False] * 5


def test_the_loss_is_the_weighted_sum_of_its_parts(params, data):
    def losses_and_metrics(mask, mass):
        built = registry.build(small(**LATTICE, model__mask_weight=mask, model__mass_weight=mass))
        return jax.jit(lambda: (built.losses(params, data.validation, None), built.metrics(params, data.validation)))()

    alone, metrics = losses_and_metrics(0.0, 0.0)
    np.testing.assert_allclose(alone, metrics["density"], rtol=1e-6)
    mask = losses_and_metrics(1.0, 0.0)[0] - alone
    assert (mask > 0).all()
    both, _ = losses_and_metrics(2.0, 3.0)
    np.testing.assert_allclose(both, alone + 2 * mask + 3 * np.square(metrics["log_mass"]), rtol=1e-4)


def test_a_mask_is_turned_with_its_volume(params, data):
    """The loss of a volume turned in training is that of a volume and a mask that were turned before."""
    losses = jax.jit(registry.build(small(**LATTICE, data__augment=True, model__mask_weight=1.0)).losses)
    keys, samples = jax.random.split(jax.random.key(3), 6), data.validation
    turned = samples | {name: jax.jit(symmetries)(samples[name], keys) for name in ("density", "mask")}
    found = losses(params, samples, keys)
    np.testing.assert_allclose(found, losses(params, turned, None), rtol=1e-6)
    assert np.abs(losses(params, samples, None) - found).max() > 1e-4


def test_what_is_decoded_is_what_is_described(workload, data, params):
    samples = data.validation
    described = jax.jit(workload.describe)(params, samples)
    decoded = jax.jit(lambda params: workload.decode(params, workload.encode(params, samples)))(params)
    for name, values in decoded.items():
        np.testing.assert_allclose(described[name], values, rtol=1e-6, atol=1e-7)  # two programs
    np.testing.assert_array_equal(jax.jit(workload.describe)(params, samples["density"])["density"], described["density"])
    assert described["weights"].shape == (6, 16)


def test_other_numbers_of_axes_are_built():
    built = registry.build(small(**LATTICE, data__ndim=2))
    assert built.decode is not None
    decoded = jax.eval_shape(built.decode, jax.eval_shape(built.init, jax.random.key(0)), jnp.zeros((2, 8)))
    assert decoded["means"].shape == (2, 8, 2)

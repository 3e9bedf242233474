"""The U-Net that reads cubes: what it is given, and that its loss falls for the masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gmmae
from gmmae.training import programs
from studies import cohorts, masks
from studies.cohorts import Cohorts
from tests.generation.nodules import balls


@pytest.fixture(autouse=True)
def _nodules(monkeypatch):
    found = Cohorts(*(balls(i, 12, name) for i, name in enumerate(("train", "tune", "test"))), {})
    monkeypatch.setattr(cohorts, "read", lambda root: found)


@pytest.mark.slow
def test_the_loss_falls_towards_the_masks_and_never_sees_the_tuning_set(tmp_path):
    workload = masks.build(masks.Config())
    assert workload.names.train[0] == "train0"
    assert workload.names.validation[0] == "tune0"
    samples = jax.tree.map(lambda array: array[:4], workload.data.train)
    assert set(np.unique(samples["masks"])) == {0, 1}
    assert 0 <= samples["shares"].min() < samples["shares"].max() <= 1
    params = workload.init(jax.random.key(0))
    slopes = jax.jit(jax.grad(lambda params: workload.losses(params, samples, None).mean()))
    before = programs.values(workload, params, samples)
    for _ in range(5):
        params = jax.tree.map(lambda at, slope: at - 0.1 * slope, params, slopes(params))
    after = programs.values(workload, params, samples)
    assert jnp.mean(after["loss"]) < 0.9 * jnp.mean(before["loss"])


def test_the_file_is_a_workload():
    config = gmmae.configure("", workload=masks.__file__, root="somewhere", **masks.OPTIONS)
    assert config.stop.max_epochs == 100


def test_a_ball_has_the_diameter():
    ball = masks._ball(np.zeros((2, 16, 16, 16)), np.array([0.5, 1.0]))
    assert ball[0].sum() == pytest.approx(4 / 3 * np.pi * 4**3, rel=0.1)
    assert ball[1].sum() == pytest.approx(4 / 3 * np.pi * 8**3, rel=0.05)

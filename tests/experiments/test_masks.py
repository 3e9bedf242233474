"""The U-Net that reads cubes: what it is given, and that its loss falls for the masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gmmae
from experiments import cohorts, masks
from experiments.cohorts import Cohorts
from gmmae.training import per_sample
from tests.generation.nodules import balls


@pytest.fixture(autouse=True)
def _nodules(monkeypatch):
    found = Cohorts(balls(0, 12, "train"), balls(1, 12, "tune"), balls(2, 12, "test"), {})
    monkeypatch.setattr(cohorts, "read", lambda root: found)


@pytest.mark.slow
def test_the_loss_falls_towards_the_masks_and_never_sees_the_tuning_set(tmp_path):
    workload = masks.build(masks.Config())
    data = workload.load()
    assert data.names is not None
    assert (data.names["train"][0], data.names["validation"][0]) == ("train0", "tune0")
    samples = jax.tree.map(lambda array: array[:4], data.train)
    assert set(np.unique(samples["masks"])) == {0, 1}
    assert 0 <= samples["shares"].min() < samples["shares"].max() <= 1
    params = workload.init(jax.random.key(0))
    slopes = jax.jit(jax.grad(lambda params: workload.losses(params, samples, None).mean()))
    before = per_sample.values(workload, params, samples)
    for _ in range(5):
        params = jax.tree.map(lambda at, slope: at - 0.1 * slope, params, slopes(params))
    after = per_sample.values(workload, params, samples)
    assert jnp.mean(after["loss"]) < 0.9 * jnp.mean(before["loss"])


def test_the_file_is_a_workload():
    config = gmmae.configure("", workload=masks.__file__, root="somewhere", **masks.OPTIONS)
    assert config.stop.max_epochs == 100


def test_the_best_ball_is_found():
    distance = np.linalg.norm(np.indices((16, 16, 16)) - 7.5, axis=0)
    found = masks.ball(np.stack([distance <= 4, distance <= 4.5]))
    assert (distance <= 4).sum() <= found.sum() <= (distance <= 4.5).sum()

"""Segmentation from few masks: who sees what, that arms differ in their further nodules only, and going on where it was."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import cohorts, few_masks
from experiments.cohorts import Cohorts
from gmmae.data.settings import DataConfig
from gmmae.models.losses import dice
from gmmae.models.unet import mask_losses
from gmmae.workloads.interface import Splits, Workload
from tests.generation.nodules import balls


@pytest.fixture
def found(monkeypatch):
    parts = Cohorts(balls(0, 20, "train"), balls(1, 12, "tune"), balls(2, 12, "test"), {})
    monkeypatch.setattr(cohorts, "read", lambda root, division: parts)
    return parts


@pytest.fixture
def voxel_by_voxel(monkeypatch):
    """Returns a workload that finds a mask by a threshold, and shortens its training."""
    monkeypatch.setattr(few_masks, "STEPS", 40)

    def logits(params, samples):
        return params["slope"] * (samples["shares"] - params["level"])

    def losses(params, samples, keys):
        truth = samples["masks"] > 0
        return mask_losses(logits(params, samples), truth, jnp.ones_like(truth))

    def metrics(params, samples):
        return {"dice": dice(logits(params, samples), jnp.asarray(samples["masks"]) > 0)}

    return Workload(lambda: Splits(None, None), lambda key: {"slope": jnp.ones(()), "level": jnp.zeros(())}, losses, metrics)


def test_the_generator_sees_the_chosen_nodules_and_the_tuning_set_only(found, monkeypatch):
    monkeypatch.setattr(few_masks, "EPOCH", 16)
    config = few_masks.Config(data=DataConfig(root="somewhere"), number=5, lot=3)
    data = few_masks.build(config).load()
    assert data.names is not None
    few = few_masks.chosen(found.train, 5, 3)
    assert list(data.names["train"]) == [*few.names] * 3
    assert tuple(data.names["validation"]) == found.tune.names
    assert data.train["density"].shape == (15, 8, 8, 8)
    np.testing.assert_array_equal(data.train["mask"][5:10], few.masks)
    assert few_masks.chosen(found.train, 5, 4).names != few.names


def test_arms_have_the_same_real_nodules_in_the_same_places_and_only_these_at_the_end():
    alone, mixed = few_masks.batches(50, 0, seed=1), few_masks.batches(50, 150, seed=1)
    assert alone.shape == mixed.shape
    real = mixed < 50
    np.testing.assert_array_equal(mixed[real], alone[real])
    assert 50 <= mixed[~real].max() < 200
    last = round(few_masks.STEPS * few_masks.REAL_LAST)
    assert real[-last:].all()
    assert real[:-last].mean() == pytest.approx(1 - few_masks.MORE_SHARE)


def test_the_trained_network_finds_masks_better_and_equal_seeds_are_equal(found, voxel_by_voxel, tmp_path, monkeypatch):
    monkeypatch.setattr(few_masks, "JUDGED_AT_ONCE", 5)
    few, more = found.train.take(np.arange(6)), few_masks.more_nodules("carved", found.train, found.tune, pytest.fail, 0)

    def scores(name, more):
        params = few_masks.trained_network(tmp_path / name, voxel_by_voxel, few, more, seed=0)
        return few_masks.dice_of(voxel_by_voxel, params, found.test)

    alone = scores("alone.npz", None)
    untrained = few_masks.dice_of(voxel_by_voxel, voxel_by_voxel.init(jax.random.key(0)), found.test)
    assert alone.shape == (12,)
    assert alone.mean() > untrained.mean()
    np.testing.assert_array_equal(alone, scores("again.npz", None))
    np.testing.assert_array_equal(alone, scores("alone.npz", more))  # the file is read
    mixed, plain = (
        few_masks.trained_network(tmp_path / f"{name}.npz", voxel_by_voxel, few, more, seed=0) for name in ("mixed", "alone")
    )
    assert mixed["level"] != plain["level"]


def test_an_arm_is_measured_once_and_only_the_generated_one_trains_a_generator(found, voxel_by_voxel, tmp_path, monkeypatch):
    trained = []

    def fit(model, training, held_out):
        made = few_masks.baselines.smote(training, 24, 0)
        return SimpleNamespace(
            _replace=lambda min_distance: SimpleNamespace(sample=lambda *_, **__: SimpleNamespace(nodules=made))
        )

    monkeypatch.setattr(few_masks, "trained_generator", lambda args, number, seed: trained.append((number, seed)))
    monkeypatch.setattr(few_masks.generator, "fit", fit)
    args = SimpleNamespace(out=tmp_path, held_out="test")
    rows = [few_masks.measured(args, found, voxel_by_voxel, 8, 1, arm) for arm in few_masks.ARMS]
    assert trained == [(8, 1)]
    assert [(row["real"], row["arm"], len(row["scores"])) for row in rows] == [(8, arm, 12) for arm in few_masks.ARMS]
    assert [row["nn_sym"] for row in rows[:1]] == [None]
    assert rows[few_masks.ARMS.index("copy_paste")]["nn_sym"] == 0
    again = [few_masks.measured(args, found, voxel_by_voxel, 8, 1, arm) for arm in few_masks.ARMS]
    assert again == rows
    assert trained == [(8, 1)]

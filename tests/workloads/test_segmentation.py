"""The U-Net's workload, on synthetic slices and volumes."""

import jax
import numpy as np
import pytest

from gmmae.config.rules import ConfigError
from gmmae.config.schema import changed
from gmmae.data.patches import OUTSIDE
from gmmae.training import preparation
from gmmae.workloads import registry, segmentation, settings
from gmmae.workloads.interface import Snapshot
from tests.bad_values import require_refused
from tests.small import EXACT, fingerprint, finish, losses
from tests.small import SMALL_SEGMENTATION as SMALL


def small(**changes):
    return changed(SMALL, **changes)


@pytest.fixture(scope="module")
def workload():
    return registry.build(SMALL)


@pytest.fixture(scope="module")
def data(workload):
    return workload.load()


@pytest.mark.parametrize(("micro_batch_size", "size", "parts"), [(None, 16, 1), (None, 64, 2), (None, 48, 2), (1, 64, 8)])
def test_a_cpu_trains_on_a_few_samples_at_once_unless_told_otherwise(micro_batch_size, size, parts):
    config = small(data__shape=size, optim__batch_size=8, parallel__micro_batch_size=micro_batch_size)
    assert preparation.prepare(config).train_plan.micro_batches == parts


def test_samples_are_patches_of_slices_divided_by_nodule(data):
    nodules, groups = [], []
    for split, samples in (("train", data.train), ("validation", data.validation)):
        names = data.names[split]
        assert {name: array.shape for name, array in samples.items()} == {
            "values": (len(names), 12, 12, 1),
            "labels": (len(names), 12, 12),
            "offsets": (len(names), 2),
        }
        nodules.append({name.split()[0] for name in names})
        groups.append(len({group for group, _ in zip(data.groups[split], names, strict=True)}))
    assert groups == [4, 2] == [len(names) for names in nodules]  # the slices of a nodule have its group
    assert not nodules[0] & nodules[1]
    assert len({name.split()[0] for name in data.names["validation"][:2]}) == 2  # pictures show several nodules


@pytest.mark.parametrize(("ndim", "channels"), [(2, 3), (3, 1)])
def test_masks_move_and_turn_with_their_images(ndim, channels):
    """A mask that equals its image still does after both were cropped and turned."""
    data = settings.PatchConfig(shape=4, jitter=2, ndim=ndim)
    dense = np.random.default_rng(0).random((6, *(8,) * ndim)) > 0.6
    values = np.repeat(np.where(dense, 400, -1000)[..., None], channels, -1).astype(np.int16)
    samples = {"values": values, "labels": dense.astype(np.uint8), "offsets": np.full((6, ndim), 1, np.int32)}
    keys = [jax.random.split(jax.random.key(seed), 6) for seed in (0, 1)]
    crops = [segmentation.crop_and_augment(data, samples, of_samples) for of_samples in (None, *keys)]
    for images, labels in crops:
        np.testing.assert_array_equal(images, np.repeat(2.0 * labels[..., None] - 1, channels, -1))
    np.testing.assert_array_equal(crops[0][1], dense[(slice(None), *[slice(1, 5)] * ndim)])
    assert (crops[1][1] != crops[2][1]).any()


def test_pixels_outside_of_the_volume_do_not_count(workload, data):
    params = jax.jit(workload.init)(jax.random.key(0))
    samples = jax.tree.map(lambda array: array[:4].copy(), data.train)
    samples["labels"][:, :6] = OUTSIDE
    described, metrics, losses = jax.jit(
        lambda: (workload.describe(params, samples), workload.metrics(params, samples), workload.losses(params, samples, None))
    )()
    p, labels = np.asarray(described["probabilities"], np.float64), np.asarray(described["labels"])
    counted = labels != OUTSIDE
    assert 0 < counted.sum() < counted.size
    for i, (loss, score) in enumerate(zip(losses, metrics["dice"], strict=True)):
        chance, there = p[i][counted[i]], 1.0 * (labels[i][counted[i]] == 1)
        soft = (2 * (chance * there).sum() + 1) / (chance.sum() + there.sum() + 1)
        crossed = -np.log(np.where(there, chance, 1 - chance)).mean()
        np.testing.assert_allclose(loss, 1 - soft + crossed, rtol=1e-5)  # float32
        mask = chance > 0.5
        np.testing.assert_allclose(score, 2 * (mask * there).sum() / max(mask.sum() + there.sum(), 1), rtol=1e-6)


@pytest.mark.slow
def test_three_axes_are_built_and_trained(tmp_path):
    _, display = finish(small(data__ndim=3, data__voxel_mm=2.0, stop__max_epochs=1), tmp_path)
    assert np.isfinite(losses(display.rows)).all()


def test_neighbours_are_channels():
    built = registry.build(small(data__neighbours=1))
    assert built.load().train["values"].shape[1:] == (12, 12, 3)
    assert jax.eval_shape(built.init, jax.random.key(0))["params"]["Stage_0"]["Conv_0"]["kernel"].shape == (3, 3, 3, 2)


@pytest.mark.slow
def test_sums_over_large_images_have_the_same_bits_on_any_number_of_devices(tmp_path):
    """XLA adds by blocks above 32 × 32 pixels. In batches of 12 no weight is a power of two, which would hide the last bit."""
    fingerprints = set()
    config = small(data__shape=48, data__samples=12, data__validation=4, optim__batch_size=12, **EXACT)
    for devices in (1, 2, 8):
        of_run = losses(finish(changed(config, parallel__devices=devices), tmp_path / str(devices))[1].rows)
        assert of_run[1][1] < of_run[0][1]
        fingerprints.add(fingerprint(config, tmp_path / str(devices)))
    assert len(fingerprints) == 1


@pytest.mark.parametrize("ndim", [2, 3])
def test_pictures_and_events_are_of_images(tmp_path, ndim):
    rng, shape = np.random.default_rng(0), (2, *(8,) * ndim)
    images, probabilities = rng.uniform(-1, 1, shape), rng.uniform(0, 1, shape)
    arrays = {"images": images, "labels": rng.integers(0, 3, shape), "probabilities": probabilities}
    assert segmentation.draw([Snapshot(0, 1.0, arrays), Snapshot(4, 0.5, arrays)], tmp_path, "title").stat().st_size > 1000
    for image in segmentation.events(arrays).images.values():
        assert image.shape == (8, 24)
        assert 0 <= image.min() <= image.max() <= 1


BAD = [
    ("data.source", "luna16", "one of synthetic, cubes"),
    ("data.ndim", 1, "one of 2, 3"),
    ("data.shape", 3, "at least 4"),
    *[(f"data.{name}", -1, "") for name in ("jitter", "neighbours", "fold", "seed")],
    ("data.folds", 1, "at least 2"),
    ("data.fold", 1, "0 without data.folds"),
    ("data.voxel_mm", 0.0, "positive"),
    ("data.samples", 1, "at least 2"),
    ("data.validation", 1.0, "a fraction"),
    ("data.window", (0.0, 0.0), "increasing"),
    ("model.features", (), "positive numbers"),
    ("model.groups", 4, "a divisor of each of model.features = (2, 3)"),
]


@pytest.mark.parametrize(("key", "value", "rule"), BAD)
def test_a_bad_value_is_refused_by_key_rule_and_value(key, value, rule):
    require_refused(lambda: small(**{key.replace(".", "__"): value}), key, value, rule)


def test_sizes_that_cannot_be_halved_are_refused_with_the_way_out():
    with pytest.raises(ConfigError, match=r"data\.shape must be a multiple of 4 .*; got 10"):
        small(data__shape=10, model__features=(2, 2, 2))


def test_a_mean_of_dice_is_over_the_slices_that_define_it_where_crops_may_show_no_nodule(data):
    """Where none is predicted either, there is no Dice. The means are in test_undefined.py."""
    crops = registry.build(small(data__shape=4, data__jitter=11, data__seed=1)).load()
    assert (crops.may_be_undefined, data.may_be_undefined) == (("dice",), ())

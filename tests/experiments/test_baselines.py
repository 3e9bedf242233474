"""Copies, carvings and interpolations of volumes whose voxels say where they come from."""

import numpy as np

from experiments import baselines
from experiments.cohorts import WINDOW
from gmmae.generation.judging.novelty import nearest
from tests.generation.nodules import balls

TRAINING = balls(0, 12)


def test_copies_are_training_nodules_flipped_turned_and_moved_with_their_masks():
    flipped = baselines.copy_paste(TRAINING, 12, seed=1)
    assert (nearest(flipped.values, TRAINING.values, WINDOW, symmetric=True).distance == 0).all()
    made = baselines.copy_paste(TRAINING, 12, seed=1, shift=1)
    assert sorted(made.groups) == sorted(TRAINING.groups)  # each donor once
    padded = np.pad(made.values, ((0, 0), *[(1, 1)] * 3))
    found = np.zeros(12, bool)
    for place in np.ndindex(3, 3, 3):  # one move by a voxel takes each copy back, but for the voxels that left the cube
        inner = tuple(slice(at + 1, at + 7) for at in place)
        moved = padded[(slice(None), *inner)]
        found |= nearest(moved, TRAINING.values[:, 1:7, 1:7, 1:7], WINDOW, symmetric=True).distance == 0
    assert found.all()
    assert nearest(made.values, TRAINING.values, WINDOW, symmetric=True).distance.max() > 0.02
    assert made.masks is not None
    assert made.values[made.masks > 0].min() > made.values[made.masks == 0].max() - 400  # the masks went with them
    again, other = (baselines.copy_paste(TRAINING, 12, seed=seed, shift=1).values for seed in (1, 2))
    np.testing.assert_array_equal(made.values, again)
    assert (made.values != other).any()


def test_repeated_nodules_are_the_training_nodules_with_their_masks():
    made = baselines.repeated(TRAINING, 24, seed=1)
    place = nearest(made.values, TRAINING.values, WINDOW).index
    np.testing.assert_array_equal(made.values, TRAINING.values[place])
    assert TRAINING.masks is not None
    np.testing.assert_array_equal(made.masks, TRAINING.masks[place])
    assert sorted(place.tolist()) == sorted([*range(12), *range(12)])


def test_more_copies_than_donors_use_each_as_often():
    made = baselines.copy_paste(TRAINING, 30, seed=0)
    _, counts = np.unique(made.groups, return_counts=True)
    assert counts.min() >= 4  # two nodules a patient, each two or three times
    assert counts.max() <= 6
    assert len(set(made.names)) == 30


def test_a_carved_nodule_has_the_donors_voxels_in_its_mask_and_another_of_its_category_around():
    numbers = np.arange(12, dtype=np.int16).reshape(12, 1, 1, 1)
    training = TRAINING._replace(values=np.broadcast_to(numbers, TRAINING.values.shape), categories=("a", "b") * 6)
    made = baselines.carved(training, 12, seed=0)
    assert made.masks is not None
    for values, mask, category, patient in zip(made.values, made.masks, made.categories, made.groups, strict=True):
        found = set(np.unique(values))
        assert len(found) <= 2
        assert {training.categories[i] for i in found} == {category}
        assert patient in {training.groups[i] for i in found}
        assert mask.any()
    assert max(len(np.unique(values)) for values in made.values) == 2


def test_interpolations_lie_between_two_neighbours_of_one_category():
    made = baselines.smote(TRAINING, 6, seed=0)
    assert made.values.min() >= TRAINING.values.min()
    assert nearest(made.values, TRAINING.values, WINDOW).distance.min() > 0
    assert made.masks is not None
    assert set(np.unique(made.masks)) == {0, 1}
    points = np.arange(5.0)[:, None] ** 3
    one, two, share = baselines.between(points, ("a", "a", "a", "a", "b"), 10, seed=0)
    pairs = set(zip(one.tolist(), two.tolist(), strict=True))
    assert {pair for pair in pairs if 4 in pair} == {(4, 4)}  # the only one of its category
    assert all(first != second for first, second in pairs if first != 4)
    assert ((share >= 0) & (share < 1)).all()


def numbered():
    """Returns training nodules whose voxels are the nodule's number, of two categories."""
    numbers = np.arange(12, dtype=np.int16).reshape(12, 1, 1, 1)
    return TRAINING._replace(values=np.broadcast_to(numbers, TRAINING.values.shape), categories=("a", "b") * 6)


def test_cutmix_has_a_box_of_another_nodule_of_the_category_in_image_and_mask():
    training = numbered()
    made = baselines.cutmix(training, 24, seed=0)
    assert made.masks is not None
    assert training.masks is not None
    shares = []
    for values, mask, category, patient in zip(made.values, made.masks, made.categories, made.groups, strict=True):
        found = np.unique(values)
        assert {training.categories[i] for i in found} == {category}
        donor = next((i for i in found if training.groups[i] == patient), None)
        np.testing.assert_array_equal(mask, np.choose(values, training.masks))
        if len(found) == 2 and donor is not None:
            box = np.argwhere(values != donor)
            assert np.prod(np.ptp(box, axis=0) + 1) == len(box)
            shares.append(len(box) / values.size)
    assert min(shares) < 0.2 < max(shares)


def test_a_mosaic_has_one_nodule_of_the_category_in_each_octant():
    training = numbered()
    made = baselines.mosaic(training, 12, seed=0)
    octants = made.values.reshape(12, 2, 4, 2, 4, 2, 4).transpose(0, 1, 3, 5, 2, 4, 6).reshape(12, 8, -1)
    assert (octants == octants[..., :1]).all()
    assert {len(np.unique(values)) for values in octants} & {4, 5, 6}
    for values, category in zip(octants[..., 0], made.categories, strict=True):
        assert {training.categories[i] for i in values} == {category}

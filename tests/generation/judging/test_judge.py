"""Judgements of populations that are the same, shifted, or copied."""

from functools import partial

import numpy as np
import pytest

from gmmae.generation.judging.features import NAMES
from gmmae.generation.judging.judge import judge, population
from gmmae.generation.judging.two_samples import compare
from gmmae.system.errors import InputError
from tests.generation.nodules import balls

WINDOW = (-1000.0, 400.0)
REAL, TRAINING, NEW = balls(0, 60), balls(1, 80, "trained"), balls(2, 60, "new")
judged = partial(judge, window=WINDOW)

pytestmark = pytest.mark.usefixtures("few_divisions")


def test_what_is_of_the_same_population_is_as_good_as_real_and_shifted_nodules_are_found():
    same = judged(REAL, NEW, TRAINING)
    # Sixty against sixty: the standard deviation of the AUC is about .07, of the ratio of the medians of distances a few per
    # cents.
    assert (same.real_vs_real.c2st.value, same.generated.c2st.value) == pytest.approx((0.5, 0.5), abs=0.15)
    assert same.novelty is not None
    assert (same.novelty.nn.value, same.novelty.nn_symmetric.value) == pytest.approx((1, 1), abs=0.1)
    assert same.novelty.copies < 0.2
    shifted = judged(REAL, balls(2, 60, "new", shift=80), TRAINING)
    assert shifted.generated.c2st.value > 0.9
    assert shifted.generated.ks_share < same.generated.ks_share
    assert shifted.real_vs_real == same.real_vs_real


@pytest.mark.parametrize("flip", [1, -1])
def test_copies_are_not_new_and_flipped_ones_only_seem_to_be(flip):
    found = judged(REAL, NEW._replace(values=TRAINING.values[:60, ::flip, :, ::flip]), TRAINING)
    assert found.novelty is not None
    assert (found.novelty.nn.value > 0.7) is (flip == -1)
    assert (found.novelty.nn_symmetric.value, found.novelty.copies) == (0, 1)


def test_without_a_training_set_two_halves_of_other_patients_are_compared_and_novelty_is_unknown():
    found = judged(REAL, balls(2, 300, "new"))
    assert found.novelty is None
    assert found.generated.samples == found.real_vs_real.samples == 30
    assert found.real_vs_real.patients == (15, 15)  # of two nodules each, of 30 patients in all


def test_both_columns_compare_as_many_with_the_same_real_nodules():
    found = judged(balls(0, 120), balls(2, 40, "new"), TRAINING)
    assert [len(set(nodules.names)) for nodules in found.compared] == [40, 40]
    # More generated nodules change nothing in the real column, where as many are compared.
    many = judged(balls(0, 120), balls(2, 200, "new"), TRAINING, count=40)
    assert many.real_vs_real == found.real_vs_real
    assert many.novelty is not None
    assert len(many.novelty.nearest_distance) == 200  # those that are not compared have their nearest too


def test_shapes_follow_from_masks_only_where_each_nodule_has_one():
    real, new = balls(0, 120), balls(2, 40, "new")
    assert judged(real, new, TRAINING).masks
    assert real.masks is not None
    assert not judged(real._replace(masks=real.masks * (np.arange(120) % 2)[:, None, None, None]), new, TRAINING).masks


def test_features_that_generating_copies_are_left_out_of_the_second_c2st():
    """The mean in HU tells the sets apart, and nothing else does."""
    real, other = (population(nodules, True, WINDOW) for nodules in (REAL, NEW))
    other.features[:, NAMES.index("hu_mean")] += 1000
    found = compare(real, other)
    assert found.c2st.value > 0.95
    assert found.c2st_rest.value == pytest.approx(0.5, abs=0.15)
    assert found.ks["hu_mean"] == (1, 0.001)


def of_patients(nodules, patients):
    return nodules.with_columns(group=[f"{nodules.names[0]} {i % patients}" for i in range(len(nodules.names))])


HALF = REAL.with_columns(group=["a"] * 30 + [*"bcdefghijk"] * 3)
"""Half of these nodules are one patient's."""
COPIED = NEW._replace(values=np.concatenate([NEW.values[1:], REAL.values[9:10].swapaxes(2, 3)]))
"""The median distance is far from 0 for this single copy."""
RECUT = [
    nodules.with_columns(origin=[f"{i}{last}" for i in range(len(nodules.names))])
    for nodules, last in ((REAL, ""), (TRAINING, "9"))
]
"""The scans 19, 29, … 59 are in both, as cut with another diameter."""


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ((REAL, balls(2, 20), TRAINING), "GENERATED must have at least 25 nodules of at least 5 .* got 20 of 10"),
        ((of_patients(REAL, 9), NEW), "REAL must have at least 50 nodules of at least 10 .* got 60 of 9: .* --train"),
        ((of_patients(REAL, 3), NEW, TRAINING), "REAL must have .* got 60 of 3"),
        ((REAL, NEW, of_patients(TRAINING, 4)), "--train must have .* got 80 of 4"),
        ((HALF, NEW), "nodules of the .* half of REAL must have .* got 30 of 1"),
        ((REAL, NEW, balls(3, 50)), "25 of its 30 patients are in --train, such as real0"),
        ((REAL, COPIED, TRAINING), "with GENERATED; 1 of its 60 .* such as real9, which is new59"),
        ((RECUT[0], NEW, RECUT[1]), "with --train; 5 of its 60 are cut .* such as real19"),
        ((REAL, balls(3, 40, "made"), COPIED), "with --train; 1 of its 60 .* such as real9, which is new59"),
    ],
)
def test_what_cannot_be_judged_is_told(sets, message):
    with pytest.raises(InputError, match=message):
        judged(*sets)


@pytest.mark.parametrize(("patients", "training"), [(5, TRAINING), (10, None)])
def test_as_many_patients_as_are_needed_give_finite_figures(patients, training):
    found = judged(of_patients(REAL, patients), NEW, training)
    assert np.isfinite([(*one.c2st, *one.coverage) for one in (found.generated, found.real_vs_real)]).all()

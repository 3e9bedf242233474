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
judge = partial(judge, window=WINDOW)
REAL, TRAINING, NEW = balls(0, 60), balls(1, 80, "trained"), balls(2, 60, "new")

pytestmark = pytest.mark.usefixtures("few_divisions")


def test_what_is_of_the_same_population_is_as_good_as_real_and_shifted_nodules_are_found():
    same = judge(REAL, NEW, TRAINING)
    # Sixty against sixty: the standard deviation of the AUC is about .07, of the ratio of the medians of distances a few per
    # cents.
    assert same.real_vs_real.c2st.value == pytest.approx(0.5, abs=0.15)
    assert same.generated.c2st.value == pytest.approx(0.5, abs=0.15)
    assert same.novelty is not None
    assert same.novelty.nn.value == pytest.approx(1, abs=0.1)
    assert same.novelty.nn_symmetric.value == pytest.approx(1, abs=0.1)
    assert same.novelty.copies < 0.2
    shifted = judge(REAL, balls(2, 60, "new", shift=80), TRAINING)
    assert shifted.generated.c2st.value > 0.9
    assert shifted.generated.ks_share < same.generated.ks_share < same.generated.ks_share_corrected + 0.01
    assert shifted.real_vs_real == same.real_vs_real


def test_copies_are_not_new_and_flipped_ones_only_seem_to_be():
    new = [f"copy{i}" for i in range(80)]
    copies = TRAINING.with_columns(name=new, group=new)
    for made, plain in ((copies, False), (copies._replace(values=copies.values[:, ::-1, :, ::-1]), True)):
        found = judge(REAL, made, TRAINING)
        assert found.novelty is not None
        assert (found.novelty.nn.value > 0.7) is plain
        assert (found.novelty.nn_symmetric.value, found.novelty.copies) == (0, 1)
        assert found.nearest is not None
        assert found.nearest.index.tolist() == list(range(80))


def test_without_a_training_set_two_halves_of_other_patients_are_compared_and_novelty_is_unknown():
    found = judge(REAL, balls(2, 300, "new"))
    assert found.novelty is None
    assert found.generated.samples == found.real_vs_real.samples == 30
    assert found.real_vs_real.c2st.value == pytest.approx(0.5, abs=0.2)
    assert found.real_vs_real.patients == (15, 15)  # of two nodules each, of 30 patients in all


def test_masks_are_used_where_all_sets_have_them():
    """The real column must not compare shapes of masks with shapes of intensity."""
    assert judge(REAL, NEW).masks
    assert not judge(REAL._replace(masks=None), NEW).masks
    assert not judge(REAL, NEW, TRAINING._replace(masks=None)).masks


def test_both_columns_compare_as_many_with_the_same_real_nodules():
    found = judge(balls(0, 120), balls(2, 40, "new"), TRAINING)
    assert [len(set(nodules.names)) for nodules in found.compared] == [40, 40]
    # More generated nodules change nothing in the real column, where as many are compared.
    many = judge(balls(0, 120), balls(2, 200, "new"), TRAINING, count=40)
    assert many.real_vs_real == found.real_vs_real
    assert many.novelty is not None
    assert len(many.novelty.nearest_distance) == 200  # those that are not compared have their nearest too


def test_a_unit_of_their_own_changes_no_figure():
    def own(nodules):
        return nodules._replace(values=(np.clip(nodules.values, -1000, 400) / 1400 + 1000 / 1400).astype(np.float32))

    made = balls(2, 60, "new", shift=80)
    known = judge(REAL, made, TRAINING)
    found = judge(own(REAL), own(made), own(TRAINING), window=(0.0, 1.0), hu=False)
    assert found.generated.c2st.value == pytest.approx(known.generated.c2st.value, abs=0.01)  # features are of float32
    assert found.generated.coverage == pytest.approx(known.generated.coverage, abs=0.05)
    assert found.novelty is not None
    assert known.novelty is not None
    assert found.novelty.nn_symmetric == pytest.approx(known.novelty.nn_symmetric, rel=1e-4)


def test_a_single_copy_in_the_training_set_or_among_the_generated_refuses_the_set():
    """The median distance is far from 0 then, but copies are counted against the smallest distances."""
    values = NEW.values.copy()
    values[7] = REAL.values[9].swapaxes(1, 2)
    copied = NEW._replace(values=values)
    for sets, name in (((balls(3, 40, "made"), copied), "--train"), ((copied, TRAINING), "GENERATED")):
        with pytest.raises(InputError, match=f"with {name}; 1 of its 60 .* such as real9, which is new7"):
            judge(REAL, *sets)


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


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ((REAL, balls(2, 20), TRAINING), "GENERATED must have at least 25 nodules of at least 5 .* got 20 of 10"),
        ((balls(0, 40), NEW), "REAL must have at least 50 nodules of at least 10 .* got 40 of 20: .* --train"),
        ((of_patients(REAL, 9), NEW), "REAL must have .* got 60 of 9: .* --train"),
        ((of_patients(REAL, 3), NEW, TRAINING), "REAL must have .* got 60 of 3"),
        ((REAL, of_patients(NEW, 1), TRAINING), "GENERATED must have .* got 60 of 1"),
        ((REAL, NEW, of_patients(TRAINING, 4)), "--train must have .* got 80 of 4"),
        ((HALF, NEW), "nodules of the .* half of REAL must have .* got 30 of 1"),
        ((REAL, balls(2, 40, size=9)), "REAL and GENERATED .* 8 × 8 × 8 and 9 × 9 × 9"),
        ((REAL._replace(values=REAL.values[:, 4]), NEW), "three axes .* got 8 × 8"),
        ((REAL, NEW, balls(3, 50)), "25 of its 30 patients are in --train, such as real0"),
    ],
)
def test_what_cannot_be_judged_is_told(sets, message):
    with pytest.raises(InputError, match=message):
        judge(*sets)


@pytest.mark.parametrize(("patients", "training"), [(5, TRAINING), (10, None)])
def test_as_many_patients_as_are_needed_give_finite_figures(patients, training):
    found = judge(of_patients(REAL, patients), NEW, training)
    figures = [figure for one in (found.generated, found.real_vs_real) for figure in (one.c2st, one.coverage)]
    assert np.isfinite(figures).all()
    assert all(low <= high for _, low, high in figures)


@pytest.mark.parametrize("count", [24, 61])
def test_a_count_that_cannot_be_compared_is_refused(count):
    with pytest.raises(InputError, match=f"--count .* 25 to 60, .*; got {count}"):
        judge(REAL, NEW, TRAINING, count=count)

"""Judgements of populations that are the same, shifted, or copied."""

from functools import partial

import numpy as np
import pytest

from gmmae.generation.judging.features import NAMES
from gmmae.generation.judging.judge import Scale, compare, halves, population
from gmmae.generation.judging.judge import judge as judge_scaled
from gmmae.system.errors import InputError
from tests.generation.nodules import balls

HU = Scale((-1000.0, 400.0), hu=True)
judge = partial(judge_scaled, scale=HU)
REAL, TRAINING = balls(0, 60), balls(1, 80, "trained")


pytestmark = pytest.mark.usefixtures("few_divisions")


def test_what_is_of_the_same_population_is_as_good_as_real_and_shifted_nodules_are_found():
    same = judge(REAL, balls(2, 60, "new"), TRAINING)
    # Sixty against sixty: the standard deviation of the AUC is about .07, of the ratio of the medians of distances a few per
    # cents.
    assert same.real_vs_real.c2st.value == pytest.approx(0.5, abs=0.15)
    assert same.generated.c2st.value == pytest.approx(0.5, abs=0.15)
    assert same.novelty is not None
    assert same.novelty.plain.value == pytest.approx(1, abs=0.1)
    assert same.novelty.symmetric.value == pytest.approx(1, abs=0.1)
    assert same.novelty.copies < 0.2
    assert same.generated.samples == same.real_vs_real.samples == 60
    shifted = judge(REAL, balls(2, 60, "new", shift=80), TRAINING)
    assert shifted.generated.c2st.value > 0.9
    assert shifted.generated.ks_tests.share < same.generated.ks_tests.share
    assert shifted.real_vs_real.c2st == same.real_vs_real.c2st


def test_copies_are_not_new_and_flipped_ones_only_seem_to_be():
    new = [f"copy{i}" for i in range(80)]
    copies = TRAINING.with_columns(name=new, group=new)
    found = judge(REAL, copies, TRAINING).novelty
    assert found is not None
    assert found.plain.value == 0
    assert found.copies == 1
    flipped = judge(REAL, copies._replace(values=copies.values[:, ::-1, :, ::-1]), TRAINING).novelty
    assert flipped is not None
    assert flipped.plain.value > 0.7
    assert flipped.symmetric.value == 0
    assert flipped.copies == 1
    assert flipped.nearest.index.tolist() == list(range(80))


def test_without_a_training_set_two_halves_of_other_patients_are_compared_and_novelty_is_unknown():
    found = judge(REAL, balls(2, 300, "new"))
    assert found.novelty is None
    assert found.generated.samples == found.real_vs_real.samples == 30
    assert found.real_vs_real.c2st.value == pytest.approx(0.5, abs=0.2)
    one, two = ({REAL.groups[i] for i in index} for index in (found.sets.reference, found.sets.others))
    assert not one & two
    assert found.masks


def test_masks_are_used_where_all_sets_have_them():
    """The real column must not compare shapes of masks with shapes of intensity."""
    generated = balls(2, 40, "new")
    assert not judge(REAL._replace(masks=None), generated).masks
    assert not judge(REAL, generated, TRAINING._replace(masks=None)).masks


def test_halves_divide_no_patient_and_are_as_equal_as_can_be():
    groups = [*"aaaaabbbcccdde"]
    first, second = halves(groups, seed=0)
    assert sorted([*first, *second]) == list(range(14))
    assert not {groups[i] for i in first} & {groups[i] for i in second}
    assert len(first) == 7
    assert {tuple(halves(REAL.groups, seed)[0]) for seed in range(2)} != {tuple(halves(REAL.groups, 0)[0])}


def test_both_columns_compare_as_many_with_the_same_real_nodules():
    found = judge(balls(0, 120), balls(2, 40, "new"), TRAINING)
    assert found.generated.samples == found.real_vs_real.samples == 40
    assert [len(set(index.tolist())) for index in found.sets] == [40, 40, 40]
    assert found.generated.patients[0] == found.real_vs_real.patients[0]
    # More generated nodules change nothing in the real column, where as many are compared.
    many = judge(balls(0, 120), balls(2, 200, "new"), TRAINING, count=40)
    assert [len(index) for index in many.sets] == [40, 40, 40]
    for name in ("c2st", "coverage"):
        assert getattr(many.real_vs_real, name) == getattr(found.real_vs_real, name)
    assert many.novelty is not None
    assert len(many.novelty.nearest.index) == 200  # those that are not compared have their nearest too


def test_a_unit_of_their_own_changes_no_figure():
    def own(nodules):
        return nodules._replace(values=(np.clip(nodules.values, -1000, 400) / 1400 + 1000 / 1400).astype(np.float32))

    made = balls(2, 60, "new", shift=80)
    known = judge(REAL, made, TRAINING)
    found = judge_scaled(own(REAL), own(made), own(TRAINING), scale=Scale((0.0, 1.0), hu=False))
    assert found.generated.c2st.value == pytest.approx(known.generated.c2st.value, abs=0.01)  # features are of float32
    assert found.generated.coverage == pytest.approx(known.generated.coverage, abs=0.05)
    assert found.novelty is not None
    assert known.novelty is not None
    assert found.novelty.symmetric == pytest.approx(known.novelty.symmetric, rel=1e-4)


def test_real_nodules_that_the_training_set_holds_are_no_measure():
    repeated = REAL.with_columns(group=[f"other{name}" for name in REAL.groups])
    flipped = repeated._replace(values=repeated.values[:, ::-1])
    for training in (repeated, flipped):
        with pytest.raises(InputError, match="REAL must share no nodule with --train; 60 of its 60"):
            judge(REAL, balls(2, 40, "new"), training)


def test_a_single_copy_in_the_training_set_or_among_the_generated_refuses_the_set():
    """The median distance is far from 0 then, but copies are counted against the smallest distances."""
    values = balls(2, 40, "new").values
    values[7] = REAL.values[9].swapaxes(1, 2)
    copied = balls(2, 40, "new")._replace(values=values)
    with pytest.raises(InputError, match=r"with --train; 1 of its 60 .* such as real9, which is new7"):
        judge(REAL, balls(3, 40, "made"), copied)
    with pytest.raises(InputError, match=r"with GENERATED; 1 of its 60 .* such as real9, which is new7"):
        judge(REAL, copied, TRAINING)


def test_features_that_generating_copies_are_left_out_of_the_second_c2st():
    """The mean in HU tells the sets apart, and nothing else does."""
    real, other = (population(nodules, True, HU) for nodules in (REAL, balls(2, 60, "new")))
    other.features[:, NAMES.index("hu_mean")] += 1000
    found = compare(real, other)
    assert found.c2st.value > 0.95
    assert found.c2st_rest.value == pytest.approx(0.5, abs=0.15)


def of_patients(nodules, patients):
    return nodules.with_columns(group=[f"{nodules.names[0]} {i % patients}" for i in range(len(nodules.names))])


def needed(name, got, nodules=25, patients=5):
    named = "(or scans, if no patient is named)"
    return f"{name} must have at least {nodules} nodules of at least {patients} patients {named}; got {got}: add some"


OR_TRAIN = ", or name the training set with --train"
WIDOW = balls(0, 60).with_columns(group=["a"] * 30 + list("bcdefghijk") * 3)
"""Half of these nodules are one patient's."""


@pytest.mark.parametrize(
    ("real", "generated", "training", "message"),
    [
        (REAL, balls(2, 20), TRAINING, needed("GENERATED", "20 of 10")),
        (balls(0, 40), balls(2, 40), None, needed("REAL", "40 of 20", 50, 10) + OR_TRAIN),
        *((of_patients(REAL, n), balls(2, 40), None, needed("REAL", f"60 of {n}", 50, 10) + OR_TRAIN) for n in (1, 9)),
        *((of_patients(REAL, n), balls(2, 40), TRAINING, needed("REAL", f"60 of {n}")) for n in (1, 3)),
        (REAL, of_patients(balls(2, 40), 1), TRAINING, needed("GENERATED", "40 of 1")),
        (REAL, balls(2, 40), of_patients(TRAINING, 4), needed("--train", "80 of 4")),
        (WIDOW, balls(2, 40), None, needed("each half of REAL", "30 of 1") + OR_TRAIN),
        (REAL, balls(2, 40, size=9), None, "GENERATED must have volumes of 8 × 8 × 8; got 9 × 9 × 9: make them alike"),
        (
            REAL._replace(values=REAL.values[:, 4]),
            balls(2, 40),
            None,
            "REAL must have volumes of three axes; got 8 × 8: make them alike",
        ),
        (
            REAL,
            balls(2, 40, "new"),
            balls(3, 50),
            "REAL must have been held out of the training set; 25 of its 30 patients are in --train, such as real0: "
            "leave them out of one",
        ),
    ],
)
def test_what_cannot_be_judged_is_told(real, generated, training, message):
    with pytest.raises(InputError) as error:
        judge(real, generated, training)
    assert str(error.value) == message


@pytest.mark.parametrize(("patients", "training"), [(5, TRAINING), (10, None)])
def test_as_many_patients_as_are_needed_give_finite_figures(patients, training):
    found = judge(of_patients(REAL, patients), balls(2, 40, "new"), training)
    figures = [figure for one in (found.generated, found.real_vs_real) for figure in (one.c2st, one.coverage)]
    assert np.isfinite(figures).all()
    assert all(low <= high for _, low, high in figures)


@pytest.mark.parametrize("count", [24, 41])
def test_a_count_that_cannot_be_compared_is_refused(count):
    with pytest.raises(InputError, match=f"--count must be all, or from 25 to 40, .*; got {count}"):
        judge(REAL, balls(2, 40, "new"), TRAINING, count=count)

"""Judgements of populations that are the same, shifted, or copied."""

import pytest

from gmmae.base.errors import InputError
from gmmae.generation import two_samples
from gmmae.generation.judge import halves, judge
from tests.generation.nodules import balls

REAL, TRAINING = balls(0, 60), balls(1, 80, "trained")


@pytest.fixture(autouse=True)
def few_divisions(monkeypatch):
    """Of folds, so that the tests are quick."""
    monkeypatch.setattr(two_samples, "REPETITIONS", 1)


def test_what_is_of_the_same_population_is_as_good_as_real_and_shifted_nodules_are_found():
    same = judge(REAL, balls(2, 60, "new"), TRAINING)
    # Sixty against sixty: the standard deviation of the AUC is about .07, of the ratio of the medians of distances a few per
    # cents.
    assert same.floor.c2st.value == pytest.approx(0.5, abs=0.15)
    assert same.generated.c2st.value == pytest.approx(0.5, abs=0.15)
    assert same.novelty is not None
    assert same.novelty.plain.value == pytest.approx(1, abs=0.1)
    assert same.novelty.symmetric.value == pytest.approx(1, abs=0.1)
    assert same.novelty.copies < 0.2
    assert same.generated.samples == same.floor.samples == 60
    shifted = judge(REAL, balls(2, 60, "new", shift=80), TRAINING)
    assert shifted.generated.c2st.value > 0.9
    assert shifted.generated.mmd2.low > same.generated.mmd2.high
    assert shifted.generated.hu_distance == pytest.approx(80, abs=10)
    assert shifted.generated.marginals.share < same.generated.marginals.share
    assert shifted.floor.c2st == same.floor.c2st


def test_copies_are_not_new_and_flipped_ones_only_seem_to_be():
    copies = TRAINING._replace(names=tuple(f"copy{i}" for i in range(80)), groups=tuple(f"copy{i}" for i in range(80)))
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


def test_without_a_training_set_the_floor_is_of_two_halves_and_novelty_is_unknown():
    found = judge(REAL, balls(2, 40, "new"))
    assert found.novelty is None
    assert found.generated.samples == 40
    assert found.floor.samples == 30
    assert found.floor.c2st.value == pytest.approx(0.5, abs=0.2)


def test_masks_are_used_where_both_have_them():
    generated = balls(2, 40, "new")
    assert judge(REAL, generated).masks
    assert not judge(REAL._replace(masks=None), generated).masks


def test_halves_divide_no_patient_and_are_as_equal_as_can_be():
    groups = [*"aaaaabbbcccdde"]
    first, second = halves(groups, seed=0)
    assert sorted([*first, *second]) == list(range(14))
    assert not {groups[i] for i in first} & {groups[i] for i in second}
    assert len(first) == 7
    assert {tuple(halves(REAL.groups, seed)[0]) for seed in range(2)} != {tuple(halves(REAL.groups, 0)[0])}


@pytest.mark.parametrize(
    ("real", "generated", "training", "message"),
    [
        (REAL, balls(2, 20), TRAINING, "GENERATED must have at least 25 nodules to be judged; got 20: add some"),
        (balls(0, 40), balls(2, 40), None, "REAL must have at least 50 nodules to be judged; got 40: add some"),
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

"""Each test against a hand computation, and on populations that are the same, shifted, or copies."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from gmmae.generation.judging import two_samples
from gmmae.generation.judging.two_samples import Sample, c2st, coverage, exchanged, ks_tests
from gmmae.system.errors import InputError

pytestmark = pytest.mark.usefixtures("few_divisions")


def named(features, prefix):
    """Returns a sample in which each row is a group of its own."""
    return Sample(features, [f"{prefix}{i}" for i in range(len(features))])


def normal(seed, samples=120):
    return named(np.random.default_rng(seed).normal(size=(samples, 6)), f"{seed}-")


def test_the_interval_of_an_auc_is_as_wide_as_theory_says():
    """The standard error of an AUC of two equal populations is √((m + n + 1) / 12mn) (Mann and Whitney 1947)."""
    auc = c2st(normal(2), normal(3))
    assert (auc.high - auc.low) / (2 * 1.96) == pytest.approx(np.sqrt(241 / (12 * 120 * 120)), rel=0.35)
    # Nodules that repeat those of their patients do not narrow it.
    one, two = (Sample(part.features.repeat(4, 0), np.repeat(part.groups, 4).tolist()) for part in (normal(2), normal(3)))
    assert c2st(one, two) == pytest.approx(auc, abs=0.02)


def test_a_pair_in_two_folds_hides_what_a_pair_in_one_fold_shows():
    """A classifier that memorised the one takes the slightly changed other for it, which lowers the AUC below that of pairs."""
    real = np.random.default_rng(4).normal(size=(40, 25))
    copies = real + 0.25 * np.random.default_rng(5).normal(size=real.shape) + 0.1
    assert c2st(named(real, "a"), named(copies, "b")).value < c2st(named(real, "a"), named(copies, "a")).value - 0.03


def test_a_fold_has_both_sets_to_learn_from_and_to_be_tested_on():
    one_patient = normal(0, 30)._replace(groups=["a"] * 30)  # no fold can have it on both sides
    with pytest.raises(InputError, match="got 31 groups"):
        c2st(one_patient, normal(1, 30))


def test_distances_of_distributions_and_their_p_values():
    real = np.tile(np.arange(100.0)[:, None], 6)
    other = real + np.array([100, 20, 0, 0, 0, 0])
    statistic, p = ks_tests(named(real, "a"), named(other, "b"))
    np.testing.assert_allclose(statistic, [1, 0.2, 0, 0, 0, 0])
    assert p[0] == 0.001
    # The exact p of a statistic of .2 for 100 against 100 is .0366 (SciPy); 999 exchanges have a standard error of .006.
    exact: Any = stats.ks_2samp(real[:, 1], other[:, 1], method="exact")
    assert p[1] == pytest.approx(exact.pvalue, abs=0.018)
    assert (p[2:] == 1).all()


def test_nodules_of_one_patient_are_no_evidence_of_their_own():
    """Two sets of one population, five equal nodules a patient: as Kolmogorov's own test, which is told of no patient, has it,
    they differ."""
    real, other = (np.repeat(normal(seed, 24).features, 5, axis=0) for seed in (20, 21))
    one, two = (np.repeat([f"{prefix}{i}" for i in range(24)], 5).tolist() for prefix in "ab")
    assert (ks_tests(Sample(real, one), Sample(other, two))[1] >= 0.05).all()
    assert np.mean(ks_tests(named(real, "a"), named(other, "b"))[1] >= 0.05) < 0.7


def test_exchanges_keep_groups_together_and_turn_pairs():
    labels = exchanged([*"aabbc", *"ddaef"], 5, seed=0)
    assert labels.shape == (1000, 10)
    assert labels[0].tolist() == [True] * 5 + [False] * 5
    for one, two in ((0, 1), (2, 3), (5, 6)):
        assert (labels[:, one] == labels[:, two]).all()
    assert (labels[:, 0] != labels[:, 7]).all()  # the patient that is in both sets
    assert 400 < labels[:, 0].sum() < 600
    # Of b, c, d, e and f two are of the first set.
    assert set((labels[:, [2, 4, 5, 8, 9]]).sum(1)) == {2}
    assert len({tuple(row) for row in labels}) == 20


def test_coverage_of_balls_on_a_line(monkeypatch):
    """Four real points one apart and one nearest neighbour: radii 1. A generated point on a real one lies in its ball and those
    beside it.
    """
    monkeypatch.setattr(two_samples, "NEIGHBOURS", 1)
    real = np.array([[0.0], [1.0], [2.0], [3.0]])
    found = coverage(Sample(real, ["a"] * 4), named(np.array([[1.0], [1.0], [9.0]]), "b"))
    assert found == pytest.approx((3 / 4, np.nan, np.nan), nan_ok=True)  # of one patient

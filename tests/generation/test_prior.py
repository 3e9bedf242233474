import numpy as np
import pytest

from gmmae.generation import prior as priors


def points(count=300):
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(6, 6)) * np.array([5, 3, 2, 1, 0.5, 0.1])[:, None]
    faint = np.arange(count) % 4 == 0
    return rng.normal(size=(count, 6)) @ mixed + np.where(faint, 20.0, 0.0)[:, None], faint


def drawn(monkeypatch, training, bands, donors, bandwidth):
    monkeypatch.setattr(priors, "BANDS", bands)
    prior = priors.fit(training[0], training[1].astype(str).tolist())
    return prior, *priors.draw(prior, donors, bandwidth, np.random.default_rng(1))


@pytest.mark.parametrize("bands", [(0,), (0, 2, 4)])
def test_samples_have_the_mean_and_the_spread_of_their_category(monkeypatch, bands):
    monkeypatch.setattr(priors, "NEIGHBOURS", 10)
    training, faint = points()
    spread = np.concatenate([part - part.mean(0) for part in (training[faint], training[~faint])]).std(0)
    for of in (faint, ~faint):
        donors = np.random.default_rng(1).choice(np.flatnonzero(of), 20000)
        _, found, _ = drawn(monkeypatch, (training, faint), bands, donors, 1.5)
        # The 20,000 samples come from 75 or 225 donors, whose own mean and spread are known to 0.1 of a standard deviation.
        assert np.abs(found.mean(0) - training[of].mean(0)).max() < 0.25 * spread.max()
        np.testing.assert_allclose(found.std(0), spread, rtol=0.3)


def test_the_donor_of_a_later_band_is_near_in_the_bands_before(monkeypatch):
    monkeypatch.setattr(priors, "NEIGHBOURS", 3)
    prior, _, donors = drawn(monkeypatch, points(), (0, 2), np.arange(200), 0.0)
    first, second = prior.points[donors.T][:, :, :2]
    anyone = np.linalg.norm(first - prior.points[200:201, :2], axis=1)
    assert np.median(np.linalg.norm(first - second, axis=1)) < 0.2 * np.median(anyone)
    assert (donors[:, 0] != donors[:, 1]).mean() > 0.4


@pytest.mark.parametrize("label", ["", "rare"])
def test_the_few_without_a_category_or_of_a_rare_one_are_no_more_often_donors_than_others(monkeypatch, label):
    monkeypatch.setattr(priors, "BANDS", (0, 32))
    rng = np.random.default_rng(2)
    training, labels = rng.normal(size=(60, 70)), np.repeat(["benign", "malignant", label], [29, 29, 2])
    training[:29, 0] += 5.0
    neighbours = priors.draw(priors.fit(training, labels.tolist()), np.repeat(np.arange(29, 58), 40), 1.3, rng)[1][:, 1]
    assert np.isin(neighbours, (58, 59)).mean() < 0.15  # 2 of 60 by chance


def test_constant_features_and_fewer_samples_than_features_are_no_trouble(monkeypatch):
    training, faint = points(5)
    training[:, 2] = 7.0
    _, found, _ = drawn(monkeypatch, (training, faint), (0, 2), np.arange(5), 0.5)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[:, 2], 7.0)

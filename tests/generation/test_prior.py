import numpy as np
import pytest

from gmmae.generation import prior as priors


def points(count=300, features=6, seed=0):
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(features, features)) * np.array([5, 3, 2, 1, 0.5, 0.1])[:features, None]
    labels = np.array(["solid", "faint"])[(np.arange(count) % 4 == 0).astype(int)]
    return rng.normal(size=(count, features)) @ mixed + np.where(labels == "faint", 20.0, 0.0)[:, None], labels.tolist()


def drawn(prior, count, bandwidth, category=None, seed=1):
    rng = np.random.default_rng(seed)
    allowed = np.flatnonzero([category in (None, label) for label in prior.labels])
    return priors.draw(prior, rng.choice(allowed, count), bandwidth, rng)


@pytest.mark.parametrize("bands", [(0,), (0, 2, 4)])
def test_samples_have_the_mean_and_the_covariance_of_their_category(monkeypatch, bands):
    monkeypatch.setattr(priors, "BANDS", bands)
    monkeypatch.setattr(priors, "NEIGHBOURS", 10)
    training, labels = points()
    prior = priors.fit(training, labels)
    parts = {category: training[np.array(labels) == category] for category in prior.means}
    spread = np.concatenate([part - part.mean(0) for part in parts.values()]).std(0)
    for category, of in parts.items():
        found = drawn(prior, 20000, 0.7, category)
        # The 20,000 samples come from 75 or 225 donors, whose own mean and spread are known to 0.1 of a standard deviation.
        assert np.abs(found.points.mean(0) - of.mean(0)).max() < 0.25 * spread.max()
        np.testing.assert_allclose(found.points.std(0), spread, rtol=0.3)
        assert set(found.labels) == {category}


def test_without_noise_and_with_one_band_samples_are_training_points(monkeypatch):
    monkeypatch.setattr(priors, "BANDS", (0,))
    training, labels = points(40)
    found = drawn(priors.fit(training, labels), 100, 0.0)
    np.testing.assert_allclose(found.points, training[found.donors[:, 0]], atol=1e-8)


def test_the_donor_of_a_later_band_is_near_in_the_bands_before(monkeypatch):
    monkeypatch.setattr(priors, "BANDS", (0, 2))
    monkeypatch.setattr(priors, "NEIGHBOURS", 3)
    training, labels = points()
    prior = priors.fit(training, labels)
    found = drawn(prior, 200, 0.0)
    first, second = found.donors.T
    apart = np.linalg.norm(prior.points[first][:, :2] - prior.points[second][:, :2], axis=1)
    anyone = np.linalg.norm(prior.points[first][:, :2] - prior.points[:200, :2], axis=1)
    assert np.median(apart) < 0.2 * np.median(anyone)
    assert (first != second).mean() > 0.4


def test_constant_features_and_fewer_samples_than_features_are_no_trouble(monkeypatch):
    monkeypatch.setattr(priors, "BANDS", (0, 2))
    training, labels = points(5, 6)
    training[:, 2] = 7.0
    found = drawn(priors.fit(training, labels), 50, 0.5)
    assert np.isfinite(found.points).all()
    np.testing.assert_allclose(found.points[:, 2], 7.0)

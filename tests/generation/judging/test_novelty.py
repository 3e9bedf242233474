"""Distances against a plain loop, and what they find of copies."""

import numpy as np
import pytest

from gmmae.generation.judging import novelty
from gmmae.generation.judging.novelty import nearest, symmetries

WINDOW = (-1000.0, 400.0)


def volumes(seed, samples):
    return np.random.default_rng(seed).integers(-1100, 500, (samples, 4, 4, 4)).astype(np.int16)


def test_the_nearest_is_that_of_a_plain_loop_over_windowed_voxels(monkeypatch):
    monkeypatch.setattr(novelty, "BLOCK", 3)
    values, training = volumes(0, 7), volumes(1, 5)
    found = nearest(values, training, WINDOW)
    shares, others = ((np.clip(some, *WINDOW) + 1000) / 1400 for some in (values, training))
    apart = np.sqrt(np.mean((shares[:, None] - others) ** 2, axis=(2, 3, 4)))
    assert found.index.tolist() == apart.argmin(1).tolist()
    np.testing.assert_allclose(found.distance, apart.min(1), rtol=1e-6)  # voxels are windowed in float32
    assert nearest(shares, others, (0.0, 1.0)).distance == pytest.approx(found.distance, rel=1e-5)


def test_a_flipped_copy_is_found_with_symmetries_and_one_turned_out_of_its_plane_is_not():
    training = volumes(2, 6)
    flipped = training[::-1, ::-1, :, ::-1].swapaxes(-1, -2)
    assert nearest(training, training, WINDOW).distance.max() == 0
    assert nearest(flipped, training, WINDOW).distance.min() > 0.2  # independent voxels: about sqrt(1/6) of the window
    found = nearest(flipped, training, WINDOW, symmetric=True)
    assert found.distance.max() == 0
    assert found.index.tolist() == [5, 4, 3, 2, 1, 0]
    turned = [list(symmetries(flipped))[turn][i] for i, turn in enumerate(found.turn)]
    np.testing.assert_array_equal(turned, training[found.index])
    assert nearest(training.swapaxes(1, 2), training, WINDOW, symmetric=True).distance.min() > 0.2

"""Distances against a plain loop, and what they find of copies."""

import numpy as np
import pytest

from gmmae.generation.judging import novelty
from gmmae.generation.judging.novelty import nearest, symmetries

WINDOW = (-1000.0, 400.0)


def volumes(seed, samples, shape=(4, 4, 4)):
    return np.random.default_rng(seed).integers(-1000, 400, (samples, *shape)).astype(np.int16)


def test_the_nearest_is_that_of_a_plain_loop(monkeypatch):
    monkeypatch.setattr(novelty, "BLOCK", 3)
    values, training = volumes(0, 7), volumes(1, 5)
    index, distance = nearest(values, training, WINDOW)
    for i, value in enumerate(values):
        apart = [np.sqrt(np.mean(((value - other.astype(float)) / 1400) ** 2)) for other in training]
        assert index[i] == np.argmin(apart)
        assert distance[i] == pytest.approx(min(apart), rel=1e-6)  # voxels are windowed in float32


def test_values_beyond_the_window_are_its_ends():
    assert nearest(np.full((1, 4, 4, 4), 3000, np.int16), np.full((1, 4, 4, 4), 400, np.int16), WINDOW).distance == 0
    assert nearest(np.full((1, 4), -2000.0), np.full((1, 4), 400.0), WINDOW).distance == 1


def test_distances_are_shares_of_the_window():
    values, training = np.random.default_rng(5).random((2, 3, 4, 4, 4))
    assert nearest(1400 * values - 1000, 1400 * training - 1000, WINDOW).distance == pytest.approx(
        nearest(values, training, (0.0, 1.0)).distance, rel=1e-5
    )  # voxels are windowed in float32


def test_a_copy_is_at_no_distance_and_a_flipped_one_only_with_symmetries():
    training = volumes(2, 6)
    assert nearest(training, training, WINDOW).distance.max() == 0
    flipped = training[::-1, ::-1, :, ::-1].swapaxes(-1, -2)
    assert nearest(flipped, training, WINDOW).distance.min() > 0.2  # independent voxels: about sqrt(1/6) of the window
    assert nearest(flipped, training, WINDOW, symmetric=True).distance.max() == 0
    assert nearest(flipped, training, WINDOW, symmetric=True).index.tolist() == [5, 4, 3, 2, 1, 0]


def test_a_turn_out_of_the_plane_is_no_symmetry():
    training = volumes(3, 3)
    assert nearest(training.swapaxes(1, 2), training, WINDOW, symmetric=True).distance.min() > 0.2


def test_the_symmetries_differ_from_each_other():
    found = {turned.tobytes() for turned in symmetries(volumes(4, 1))}
    assert len(found) == 16
    assert len({turned.tobytes() for turned in symmetries(volumes(4, 1, (3, 4, 5)))}) == 8

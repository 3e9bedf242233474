"""The gradient noise scale: recovered from gradients whose signal and noise are known."""

import numpy as np
import pytest

from gmmae.training.noise_scale import noise_scale


def squares(signal: float, noise: float, batch: int, steps: int, rng: np.random.Generator, size: int = 400):
    """Squared norms of mean gradients with |G|² = signal and tr(Σ) = noise."""
    mean = np.full(size, np.sqrt(signal / size))
    return ((mean + rng.normal(0, np.sqrt(noise / size / batch), (steps, size))) ** 2).sum(1)


def test_it_is_the_ratio_of_noise_and_signal():
    rng = np.random.default_rng(0)
    one, many = squares(2.0, 30.0, 1, 400, rng), squares(2.0, 30.0, 32, 400, rng)
    assert noise_scale(1, one, 32, many) == pytest.approx(15.0, rel=0.1)


def test_a_spike_moves_one_block_only():
    one, many = np.full(64, 11.0), np.full(64, 2.0)
    many[5], one[5] = 1e6, 1e6
    assert noise_scale(1, one, 10, many) == pytest.approx(10.0)


def test_a_signal_lost_in_noise_has_no_scale():
    assert noise_scale(1, np.full(8, 10.0), 10, np.full(8, 1.0)) is None

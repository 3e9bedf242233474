"""The gradient noise scale: recovered from gradients whose signal and noise are known."""

import numpy as np
import pytest

from gmmae.training.noise_scale import Norms, noise_of


def squares(signal: float, noise: float, batch: int, rng: np.random.Generator, steps: int = 400, size: int = 400):
    """Squared norms of mean gradients with |G|² = signal and tr(Σ) = noise."""
    mean = np.full(size, np.sqrt(signal / size))
    return ((mean + rng.normal(0, np.sqrt(noise / size / batch), (steps, size))) ** 2).sum(1).tolist()


def test_it_is_the_ratio_of_noise_and_signal():
    rng = np.random.default_rng(0)
    one, many = squares(2.0, 30.0, 1, rng), squares(2.0, 30.0, 32, rng)
    assert noise_of(Norms(32, one, many)) == pytest.approx(15.0, rel=0.1)


def test_a_spike_moves_one_block_only():
    spike = [1e6 if step == 5 else None for step in range(64)]
    assert noise_of(Norms(10, [s or 11.0 for s in spike], [s or 2.0 for s in spike])) == pytest.approx(10.0)


def test_a_signal_lost_in_noise_has_no_scale():
    assert noise_of(Norms(10, [10.0] * 8, [1.0] * 8)) is None

"""The gradient noise scale: recovered from gradients whose signal and noise are known."""

import numpy as np
import pytest

from gmmae.training import compilation
from gmmae.training.fetching import Fetcher
from gmmae.training.noise_scale import Norms, gradient_norms, noise_of
from tests.small import small


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


def test_adam_divides_by_epsilon_before_its_first_step_and_sgd_by_nothing():
    """Adam's second moment is zero then. It has none at β2 = 0, where `log β2` is minus infinity."""

    def norms(**options) -> Norms:
        setup = compilation.prepare(small(**options))
        state = compilation.initial_state(setup)
        return gradient_norms(setup, state, Fetcher(setup.config.parallel))(state)

    plain = norms(optim__name="sgd")
    assert min(plain.of_one) > 0
    for beta2 in (0.0, 0.999):
        divided = norms(optim__beta2=beta2, optim__epsilon=0.5)
        # Sums of some thousand squares in float32, whose order may differ between two programs.
        np.testing.assert_allclose(divided.of_one, np.array(plain.of_one) / 0.5, rtol=1e-5)
        np.testing.assert_allclose(divided.of_batch, np.array(plain.of_batch) / 0.5, rtol=1e-5)

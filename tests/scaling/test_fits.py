import numpy as np
import pytest

from gmmae.scaling import cost, fits
from gmmae.system.errors import InputError

COUNTS = [1, 2, 4, 8, 16, 32]
REPEATS = 5
NOISE = 0.03  # standard deviation of the logarithm of a time
LAW = {"serial_s": 4.0, "parallel_s": 100.0, "communication_s": 0.5}


def law_times(counts, rng=None):
    noise = np.exp(NOISE * rng.standard_normal(len(counts))) if rng is not None else 1.0
    return list(cost.law(np.array(counts), **LAW) * noise)


def test_the_law_is_recovered_from_noisy_times_by_intervals_no_wider_than_the_noise_asks():
    counts = COUNTS * REPEATS
    trials = [fits.fit_law(counts, law_times(counts, np.random.default_rng(seed))) for seed in range(100)]
    for key, value in LAW.items():  # of 100 intervals of 95 %, 95 ± 2.2 hold the true value
        assert sum(trial[key].low <= value <= trial[key].high for trial in trials) >= 90, key
    # For relative noise σ a width is 2 t σ times the root of the diagonal of (XᵀX)⁻¹; X is relative to the true times.
    # Student's t quantile of 30 - 3 degrees of freedom is 2.05, from a table.
    relative = np.array([[1, 1 / n, np.log2(n)] for n in counts]) / np.array(law_times(counts))[:, None]
    expected = 2 * 2.05 * NOISE * np.sqrt(np.diag(np.linalg.inv(relative.T @ relative)))
    widths = [np.median([trial[key].high - trial[key].low for trial in trials]) for key in LAW]
    # A width scatters like the estimate of the noise, by 1 / √(2 · 27) = 14 %, the median of 100 by 2 %: 10 % is 5 of those.
    np.testing.assert_allclose(widths, expected, rtol=0.1)


def test_a_law_without_noise_is_found_with_intervals_of_no_width():
    counts = [1, 2, 3, 5, 8]
    estimates = fits.fit_law(counts, law_times(counts))
    assert list(estimates) == list(LAW)
    for key, value in LAW.items():
        assert estimates[key] == pytest.approx((value, value, value), rel=1e-9)


def test_an_interval_against_one_worked_by_hand():
    # T(n) = 1 + 8/n + log2(n)/2: 9 s, 5.5 s and 4 s on 1, 2 and 4, each measured 1 % less and 1 % more. The fit goes through
    # the three means, so the relative residuals are ±0.01, and s² = 6 · 0.0001 / 3.
    times = [9 * 0.99, 9 * 1.01, 5.5 * 0.99, 5.5 * 1.01, 4 * 0.99, 4 * 1.01]
    found = fits.fit_law([1, 1, 2, 2, 4, 4], times)
    # T_P is 4 (T(4) - 2 T(2) + T(1)), and the variance of a mean s² T² / 2, so the error of T_P is
    # 4 √(0.0001 · (4² + 4 · 5.5² + 9²)) = 0.5905929. Student's t for 95 % and 3 degrees of freedom is 3.182446.
    margin = 3.182446 * 0.5905929
    assert found["parallel_s"] == pytest.approx((8, 8 - margin, 8 + margin), rel=1e-5)
    assert found["serial_s"].value == pytest.approx(1)


@pytest.mark.slow
def test_short_times_by_chance_do_not_pull_the_fit_down():
    # At 30 % noise, weights by the measured times would take about 2 · 0.3² = 18 % off; the mean over 400 fits is known to 1 %.
    counts = [1, 2, 4, 8] * 10
    shape = 1 / 0.3**2  # gamma: mean 1, relative standard deviation 0.3
    truth = cost.law(np.array(counts), **LAW)
    found = []
    for seed in range(400):
        times = truth * np.random.default_rng(seed).gamma(shape, 1 / shape, len(counts))
        estimates = fits.fit_law(counts, list(times))
        found.append(cost.law(2, *(estimates[key].value for key in LAW)))
    assert np.mean(found) == pytest.approx(cost.law(2, **LAW), rel=0.03)


def test_counts_held_out_are_predicted_by_the_others():
    times = law_times(COUNTS)
    times[3] *= 1.5  # at 8 devices: 4 + 12.5 + 1.5 = 18 s, measured as 27 s
    found = fits.leave_one_out(COUNTS, times)
    assert [held.devices for held in found] == COUNTS
    assert found[3].measured_s == pytest.approx(27)
    assert found[3].predicted_s == pytest.approx(18)


def test_what_is_held_out_is_the_median_of_its_repeats():
    found = fits.leave_one_out([1, 2, 4, 8, 8, 8], [*law_times([1, 2, 4]), 1.0, 2.0, 30.0])
    assert found[-1].measured_s == 2
    assert found[-1].predicted_s == pytest.approx(18)


def test_counts_that_the_fit_cannot_miss_are_left_out():
    assert fits.leave_one_out([1, 2, 4, 4], law_times([1, 2, 4, 4])) == []
    close = [1, 100, 105, 110]  # without 1, the others are too alike
    assert [held.devices for held in fits.leave_one_out(close, law_times(close))] == close[1:]


@pytest.mark.parametrize(
    ("devices", "times", "message"),
    [
        ([1, 2, 4], [1.0, 1.0], "device counts must be as many as times; got 3: give 2"),
        ([1, 2, 4, 8], [1, 1, 1, float("nan")], "times must be finite and positive; got .*nan.*: leave the others out"),
        ([1, 2, 4, 8], [1, 1, 1, float("inf")], "times must be finite and positive"),
        ([1, 2, 4, 8], [1, 1, 1, 0], "times must be finite and positive"),
        ([0, 2, 4, 8], [1, 1, 1, 1], "device counts must be whole numbers of at least 1; got .0, 2"),
        ([1, 2.5, 4, 8], [1, 1, 1, 1], "device counts must be whole numbers of at least 1"),
        ([1, 1, 2, 2], [1, 1, 1, 1], "there must be at least 3 different device counts; got .*: measure another"),
        ([4] * 9, [1] * 9, "there must be at least 3 different device counts"),
        ([1, 2, 4], [1, 1, 1], "3 parameters with intervals need at least 4 times; got 3: repeat the measurements"),
        ([1000, 1001, 1002, 1003], [1, 1, 1, 1], "device counts must tell T_S, T_P and c apart; got .*: spread them"),
    ],
)
def test_a_law_that_the_times_do_not_determine_is_refused(devices, times, message):
    with pytest.raises(InputError, match=message):
        fits.fit_law(devices, times)


def test_times_that_no_positive_law_fits_are_refused():
    with pytest.raises(InputError, match=r"the model must fit positive times; got -0.07\d*: these times do not follow it"):
        fits.fit_law([1, 2, 4, 8], [1.0, 0.1, 10.0, 0.1])

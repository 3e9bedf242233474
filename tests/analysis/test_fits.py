import numpy as np
import pytest

from gmmae.analysis import fits, scaling
from gmmae.base.errors import InputError

COUNTS = [1, 2, 4, 8, 16, 32]
REPEATS = 5
NOISE = 0.03  # standard deviation of the logarithm of a time
LAW = {"serial_s": 4.0, "parallel_s": 100.0, "communication_s": 0.5}
ALPHA_BETA = {"alpha_s": 20e-6, "beta_bytes_per_s": 1e9}
SIZES = [1e3, 1e5, 1e7]
MODELS = {"ring": scaling.ring_s, "tree": scaling.tree_s}


def law_times(counts, rng=None):
    noise = np.exp(NOISE * rng.standard_normal(len(counts))) if rng is not None else 1.0
    return list(scaling.law(np.array(counts), **LAW) * noise)


def reduce_times(collective, counts, sizes, rng=None):
    times = [MODELS[collective](n, size, *ALPHA_BETA.values()) for n, size in zip(counts, sizes, strict=True)]
    noise = np.exp(NOISE * rng.standard_normal(len(times))) if rng is not None else 1.0
    return list(np.array(times) * noise)


def grid():
    cells = [(n, size) for n in COUNTS[1:] for size in SIZES for _ in range(REPEATS)]
    return [n for n, _ in cells], [size for _, size in cells]


def expected_widths(design, times):
    """Of 95 % intervals for relative noise: 2 t σ times the roots of the diagonal of (XᵀX)⁻¹, X relative to the true times.

    Student's t quantiles from a table: 2.05 for 27 degrees of freedom, 1.99 for 73.
    """
    relative = design / np.array(times)[:, None]
    quantile = {27: 2.05, 73: 1.99}[len(times) - design.shape[1]]
    return 2 * quantile * NOISE * np.sqrt(np.diag(np.linalg.inv(relative.T @ relative)))


def assert_recovered(trials, truth):
    for key, value in truth.items():
        hits = sum(trial[key].low <= value <= trial[key].high for trial in trials)
        # Of 100 intervals of 95 %, 95 ± 2.2 hold the true value.
        assert hits >= 90, f"{key}: {hits} of {len(trials)}"


def assert_exact(estimates, truth):
    assert list(estimates) == list(truth)
    for key, value in truth.items():
        assert estimates[key] == pytest.approx((value, value, value), rel=1e-9)


def median_widths(trials, keys):
    return np.array([np.median([trial[key].high - trial[key].low for trial in trials]) for key in keys])


def test_the_law_is_recovered_from_noisy_times_by_intervals_no_wider_than_the_noise_asks():
    counts = COUNTS * REPEATS
    trials = [fits.fit_law(counts, law_times(counts, np.random.default_rng(seed))) for seed in range(100)]
    assert_recovered(trials, LAW)
    design = np.array([[1, 1 / n, np.log2(n)] for n in counts])
    # A width scatters like the estimate of the noise, by 1 / √(2 · 27) = 14 %, the median of 100 by 2 %: 10 % is 5 of those.
    np.testing.assert_allclose(median_widths(trials, LAW), expected_widths(design, law_times(counts)), rtol=0.1)


@pytest.mark.parametrize("collective", ["ring", "tree"])
def test_alpha_and_beta_are_recovered_from_noisy_times_by_intervals_no_wider_than_the_noise_asks(collective):
    counts, sizes = grid()
    trials = [
        fits.fit_all_reduce(counts, sizes, reduce_times(collective, counts, sizes, np.random.default_rng(seed)), collective)
        for seed in range(100)
    ]
    assert_recovered(trials, ALPHA_BETA)
    model = MODELS[collective]
    design = np.array([[model(n, 0, 1, 1), model(n, size, 0, 1)] for n, size in zip(counts, sizes, strict=True)])
    alpha, inverse = expected_widths(design, reduce_times(collective, counts, sizes))
    # β's interval is narrow, so turning 1/β over keeps the relative width: width(β) = β² width(1/β).
    widths = [alpha, inverse * ALPHA_BETA["beta_bytes_per_s"] ** 2]
    np.testing.assert_allclose(median_widths(trials, ALPHA_BETA), widths, rtol=0.1)
    assert inverse * ALPHA_BETA["beta_bytes_per_s"] < 0.05


def test_a_law_without_noise_is_found_with_intervals_of_no_width():
    counts = [1, 2, 3, 5, 8]
    assert_exact(fits.fit_law(counts, law_times(counts)), LAW)


@pytest.mark.parametrize("collective", ["ring", "tree"])
def test_alpha_and_beta_without_noise_are_found_with_intervals_of_no_width(collective):
    counts = [2, 3, 5, 8, 9, 64]
    sizes = [1e3, 1e7, 1e5, 1e6, 1e4, 1e5]
    assert_exact(fits.fit_all_reduce(counts, sizes, reduce_times(collective, counts, sizes), collective), ALPHA_BETA)


def test_an_interval_against_one_worked_by_hand():
    # Ring of 2: t = 2 α + bytes / β, with α = 1 s and 1/β = 1 s: 4 s for 2 bytes and 2002 s for 2000, each 1 % less and
    # 1 % more. The fit goes through the two means, so the relative residuals are ±0.01, and s² = 4 · 0.0001 / 2.
    sizes, times = [2, 2, 2000, 2000], [3.96, 4.04, 2002 * 0.99, 2002 * 1.01]
    found = fits.fit_all_reduce([2] * 4, sizes, times)
    # 1/β is the difference of the means over 1998 bytes. Their variances are s² · 4² / 2 and s² · 2002² / 2, so its error is
    # √(0.0001 · (4² + 2002²)) / 1998 = 0.0100200. Student's t for 95 % and 2 degrees of freedom is 4.302653.
    margin = 4.302653 * 0.0100200
    expected = (1.0, 1 / (1 + margin), 1 / (1 - margin))
    assert found["beta_bytes_per_s"] == pytest.approx(expected, rel=1e-5)
    assert found["alpha_s"].value == pytest.approx(1)


def test_a_higher_level_is_wider():
    times = law_times(COUNTS * 2, np.random.default_rng(0))
    narrow, wide = (fits.fit_law(COUNTS * 2, times, level)["parallel_s"] for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.value == wide.value < narrow.high < wide.high


def test_short_times_by_chance_do_not_pull_the_fit_down():
    # At 30 % noise, weights by the measured times would take about 2 · 0.3² = 18 % off; the mean over 400 fits is known to 1 %.
    counts = [1, 2, 4, 8] * 10
    shape = 1 / 0.3**2  # gamma: mean 1, relative standard deviation 0.3
    truth = scaling.law(np.array(counts), **LAW)
    found = []
    for seed in range(400):
        times = truth * np.random.default_rng(seed).gamma(shape, 1 / shape, len(counts))
        estimates = fits.fit_law(counts, list(times))
        found.append(scaling.law(2, *(estimates[key].value for key in LAW)))
    assert np.mean(found) == pytest.approx(scaling.law(2, **LAW), rel=0.03)


def test_the_upper_end_of_beta_is_infinite_where_its_inverse_may_be_zero():
    # 1 ± 0.1 s for 1 byte and 1.01 ± 0.1 s for 10: the difference is a tenth of the noise.
    found = fits.fit_all_reduce([2] * 4, [1, 1, 10, 10], [0.9, 1.1, 0.91, 1.11])["beta_bytes_per_s"]
    assert 0 < found.low < found.value < found.high == float("inf")


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


@pytest.mark.parametrize(
    ("devices", "sizes", "times", "collective", "message"),
    [
        ([2, 2, 2], [1, 2], [1, 1, 1], "ring", "sizes must be as many as times; got 2: give 3"),
        ([2, 2, 2], [1, 2, -3], [1, 1, 1], "ring", "sizes must be finite and positive; got .1, 2, -3.: leave the others out"),
        ([1, 2, 2], [1, 2, 3], [1, 1, 1], "ring", "device counts must be whole numbers of at least 2"),
        ([2, 2], [1, 2], [1, 2], "ring", "2 parameters with intervals need at least 3 times; got 2"),
        ([2, 2, 2], [1, 2, 3], [1, 2, 3], "star", "collective must be one of ring, tree; got 'star'"),
        ([2, 2, 2], [8, 8, 8], [1, 1, 1], "ring", "sizes must tell α and β apart; got .8, 8, 8.: measure small and large"),
        ([2, 4, 8], [8, 16, 32], [1, 2, 3], "ring", "sizes must tell α and β apart"),
        ([2, 4, 8], [8, 8, 8], [1, 2, 3], "tree", "sizes must tell α and β apart"),
        ([2, 2, 2], [1, 10, 100], [3, 2, 1], "ring", "bandwidth not determined: the times do not grow with the size; .*got -"),
        ([2, 2, 2], [1, 10, 100], [3, 2, 1], "tree", "bandwidth not determined"),
    ],
)
def test_alpha_and_beta_that_the_times_do_not_determine_are_refused(devices, sizes, times, collective, message):
    with pytest.raises(InputError, match=message):
        fits.fit_all_reduce(devices, sizes, times, collective)


def test_times_that_no_positive_law_fits_are_refused():
    with pytest.raises(InputError, match=r"the model must fit positive times; got -0.07\d*: these times do not follow it"):
        fits.fit_law([1, 2, 4, 8], [1.0, 0.1, 10.0, 0.1])


def test_one_message_size_on_several_counts_determines_a_ring():
    counts = [2, 4, 8, 16]
    found = fits.fit_all_reduce(counts, [1e5] * 4, reduce_times("ring", counts, [1e5] * 4))
    assert found["alpha_s"].value == pytest.approx(20e-6)


@pytest.mark.parametrize("level", [0, 1, float("nan")])
def test_a_level_lies_between_0_and_1(level):
    with pytest.raises(InputError, match=r"level must lie between 0 and 1; got .*: give 0.95 for 95 %"):
        fits.fit_law(COUNTS, law_times(COUNTS), level)

"""The first figure of the README: time to the target on a slow and on a fast machine."""

import math

import pytest

from experiments import headline
from experiments.machines import H100, h100_steps
from gmmae.scaling import cost


def row(scaling, n, seed, epochs, outcome="target_reached"):
    found = {"scaling": scaling, "devices": n, "seed": seed, "epochs": epochs, "outcome": outcome, "global_batch": 32}
    return {key: str(value) for key, value in found.items()} | {"path": f"{scaling}-{n}"}


def test_times_are_relative_to_the_median_on_one_device_and_a_miss_is_infinite():
    of = [row("strong", 1, seed, epochs) for seed, epochs in enumerate((10, 20, 40))]
    of += [row("weak", 1, 0, 30), row("linear", 1, 0, 30, "stalled")]
    times = headline.relative_times("k80_1gbe", of)
    assert times["strong", 1] == pytest.approx([0.5, 1, 2])
    assert times["weak", 1] == pytest.approx([1.5])
    assert times["linear", 1] == [math.inf]


def test_a_line_has_median_range_and_misses():
    of = [row("strong", 1, seed, 10) for seed in range(4)]
    of += [row("linear", 2, seed, 10, outcome) for seed, outcome in enumerate(["target_reached"] * 2 + ["stalled"] * 2)]
    times = {("strong", 1): [3.0, 1.0, 2.0, 4.0], ("linear", 2): [1.0, 2.0, math.inf, math.inf]}
    strong, _, _, linear, _ = headline.lines(times, of)
    assert (strong.median, strong.low, strong.high, strong.reached, strong.runs) == ((2.5,), (1.0,), (4.0,), (4,), (4,))
    assert (linear.median, linear.high, linear.reached, linear.runs) == ((math.inf,), (math.inf,), (2,), (4,))


def test_on_the_fast_machine_a_step_takes_its_overhead_and_the_samples_of_a_device():
    """Two steps were timed on an H100: a strong step of 8 samples on each of 4 devices, over one of 32."""
    overhead_s, sample_s = cost.affine(h100_steps("cuDNN's convolutions and the loss's first kernel"))
    of = [row("strong", n, 0, 20) for n in (1, 4)]
    ratio = headline.relative_times(H100, of)["strong", 4][0]
    without_links = (overhead_s + 8 * sample_s) / (overhead_s + 32 * sample_s)
    assert without_links < ratio < 1.1 * without_links


def test_the_figure_has_a_panel_for_each_machine_with_one_scale():
    drawn = headline.figure()
    titled = [axes for axes in drawn.axes if axes.get_title()]
    assert [axes.get_title() for axes in titled] == list(headline.PANELS.values())
    assert titled[0].get_ylim() == titled[1].get_ylim()
    assert "projected" in drawn.get_suptitle()

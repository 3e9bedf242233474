"""Predictions from constructed measurements: the rule of thumb, whole epochs, choices and uncertainty."""

import math
from dataclasses import replace

import pytest

from gmmae.config.schema import OptimConfig
from gmmae.planner import prediction
from gmmae.planner.prediction import BEST_BATCH, Measured
from gmmae.planner.step_ratios import Ratios
from gmmae.scaling.cost import Cluster, StepTimes

BN, SMIN = 20.0, 200.0
WEAK = math.log((1 + BN / 64) / (1 + BN / 32))
"""The weak ratio of the hyperbola."""
IDEAL = Cluster("Ideal", "a device", 64, 0.0, 1e30, 0.0, 1e30)
DEVICES = (1, 2, 4, 8, 16, 32)


def measured(overhead_s=0.0, sample_s=1e-3, **changes):
    """Returns measurements of 2048 samples. A step takes the given time, and validation takes none."""
    batches = (1, 2, 4, 8, 16, 32, 64)
    values = {
        "samples": 2048,
        "validation": 100,
        "optim": OptimConfig(),
        "max_epochs": 400,
        "steps": {32: SMIN * (1 + BN / 32)},
        "ratios": Ratios(WEAK, -0.5),
        "train": StepTimes(batches, tuple(overhead_s + sample_s * batch for batch in batches)),
        "passes": StepTimes((1, 100), (1e-9, 1e-9)),
        "gradient_bytes": 1e6,
    }
    return Measured(**values | changes)


def forecast(numbers, *scaling, devices=DEVICES, cluster=IDEAL):
    return prediction.forecast(numbers, cluster, scaling, devices)


def chosen(found):
    assert found.best
    return found.best


def cells(found, scaling):
    return {cell.devices: cell for cell in found.cells if cell.scaling == scaling}


@pytest.mark.parametrize(("ratio", "better"), [(0.1, "strong"), (10.0, "weak")])
def test_weak_beats_strong_exactly_where_the_rule_says(ratio, better):
    """B / Bn = 1.6; a / (b B) is far below it, or far above."""
    found = forecast(measured(ratio * 32e-3), "strong", "weak")
    assert 0.3 < 32 / prediction.batch_rule(measured()).bn < 3
    strong, weak = cells(found, "strong")[8], cells(found, "weak")[8]
    assert (weak.seconds < strong.seconds) == (better == "weak")
    assert chosen(found).scaling == better


def test_the_best_batch_takes_the_least_time():
    m = measured(0.16)
    found = forecast(m, BEST_BATCH, "strong", "weak", devices=(8,))
    group = prediction.device_group(m, IDEAL, 8)
    times = {
        batch: prediction.median_steps(m, batch) * float(group.epoch_s(batch)) / math.ceil(2048 / batch)
        for batch in range(8, 2049, 8)
    }
    assert times[found.best_batches[8]] < 1.05 * min(times.values())
    of_best = cells(found, BEST_BATCH)[8].expected_s
    assert of_best < 1.01 * min(cells(found, scaling)[8].expected_s for scaling in ("strong", "weak"))


def test_failures_cost_time_and_are_not_chosen():
    """The trial of the linear rule on 4 devices has failed; so it is refused with more, and with less warmup."""
    names, failed = ("strong", "weak", "linear", "linear-warmup"), (128, 0.004, True)
    before, after = (forecast(measured(0.3, failed_trials=trials), *names) for trials in ((), (failed,)))
    assert chosen(before).scaling.startswith("linear")
    assert {(cell.scaling, cell.devices) for cell in after.cells if cell.failed_trial} == {
        (name, n) for name in names[2:] for n in DEVICES if n >= 4
    }
    tempting = forecast(measured(0.3, failed_trials=(failed,)), "strong", "linear", devices=(8,))
    assert tempting.cells[1].expected_s < tempting.cells[0].expected_s == chosen(tempting).expected_s
    linear = cells(after, "linear")
    assert linear[2].probability_of_failure < 0.3 < 0.5 < linear[4].probability_of_failure
    assert linear[8].expected_s > linear[8].seconds + 0.5 * cells(after, "strong")[8].seconds
    too_few_epochs = forecast(measured(max_epochs=1), "strong")
    assert too_few_epochs.cells[0].probability_of_failure > 0.9


def test_intervals_are_of_runs_that_reach_the_target_and_late_ones_cost_all_epochs():
    # 5.1 epochs of 64 steps at the median, so of 6 whole ones; 5 are too few for about half of the runs.
    late, cluster = measured(max_epochs=5, passes=StepTimes((50,), (1.0,))), replace(IDEAL, alpha_intra_s=0.01)
    few = forecast(late, "strong", devices=(2,), cluster=cluster).cells[0]
    many = forecast(measured(), "strong").cells[0]
    assert few.steps_high == 5 * 64 < many.steps_high
    assert 0.3 < few.probability_of_failure < 0.7
    # A late run takes 5 epochs more than the run that follows it: 64 steps of 16 ms and 20 ms of all-reduce, and 1 s.
    assert few.expected_s == pytest.approx(few.seconds + few.probability_of_failure * 5 * 3.304, rel=0.05)


def test_failures_follow_the_short_run():
    safe, doubtful = (cells(forecast(measured(ratios=Ratios(WEAK, of)), "linear"), "linear") for of in (-0.9, 0.3))
    assert safe[16].probability_of_failure < 0.05 < 0.3 < doubtful[16].probability_of_failure


def test_the_fewest_devices_within_a_tenth_are_chosen():
    """Steps of nothing but overhead: more devices bring nothing to strong scaling."""
    found = forecast(measured(0.1, 1e-9), "strong")
    assert chosen(found).devices == 1

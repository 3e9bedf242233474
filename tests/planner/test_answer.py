"""The three lines of a plan's answer, from constructed predictions."""

from dataclasses import replace

import pytest

from gmmae.planner import answer, evidence, prediction
from gmmae.planner.step_ratios import Ratios
from tests.planner.test_page import found
from tests.planner.test_plan_tables import ALONE, STRONG, UNTESTED, WEAK, forecast_of
from tests.planner.test_prediction import IDEAL, measured


def lines(*cells, best=None):
    return answer.answer(forecast_of(*cells, best=best), found(), "float32")


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        ((ALONE,), "Only one device was planned for, so the batch has no devices to grow with."),
        ((ALONE, STRONG), "Growing the batch with the devices never pays."),
        ((STRONG, WEAK._replace(expected_s=241.0)), "Growing the batch with the devices never pays."),
        ((STRONG, UNTESTED), "Growing the batch with the devices never pays."),
        (
            (STRONG, WEAK),
            "Growing the batch with the devices pays from n = 4 on (weak scaling). On 4 devices weak scaling takes 42 % of the "
            "expected time of strong scaling.",
        ),
        (
            (STRONG, WEAK, STRONG._replace(devices=8), WEAK._replace(devices=8, expected_s=500.0)),
            "Growing the batch with the devices pays on 4 devices only (weak scaling). On 4 devices weak scaling takes 42 % of "
            "the expected time of strong scaling.",
        ),
        # Strong scaling has no sample for each of 8 devices.
        ((WEAK._replace(devices=8),), "Growing the batch with the devices pays from n = 8 on (weak scaling)."),
    ],
)
def test_the_second_line_says_whether_growing_the_batch_pays(cells, line):
    assert lines(*cells).growth == line


def test_a_batch_that_is_much_faster_on_one_device_is_named():
    smaller = ALONE._replace(scaling=prediction.BEST_BATCH, batch=5, expected_s=0.5 * ALONE.expected_s)
    assert lines(ALONE, smaller).growth.endswith(" On one device a batch of 5 takes 50 % of the base batch's expected time.")
    assert "a batch of 5" not in lines(ALONE, smaller._replace(expected_s=0.9 * ALONE.expected_s)).growth


def test_step_times_that_scatter_are_a_warning():
    calm, busy = (" ".join(evidence._busy(found()._replace(step_spread=spread))) for spread in (0.05, 0.3))
    assert (calm, "other work" in busy) == ("", True)


def failing(name, devices):
    return WEAK._replace(scaling=name, devices=devices, probability_of_failure=0.6)


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        ((ALONE,), ""),
        ((ALONE, STRONG), "No tested strategy is likely to fail. "),
        ((failing("linear", 2), failing("linear", 4)), "The linear rule will most likely fail from n = 2 on. "),
        (
            (failing("sqrt", 4), failing("linear", 2), failing("weak", 4)),
            "The linear rule will most likely fail from n = 2 on, the square-root rule and weak scaling from n = 4 on. ",
        ),
        ((STRONG, UNTESTED), "No tested strategy is likely to fail. The linear rule is untested from n = 4 on. "),
    ],
)
def test_the_third_line_says_what_fails_and_what_is_untested(cells, line):
    assert lines(*cells).doubts.partition("The choice takes ")[0] == line


def test_the_third_line_says_how_sure_the_steps_are():
    run = lines(ALONE._replace(steps=325.0, steps_low=300.0, steps_high=350.0, learning_rate=0.00105)).doubts
    assert run.startswith(
        "The choice takes 325 steps (300 to 350, 80 %), by a run at its batch and learning rate and the scatter"
    )
    predicted = lines(WEAK).doubts
    assert predicted.endswith("predicted from a run at batch 32 and 2 short runs beside it.")
    alone = found(measured=measured(ratios=Ratios(None, None)))
    doubtful = answer.answer(forecast_of(WEAK), alone, "float32").doubts
    assert doubtful.endswith("predicted from a run at batch 32 alone, so they are uncertain.")


SCALED = "Mine, times scaled by 0.5 from steps measured on cpu in float32 (reference_step_s in the cluster's file)"


@pytest.mark.parametrize(
    ("device", "reference_step_s", "words"),
    [
        ("NVIDIA H200 SXM", 0.0, "devices as fast as the one that measured (cpu in float32), linked as in Mine"),
        ("NVIDIA H200 SXM", 0.096, SCALED),
        ("cpu", 0.0, "Mine, steps measured on cpu in float32"),
        ("cpu", 0.096, SCALED),
    ],
)
def test_times_are_those_of_a_named_device(device, reference_step_s, words):
    cluster = replace(IDEAL, name="Mine", device=device, reference_step_s=reference_step_s)
    forecast = prediction.forecast(measured(0.16), cluster, ("strong",), (1, 2))
    assert answer.times_of(forecast, answer.Source("cpu", "float32")) == words

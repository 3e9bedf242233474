"""How plans are judged: runs made for the test, clusters that are made up, and others' policies."""

import math

import pytest

from experiments import plan, policies, tables
from experiments.plan import Judged, recall
from experiments.policies import Situation, Truth, by_goodput, outcome
from gmmae.planner import prediction
from tests.planner.test_prediction import measured

CELL = prediction.Prediction("linear", 4, 128, 0.004, 100.0, 80.0, 120.0, 1.0, 0.8, 1.2, 0.0, True, 1.0, 1.0, 1.0)


def one(arrived: bool, chance: float) -> Judged:
    return Judged("nodules", Truth("linear", 4, 128, arrived, 110.0), CELL._replace(probability_of_failure=chance))


def test_recall_allows_a_tenth_of_the_arrivals_to_be_alarms():
    arrived = [one(True, chance) for chance in (0.9, *[0.2] * 9, *[0.1] * 10)]  # two of 20 may be above
    assert recall([*arrived, one(False, 0.8), one(False, 0.15)]) == 0.5
    assert math.isnan(recall(arrived))


def test_a_cell_is_compared_with_itself_under_another_seed():
    weak = [Truth("weak", n, 64 * n, arrived, 100.0 * seed) for n, arrived in ((2, True), (4, False)) for seed in (1, 2, 4)]
    cases = [plan.Case("nodules", measured(), None, 1.0, 1.0, [cell], []) for cell in weak]
    found = plan.scatter(cases)
    assert found.pairs == pytest.approx([math.log(2), math.log(4), math.log(2)])
    # Of one of three from the middle of the two others, in logarithms.
    assert found.medians == pytest.approx([1.5 * math.log(2), 0.0, 1.5 * math.log(2)])


def test_intervals_are_judged_by_runs_of_the_plan_s_own_batches_too():
    # The base run took 325 steps. The law gives some 600 to 1,100 at a quarter of the batch.
    runs = [Truth("strong", 1, 32, True, 325.0), Truth("best-batch", 1, 8, True, 1024.0), Truth("quarter", 1, 8, True, 9e4)]
    missed = Truth("strong", 1, 32, False, 1e5)
    case = plan.Case("nodules", measured(), None, 1.0, 1.0, [], [*runs, missed])
    assert (plan.held(case, at_base=True), plan.held(case, at_base=False)) == ([True], [True, False])


def situation(ratio: float, scale: float = 20.0) -> Situation:
    return Situation(measured(noise_scale=scale), scale, ratio, 8, ("strong", "weak"))


@pytest.mark.parametrize(("ratio", "better"), [(0.1, "strong"), (10.0, "weak")])
def test_goodput_is_the_rule_with_the_noise_scale_for_bn(ratio, better):
    """B / φ = 1.6."""
    assert by_goodput(situation(ratio), 20.0) == better
    assert policies.planned(situation(ratio)) == better
    assert by_goodput(situation(ratio), None) == "strong"  # no noise: a larger batch brings nothing


def test_a_choice_that_misses_is_paid_for():
    truths = {"strong": Truth("strong", 8, 32, True, 100.0), "weak": Truth("weak", 8, 256, False, 50.0)}
    now = situation(1.0)  # a step: 32 + 4, or 32 + 32
    assert outcome(now, "strong", truths) == (1.0, True)
    assert outcome(now, "weak", truths) == (pytest.approx((50 * 64 + 100 * 36) / (100 * 36)), False)


def test_the_committed_reference_points_follow_the_law():
    rows = {name: value for name, value in plan.mlperf()}
    assert int(rows["benchmarks"]) == 19
    assert float(rows["rms log error of the fit, median"]) < 0.05


def test_a_plan_is_restored_from_its_json():
    m = measured()
    found = {
        "noise_scale": m.noise_scale,
        "measured": {
            **{name: getattr(m, name) for name in ("samples", "validation", "max_epochs", "gradient_bytes")},
            "ratios": m.ratios._asdict(),
            **{
                name: {str(key): value for key, value in getattr(m, name).items()}
                for name in ("steps", "progress", "active_unit_fractions")
            },
            **{name: getattr(m.optim, name) for name in ("batch_size", "learning_rate", "scaling_warmup_epochs")},
            "step_s": {str(batch): s for batch, s in zip(*m.train, strict=True)},
            "validation_s": {str(batch): s for batch, s in zip(*m.passes, strict=True)},
        },
    }
    assert plan.restore(found) == m


@pytest.mark.slow
def test_the_summary_is_that_of_the_committed_cells():
    head, *rows = plan.summary(plan.read())
    assert [tuple(row[key] for key in head) for row in tables.read(plan.PLACE / "summary.csv")] == rows

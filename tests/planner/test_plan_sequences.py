"""A plan's answer does not depend on the calls that its work directory has seen."""

import contextlib
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gmmae.planner import page, plan_content, prediction
from gmmae.planner.measure import PlanRequest, measure
from gmmae.planner.measurements import PlanInterruptedError, claimed
from gmmae.scaling.cost import Cluster
from gmmae.system.errors import InputError
from gmmae.system.null_object import IDLE
from tests.planner.laboratory import Laboratory
from tests.small import small

FAST = Cluster("Fast", "cpu", 8, 1e-6, 1e11, 1e-5, 1e10)
SLOW = Cluster("Slow", "an old GPU K80", 2, 1e-3, 1e8, 1e-3, 1e7, reference_step_s=0.5, reference_batch=24)
CALLS = st.fixed_dictionaries(
    {
        "devices": st.lists(st.sampled_from((1, 2, 3, 4, 8, 16, 200)), min_size=1, max_size=4, unique=True),
        "target": st.sampled_from((0.6, 0.3, 0.2, 0.1, 1e-4)),
        "max_epochs": st.sampled_from((10, 60)),
        "patience": st.sampled_from((0, 3)),
        "clusters": st.sampled_from(((FAST,), (SLOW,), (FAST, SLOW), (SLOW, FAST))),
        "breaks_at": st.sampled_from((0, 0, 1, 2, 3, 5, 9, 17)),
    }
)


def answer(folder, call, laboratory):
    """What a call tells: its numbers, or the line of its error."""
    stop = {"stop__target": call["target"], "stop__max_epochs": call["max_epochs"], "stop__patience_epochs": call["patience"]}
    with laboratory:
        try:
            return numbers(folder, call, stop)
        except InputError as error:
            return str(error).replace(str(folder), "FOLDER")


def numbers(folder, call, stop):
    """What the page and `plan.json` rest on, without the seconds that measuring took."""
    with claimed(folder) as place:
        references = {cluster.reference_batch for cluster in call["clusters"] if cluster.reference_step_s}
        request = PlanRequest(call["devices"], references)
        found = measure(small(**stop), place, lambda: IDLE, request)
    names = page.planned_strategies()
    forecasts = [prediction.forecast(found.measured, cluster, names, call["devices"]) for cluster in call["clusters"]]
    plan = plan_content.Plan("mine", found, prediction.batch_rule(found.measured), forecasts, "float32")
    content = json.loads(json.dumps(plan_content.plan_content(plan)))
    del content["measured"]["seconds"]
    return content


@pytest.fixture(scope="module", autouse=True)
def _no_versions():
    """They take most of the time, and are the same in all plans."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_content, "versions", dict)
        patch.setattr(plan_content, "git_commit", str)
        yield


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(calls=st.lists(CALLS, min_size=1, max_size=4), last=CALLS)
def test_the_last_answer_is_that_of_a_fresh_plan(calls, last):
    last = last | {"breaks_at": 0}
    with tempfile.TemporaryDirectory() as place:
        used, fresh = Path(place) / "used", Path(place) / "fresh"
        for call in calls:
            with contextlib.suppress(PlanInterruptedError, KeyboardInterrupt):
                answer(used, call, Laboratory(call["breaks_at"]))
        assert answer(used, last, Laboratory()) == answer(fresh, last, Laboratory())

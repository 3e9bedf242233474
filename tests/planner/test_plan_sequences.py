"""A plan's answer does not depend on the calls that its work directory has seen."""

import contextlib
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gmmae.planner.measure import measure
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
    """What a call tells, without the seconds that measuring took: its numbers, or the line of its error."""
    stop = {"stop__target": call["target"], "stop__max_epochs": call["max_epochs"], "stop__patience_epochs": call["patience"]}
    try:
        with laboratory, claimed(folder):
            found = measure("mine", small(**stop), folder, lambda: IDLE, call["devices"], call["clusters"])
            return found._replace(evidence=found.evidence["epochs"], facts=found.facts[:-1])
    except InputError as error:
        return str(error).replace(str(folder), "FOLDER")


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

import json
import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmmae.training.records import Epoch, from_json, read_history, to_json
from gmmae.training.run_logger import write_history
from tests.sweep.test_runs import RECORD

ENDED = replace(RECORD, final_train_loss=0.1 + 0.2, best_val_loss=1e-3 / 3, clocks={"train_s": 1 / 3, "total_s": 200.0})


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


@pytest.mark.parametrize("record", [replace(RECORD, stop_reason=None, time_to_target_s=None), ENDED])
def test_a_record_survives_json(record):
    assert from_json(to_json(record)) == record
    assert json.loads(to_json(record))["time_to_target_s"] == record.time_to_target_s


@pytest.mark.parametrize(("value", "text"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_nan_and_infinity_are_results_and_strict_json(value, text):
    record = replace(ENDED, final_train_loss=value, final_val_loss=value, stop_reason="diverged")
    plain = json.loads(to_json(record), parse_constant=refuse)
    assert (plain["final_train_loss"], plain["final_val_loss"]) == (text, text)
    back = from_json(to_json(record))
    assert repr(back.final_val_loss) == repr(value)
    assert back.best_val_loss == record.best_val_loss
    assert repr(asdict(back)) == repr(asdict(record))


def test_keys_of_a_newer_schema_are_ignored():
    newer = json.loads(to_json(ENDED)) | {"schema_version": 2, "colour": "green"}
    assert from_json(json.dumps(newer)) == replace(ENDED, schema_version=2)


ROW = st.builds(
    Epoch,
    *[st.integers(0, 2**53)] * 3,
    st.floats(),
    st.none() | st.floats(),
    *[st.floats()] * 6,
    batch=st.integers(0, 2**53),
    metrics=st.fixed_dictionaries({"dice": st.floats()}),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(ROW, max_size=4))
def test_the_history_survives_to_the_last_digit(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("history") / "history.csv"
    write_history(path, rows, ["dice"])
    assert list(map(repr, read_history(path))) == list(map(repr, rows))

import json
import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmmae.training.records import Epoch, from_plain, read_history, to_json
from gmmae.training.run_logger import write_history
from tests.sweep.test_runs import RECORD

ENDED = replace(RECORD, best_val_loss=1e-3 / 3, clocks={"train_s": 1 / 3, "total_s": 200.0})


@pytest.mark.parametrize(
    "loss", [None, 0.1 + 0.2, *(pytest.param(value, id=repr(value)) for value in (math.nan, math.inf, -math.inf))]
)
def test_a_record_survives_strict_json_and_nan_and_infinity_are_results(loss):
    record = replace(ENDED, final_train_loss=loss, final_val_loss=loss, time_to_target_s=None)
    plain = json.loads(to_json(record), parse_constant=pytest.fail)
    assert plain["final_val_loss"] == (loss if loss is None or math.isfinite(loss) else repr(loss))
    assert plain["time_to_target_s"] is None
    assert repr(asdict(from_plain(json.loads(to_json(record))))) == repr(asdict(record))


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
    path.write_bytes(path.read_bytes() + b"7,1")  # a row that is being written
    assert repr(read_history(path)) == repr(rows)

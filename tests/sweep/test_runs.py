import dataclasses
import json
import math
from pathlib import Path

import pytest

from gmmae.config.schema import OptimConfig
from gmmae.sweep.grid import RunKey
from gmmae.sweep.runs import RunRecord, SweepDir, on_devices
from gmmae.system.errors import InputError
from gmmae.training.records import Record

CELL = RunKey("weak", 2, 0)
OPTIM = OptimConfig(batch_size=32)
RECORD = Record(
    run_id="0123456789ab", scaling="strong", seed=0, devices=1, processes=1, device_kind="cpu", oversubscribed=False,
    global_batch=32, device_batch=32, padding=0, steps_per_epoch=20, learning_rate=0.001, parameters=1234,
    train_samples=640, validation_samples=128, target=0.001, virtual=True, stop_reason="target_reached", epochs=3,
    final_train_loss=0.002, final_val_loss=0.0009, best_val_loss=0.0009, best_epoch=3, time_to_target_s=4.5,
    clocks={"train_s": 4.0, "eval_s": 0.5}, versions={"jax": "0"}, batch_size=32, wanted_batch=32,
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "records").mkdir()
    return SweepDir(tmp_path)


def cell_record(record: Record | None = RECORD, outcome="target_reached", message="") -> RunRecord:
    return RunRecord(*CELL, mode="virtual", outcome=outcome, path="strong-n1-seed0", record=record, message=message)


@pytest.mark.parametrize(
    "record",
    [cell_record(), cell_record(None, "crashed", 'exit code 1: "what"\n[it] was')],
    ids=["with a run", "without"],
)
def test_a_record_is_read_as_it_was_written(folder, record):
    folder.write(record)
    assert folder.read(CELL) == record
    assert record.key == CELL
    assert folder.record(CELL).read_text().endswith("}\n")
    assert [path.name for path in folder.records.iterdir()] == ["weak-n2-seed0.json"]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_losses_that_are_not_finite_are_kept_in_strict_json(folder, loss):
    diverged = dataclasses.replace(RECORD, stop_reason="diverged", final_train_loss=loss, final_val_loss=loss)
    folder.write(cell_record(diverged, "diverged"))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(folder.record(CELL).read_text(), parse_constant=refuse)["record"]["final_val_loss"] == str(loss)
    read = folder.read(CELL)
    assert read is not None
    assert read.record is not None
    for found in (read.record.final_train_loss, read.record.final_val_loss):
        assert repr(found) == repr(loss)
    assert read.record.best_val_loss == 0.0009


def test_a_missing_record_is_none_and_only_those_that_are_there_are_listed(folder):
    assert folder.read(CELL) is None
    folder.write(cell_record())
    assert list(folder.read_all([RunKey("weak", 1, 0), CELL, RunKey("weak", 4, 0)])) == [cell_record()]


WRITTEN = dataclasses.asdict(cell_record())
BROKEN = {
    "empty": "",
    "cut": '{"scaling": "weak"',
    "a list": "[]",
    "another's": '{"record": null}',
    "no run in it": '{"scaling": "weak"}',
    "of another run": json.dumps({**WRITTEN, "scaling": "strong"}),
    "an unknown outcome": json.dumps({**WRITTEN, "outcome": "bored"}),
    "an outcome without its run": json.dumps({**WRITTEN, "record": None}),
    "numbers as text": json.dumps({**WRITTEN, "record": {**WRITTEN["record"], "epochs": "ten"}}),
    "no clocks": json.dumps({**WRITTEN, "record": {**WRITTEN["record"], "clocks": None}}),
    "NaN seconds": json.dumps({**WRITTEN, "record": {**WRITTEN["record"], "clocks": {"train_s": math.nan}}}),
    "a path that is a number": json.dumps({**WRITTEN, "path": 3}),
    "a wrong run": json.dumps({**dataclasses.asdict(cell_record(None)), "record": {"scaling": "weak"}}),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_record_is_named_with_the_way_out(folder, text):
    path = folder.record(CELL)
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        folder.read(CELL)
    message = str(caught.value)
    assert message.startswith(f"{path} must be a run's record; got ")
    assert message.endswith(": delete it, and the sweep writes it again")
    assert "\n" not in message


def test_a_folder_in_the_place_of_a_record_is_no_missing_one(folder):
    folder.record(CELL).mkdir()
    with pytest.raises(InputError, match="must be a run's record; got Is a directory: delete it"):
        folder.read(CELL)


# 32 = 5 × 7 - 3 = 3 × 11 - 1 = 8 × 4
@pytest.mark.parametrize(("devices", "device_batch", "padding"), [(5, 7, 3), (3, 11, 1), (8, 4, 0), (32, 1, 0)])
def test_a_shared_path_is_divided_by_the_runs_devices(devices, device_batch, padding):
    key = RunKey("strong", devices, 0)
    shown = on_devices(RECORD, key, OPTIM)
    assert shown == dataclasses.replace(RECORD, devices=devices, device_batch=device_batch, padding=padding)


def test_the_owner_of_a_path_keeps_its_record_and_another_arm_its_name():
    assert on_devices(RECORD, RunKey("strong", 1, 0), OPTIM) == RECORD
    assert on_devices(RECORD, RunKey("linear", 1, 0), OPTIM) == dataclasses.replace(RECORD, scaling="linear")


def test_the_batch_that_a_run_asked_for_is_its_own():
    """Runs that share a path because they are capped to 400 samples."""
    record = dataclasses.replace(
        RECORD, scaling="linear", devices=16, global_batch=400, device_batch=25, wanted_batch=512, train_samples=400
    )
    shown = on_devices(record, RunKey("linear", 32, 0), OPTIM)
    assert (shown.wanted_batch, shown.global_batch, shown.device_batch, shown.clipped) == (1024, 400, 13, True)
    assert not RECORD.clipped


def test_a_batch_that_does_not_reach_all_devices_is_refused():
    with pytest.raises(InputError, match="at most the samples in a step, 32; got 33"):
        on_devices(RECORD, RunKey("strong", 33, 0), OPTIM)


def test_files_by_name():
    folder = SweepDir(Path("s"))
    assert str(folder.step_times(4)) == "s/step_times/step-times-n4.json"
    assert str(folder.record(CELL)) == "s/records/weak-n2-seed0.json"
    assert str(folder.run("weak-n2-seed0").record) == "s/runs/weak-n2-seed0/record.json"
    assert str(folder.log("weak-n2-seed0")) == "s/runs/weak-n2-seed0/log.txt"

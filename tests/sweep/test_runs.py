import dataclasses

import pytest

from gmmae.config.schema import OptimConfig
from gmmae.sweep.grid import RunKey, SweepConfig
from gmmae.sweep.runs import Failure, RunRecord, SweepDir, on_devices
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


def cell_record(record: Record | None = RECORD, outcome="target_reached", message="") -> RunRecord:
    return RunRecord(CELL, outcome, "strong-n1-seed0", record, message)


@pytest.mark.parametrize("text", ["", "[]", '{"outcome": "crashed"}', '{"outcome": 3, "message": ""}'])
def test_a_broken_failure_is_named_with_the_way_out(tmp_path, text):
    config, folder = SweepConfig(scaling=("weak",), devices=(2,)), SweepDir(tmp_path)
    folder.write(folder.failure("weak-n2-seed0"), Failure("crashed", 'exit code 1: "what"\n[it] was'))
    [found] = folder.read_all(config)
    assert (found.key, found.outcome, found.message) == (CELL, "crashed", 'exit code 1: "what"\n[it] was')
    folder.failure("weak-n2-seed0").write_text(text)
    with pytest.raises(InputError) as caught:
        folder.read_all(config)
    message = str(caught.value)
    assert message.startswith(f"{folder.failure('weak-n2-seed0')} must say how a run failed; got ")
    assert message.endswith(": delete it, and the sweep goes on")
    assert "\n" not in message


# 32 = 5 × 7 - 3 = 3 × 11 - 1 = 8 × 4
@pytest.mark.parametrize(("devices", "device_batch", "padding"), [(5, 7, 3), (3, 11, 1), (8, 4, 0), (32, 1, 0), (1, 32, 0)])
def test_a_shared_path_is_divided_by_the_runs_devices(devices, device_batch, padding):
    key = RunKey("strong", devices, 0)
    shown = on_devices(RECORD, key, OPTIM)
    assert shown == dataclasses.replace(RECORD, devices=devices, device_batch=device_batch, padding=padding)


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

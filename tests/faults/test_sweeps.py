"""What judges the faults of a sweep, on made-up sweeps: the real ones take `python -m tests.faults`."""

import dataclasses
import json
import os
from random import Random

import pytest

from gmmae.training.records import Epoch, write_history
from tests.faults import greedy_workload, sweeps
from tests.faults.sweeps import EPOCHS, STRUCK_AFTER, SWEEP_FAULTS, Sweep
from tests.faults.trials import Trial

ROW = Epoch(1, 15, 450, 0.1, 0.5, 0.25, 1.0, 2.0, 3.0, 4.0, 5.0)


@pytest.fixture
def sweep(tmp_path):
    """A sweep with one finished run."""
    made = Sweep(tmp_path / "sweep", tmp_path / "compiled", Random(0))
    write(made)
    return made


def write(sweep, row=ROW, outcome="max_epochs", **record):
    run = sweep.workdir / "runs" / "weak-n2-seed0"
    run.mkdir(parents=True, exist_ok=True)
    write_history(run / "history.csv", [row])
    inner = {"epochs": 1, "clocks": {"train_s": 2.0}, "time_to_target_s": 3.0} | record
    (sweep.workdir / "records").mkdir(exist_ok=True)
    text = json.dumps({"outcome": outcome, "record": inner})
    (sweep.workdir / "records" / "weak-n2-seed0.json").write_text(text, encoding="utf-8")


def complaints(sweep, wanted):
    trial = Trial("any", "any")
    sweeps._compare(sweep, wanted, trial)
    return trial.complaints


def test_results_are_compared_without_seconds(sweep):
    wanted = sweep.results()
    write(sweep, ROW._replace(train_s=9.0, total_s=9.0), clocks={"train_s": 7.0}, time_to_target_s=None)
    assert complaints(sweep, wanted) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"row": ROW._replace(val_loss=0.25000001)}, "other bits in weak-n2-seed0/history"),
        ({"outcome": "crashed"}, "other bits in weak-n2-seed0.json"),
        ({"epochs": 2}, "other bits in weak-n2-seed0.json"),
    ],
)
def test_any_other_difference_is_a_complaint(sweep, change, complaint):
    wanted = sweep.results()
    write(sweep, **change)
    assert complaints(sweep, wanted) == [complaint]


def test_a_missing_record_is_a_complaint(sweep):
    wanted = sweep.results()
    (sweep.workdir / "records" / "weak-n2-seed0.json").unlink()
    assert complaints(sweep, wanted) == ["records or histories are missing or new: weak-n2-seed0.json"]


@pytest.mark.parametrize(
    ("number", "line", "log", "fitting"),
    [
        (0, "weak-n2-seed0 is tried again in a new process: killed by SIGKILL: x", "", True),
        (0, "weak-n4-seed0 is tried again in a new process: killed by SIGKILL: x", "", False),
        (0, "weak-n2-seed0 is tried again in a new process: exit code 1: x", "", False),
        (1, "weak-n2-seed0 is tried again in a new process: exit code 1: x", "Unable to allocate 1.00 EiB", True),
        (1, "weak-n2-seed0 is tried again in a new process: exit code 1: x", "something else", False),
        (2, "error: writing x failed (No space left on device): run the same command again", "", True),
        (2, "error: x must have space; a write failed: give the same command again", "", True),
        (2, "OSError: [Errno 28] No space left on device", "", False),
    ],
)
def test_a_sweep_has_to_say_what_happened(sweep, number, line, log, fitting):
    sweep.outputs = [sweep.folder / "output_0.txt"]
    sweep.outputs[0].write_text(f"before\n{line}\nbehind\n", encoding="utf-8")
    (sweep.workdir / "runs" / "weak-n2-seed0" / "log.txt").write_text(log, encoding="utf-8")
    trial = Trial("any", "any")
    sweeps._judge_words(sweep, SWEEP_FAULTS[number], "weak-n2-seed0", trial)
    assert (trial.complaints == []) is fitting


def test_a_strike_is_within_a_run_and_behind_a_checkpoint():
    assert STRUCK_AFTER.start > sweeps.EVERY
    assert STRUCK_AFTER.stop < EPOCHS - sweeps.EVERY


def test_the_processes_of_a_sweep_are_found_by_their_environment(sweep):
    sweep.start("--help")
    sweep.wait_until(lambda: len(sweep.processes()) > 0)  # Linux tells a process' environment a moment after its start
    assert sweep.finish() == 0
    assert sweep.processes() == []


def test_a_told_process_asks_for_too_much_memory_and_no_other_one_does(tmp_path, monkeypatch):
    monkeypatch.setenv(greedy_workload.MARK, str(tmp_path))
    losses = greedy_workload.np.ones(2, "float32")
    assert greedy_workload.take_memory_if_told(losses).tolist() == [1, 1]
    (tmp_path / greedy_workload.TELL).touch()
    for _ in range(2):  # one for each device
        with pytest.raises(MemoryError):
            greedy_workload.take_memory_if_told(losses)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert greedy_workload.take_memory_if_told(losses).tolist() == [1, 1]


def test_faults_without_the_right_to_mount_are_skipped(sweep, monkeypatch):
    monkeypatch.setattr(sweeps, "no_disk", lambda _: "no right to mount")
    [trial] = sweeps._in_a_row(sweep, [fault for fault in SWEEP_FAULTS if fault.disk], {})
    assert dataclasses.asdict(trial)["skipped"] == "no right to mount"

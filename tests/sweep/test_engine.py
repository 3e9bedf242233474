"""The engine with a small program in the place of a run: ends, processes, step times, GPUs."""

import dataclasses
import os
from pathlib import Path

import pytest

from gmmae.multihost import environment
from gmmae.sweep import engine, step_times, throughput
from gmmae.sweep import jobs as sweep_jobs
from gmmae.sweep.engine import RUNS_FAILED, summary
from gmmae.sweep.grid import RunKey, SweepConfig, TimingConfig
from gmmae.sweep.runs import CRASHED, TIMED_OUT, SweepDir
from gmmae.system import stop_reasons
from tests.sweep.fake_runs import NAMES, PATHS, ROOT, Fake, Watch, grid
from tests.sweep.test_runs import RECORD, cell_record

# Ends


def test_every_path_is_computed_once_and_every_run_has_a_record(undisturbed):
    fake, code, watch = undisturbed
    assert code == 0
    assert (watch.jobs, sorted(watch.begun)) == (5, sorted(PATHS))
    assert sorted(fake.events("start")) == sorted(fake.events("end")) == sorted([*PATHS, "step-times-n1"])
    records = fake.records()
    assert sorted(records) == sorted(NAMES)
    for name, record in records.items():
        assert (record.outcome, record.message, record.mode) == ("max_epochs", "", "virtual")
        assert record.path == ("weak-n1-seed0" if "-n1-" in name else name)
        assert record.record is not None
        assert (record.record.scaling, record.record.devices) == (record.scaling, record.devices)
        assert record.record.epochs == 4
    assert watch.lines[-1] == "6 runs: 6 max_epochs"
    assert watch.states == {
        name: f"max_epochs at {fake.records()[name].record.final_val_loss:.4g}"  # pyright: ignore[reportOptionalMemberAccess]
        for name in NAMES
    }


def test_a_finished_sweep_starts_nothing(undisturbed):
    fake, _, first = undisturbed
    before = fake.events("start")
    code, watch = fake.sweep(grid())
    assert (code, watch.jobs, watch.begun) == (0, 0, [])
    assert fake.events("start") == before
    assert watch.states == first.states


def test_virtual_runs_are_followed_by_the_step_times_that_the_projection_needs(undisturbed):
    """Weak and linear: 32 on every device; validation volumes a device: 128, 64, 32."""
    fake, _, _ = undisturbed
    found = throughput.read(SweepDir(fake.root).step_times(1))
    assert found is not None
    assert [row.samples for row in found.train] == [32]
    assert [row.samples for row in found.validation] == [32, 64, 128]
    assert not SweepDir(fake.root).step_times(2).exists()


WISHES = {
    "weak-n1-seed0": "crash",  # with it linear-n1
    "weak-n2-seed0": "segfault",
    "linear-n2-seed0": "hang",
    "weak-n4-seed0": "diverge",
    "linear-n4-seed0": "bad",
    "weak-n1-seed1": "lie",
    "weak-n2-seed1": "garbage",
}
LIMIT_S = 5.0  # ample for all but the one that hangs


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    """A sweep with all kinds of failures; then the same call, then one with retry and all causes fixed."""
    fake = Fake(tmp_path_factory.mktemp("failing"))
    fake.wish(WISHES)
    config = grid(seeds=(0, 1), cell_time_limit_s=LIMIT_S)
    calls = []
    for options in ({}, {}, {"retry": True}):
        fake.forget()
        code, watch = fake.sweep(config, **options)
        calls.append((code, watch, fake.events("start"), fake.records()))
        if len(calls) == 2:
            fake.wish({})
    return fake, calls


ENDS = {
    "weak-n1-seed0": (CRASHED, "exit code 1: what it was"),
    "linear-n1-seed0": (CRASHED, "exit code 1: what it was"),
    "weak-n2-seed0": (CRASHED, "killed by SIGSEGV: no output"),
    "linear-n2-seed0": (TIMED_OUT, "killed after its time limit of 5 s: no output"),
    "linear-n4-seed0": (CRASHED, "exit code 2: error: optim.batch_size must be smaller; got 9"),
    "weak-n1-seed1": (CRASHED, "exit code 0: no output"),
    "linear-n1-seed1": (CRASHED, "exit code 0: no output"),
}


@pytest.mark.parametrize(("name", "end"), ENDS.items(), ids=ENDS.keys())
def test_a_failed_process_is_an_outcome_with_its_last_words_and_where_to_read_more(failing, name, end):
    fake, [(code, watch, _, records), *_] = failing
    outcome, message = end
    path = name.replace("linear-n1", "weak-n1")
    assert (records[name].outcome, records[name].path) == (outcome, path)
    assert records[name].message == f"{message} ({SweepDir(fake.root).log(path)})"
    assert watch.states[name] == outcome
    assert f"  {name} {outcome}: {records[name].message}" in watch.lines[-2].splitlines()
    assert code == RUNS_FAILED


def test_a_record_that_cannot_be_read_is_a_crash_of_its_run(failing):
    _, [(_, _, _, records), *_] = failing
    assert records["weak-n2-seed1"].outcome == CRASHED
    assert "must be a record of this program" in records["weak-n2-seed1"].message


def test_what_a_failed_process_left_is_kept(failing):
    _, [(_, _, _, records), *_] = failing
    assert records["weak-n1-seed0"].record is None
    hung = records["linear-n2-seed0"].record
    assert (hung.stop_reason, hung.epochs) == (stop_reasons.SIGTERM, 2)


def test_divergence_is_a_result_and_the_others_are_as_if_nothing_had_failed(failing, undisturbed):
    _, [(_, watch, _, records), *_] = failing
    diverged = records["weak-n4-seed0"]
    assert (diverged.outcome, diverged.message, diverged.record.epochs) == ("diverged", "", 3)
    assert diverged.record.final_val_loss != diverged.record.final_val_loss
    for name in ("linear-n2-seed1", "weak-n4-seed1", "linear-n4-seed1"):
        assert records[name].outcome == "max_epochs"
        same_path = undisturbed[0].records()[name.replace("seed1", "seed0")]
        assert records[name].record.final_val_loss == same_path.record.final_val_loss
    assert watch.lines[-2].splitlines()[0] == "12 runs: 7 crashed, 3 max_epochs, 1 timed_out, 1 diverged"
    assert watch.lines[-1] == "--retry computes crashed and timed-out runs again"


def test_failed_runs_are_left_alone_without_retry(failing):
    _, [(_, first, _, before), (code, watch, starts, records), _] = failing
    assert (code, starts, watch.jobs) == (RUNS_FAILED, [], 0)
    assert list(records) == list(before)
    assert watch.states == first.states


def test_retry_computes_exactly_the_failed_ones_from_where_they_were(failing):
    fake, [(_, _, _, before), _, (code, watch, starts, records)] = failing
    failed = {record.path for record in before.values() if record.outcome in (CRASHED, TIMED_OUT)}
    assert sorted(name for name in starts if name != "step-times-n1") == sorted(failed)
    assert code == 0
    assert watch.lines[-1] == "12 runs: 11 max_epochs, 1 diverged"
    assert all(record.record.epochs == 4 for record in records.values() if record.outcome == "max_epochs")
    assert fake.orphans() == []


def test_an_arm_has_no_run_on_more_devices_than_its_batch_has_samples(fake):
    code, watch = fake.sweep(grid(scaling=("strong", "weak"), devices=(1, 40)))
    assert code == 0
    assert sorted(fake.records()) == ["strong-n1-seed0", "weak-n1-seed0", "weak-n40-seed0"]
    assert "strong on 40 devices: left out, a step of it has 32 samples" in watch.lines


def test_a_program_that_cannot_be_started_is_a_crash(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_jobs, "PROGRAM", (str(tmp_path / "nowhere"),))
    assert engine.sweep(grid(devices=(1,)), tmp_path / "sweep", Watch(), samples=640) == RUNS_FAILED
    record = SweepDir(tmp_path / "sweep").read(RunKey("weak", 1, 0))
    assert record is not None
    assert record.message.startswith("could not be started: ")


def test_a_summary_counts_outcomes_and_names_the_failed():
    found = [cell_record(), cell_record(RECORD, "diverged"), cell_record(None, "crashed", "exit code 1: why")]
    assert summary(found, 5).splitlines() == [
        "5 runs: 1 target_reached, 1 diverged, 1 crashed, 2 not computed",
        "  weak-n2-seed0 crashed: exit code 1: why",
    ]
    assert summary([], 2) == "2 runs: 2 not computed"


# One after the other, or side by side


def overlapping(fake: Fake) -> int:
    """The most runs that ran at the same time."""
    most = running = 0
    for line in fake.script.with_name("events.txt").read_text().splitlines():
        running += {"start": 1, "end": -1}[line.split()[0]]
        most = max(most, running)
    return most


@pytest.mark.parametrize("jobs", [1, 2])
def test_as_many_runs_run_at_once_as_asked(fake, jobs):
    fake.wish(dict.fromkeys(PATHS, "slow"))
    assert fake.sweep(grid(jobs=jobs, scaling=("weak",), devices=(2, 4)))[0] == 0
    assert overlapping(fake) == jobs


def test_measured_runs_run_each_on_its_own_devices_and_need_no_further_step_times(fake, monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")
    code, _ = fake.sweep(grid(mode="measured", jobs=1, devices=(1, 2)))
    assert code == 0
    assert sorted(fake.events("start")) == ["linear-n1-seed0", "linear-n2-seed0", "weak-n1-seed0", "weak-n2-seed0"]
    assert {record.mode for record in fake.records().values()} == {"measured"}
    assert not any(record.record.virtual for record in fake.records().values() if record.record)


@pytest.mark.parametrize(("mode", "jobs", "count"), [("measured", 1, "4"), ("virtual", 1, "3"), ("virtual", 2, "1")])
def test_a_process_sees_as_many_cpu_devices_as_it_computes_on(fake, monkeypatch, mode, jobs, count):
    """Virtual runs side by side share the cores; step times are still measured on one device."""
    monkeypatch.setattr(environment, "cores", lambda: 3)
    config = grid(mode=mode, jobs=jobs)
    timed = sweep_jobs.timing_job(config, SweepDir(fake.root), 1, {"batches": [8], "validation": []})
    assert timed.environment["JAX_NUM_CPU_DEVICES"] == "1"
    job = sweep_jobs.training_job(config, SweepDir(fake.root), RunKey("weak", 4, 0))
    assert job.environment["JAX_NUM_CPU_DEVICES"] == count
    assert str(ROOT) in job.environment["PYTHONPATH"].split(os.pathsep)


# Step times


def throughputs(**changes) -> SweepConfig:
    timing = TimingConfig(device_batches=(1, 8), global_batches=(2, 16))
    return grid(mode="throughput", jobs=1, devices=(4, 2), timing=timing, **changes)


def test_throughput_is_measured_once_on_each_number_of_devices(fake):
    """Weak: 1 and 8 a device. Strong: 16 in all, and 2 where that is one for each device."""
    assert fake.sweep(throughputs())[0] == 0
    assert fake.events("start") == ["step-times-n2", "step-times-n4"]
    folder = SweepDir(fake.root)
    rows = {n: [row.samples for row in found.train] for n in (2, 4) if (found := throughput.read(folder.step_times(n)))}
    assert rows == {2: [2, 16], 4: [4, 16, 32]}
    assert fake.sweep(throughputs())[0] == 0
    assert len(fake.events("start")) == 2


def test_throughput_on_more_devices_than_the_base_batch_has_samples(fake):
    """The run that is timed must be one that exists: strong scaling of 32 samples on 40 devices does not."""
    job = sweep_jobs.timing_job(grid(mode="throughput", jobs=1), SweepDir(fake.root), 40, {"batches": [40], "validation": []})
    saved = Path(job.command[-3]).read_text()
    assert 'scaling = "weak"' in saved
    assert "devices = 40" in saved
    assert job.environment["JAX_NUM_CPU_DEVICES"] == "40"


def test_failed_step_times_are_said_and_measured_again_by_the_next_call(fake):
    fake.wish({"step-times-n2": "crash"})
    code, watch = fake.sweep(throughputs())
    assert code == RUNS_FAILED
    log = SweepDir(fake.root).log("step-times-n2")
    assert watch.lines[-1] == f"step-times-n2 failed: what it was ({log})"
    fake.forget()
    fake.wish({})
    assert fake.sweep(throughputs())[0] == 0
    assert fake.events("start") == ["step-times-n2"]


def test_failed_step_times_of_a_virtual_sweep_leave_the_runs(fake):
    fake.wish({"step-times-n1": "segfault"})
    code, watch = fake.sweep(grid(devices=(1,)))
    assert code == RUNS_FAILED
    assert watch.lines[-1].startswith("step-times-n1 failed: no output")
    assert [record.outcome for record in fake.records().values()] == ["max_epochs"] * 2


SETTINGS = {"warmup_steps": 1, "steps": 2, "blocks": 3}


def test_a_batch_that_did_not_fit_is_not_tried_again_but_a_validation_of_that_size_is(tmp_path):
    """64 did not fit into training: that says nothing of a validation of 64."""
    path = tmp_path / "times.json"
    row = throughput.Timing(32, 32, 1.0, 1.0, 1.0)
    throughput.write(path, throughput.Timings(1, "cpu", False, 1, [row], [row], {"training of 64": "why"}, SETTINGS, {}, None))
    timing = TimingConfig(warmup_steps=1, steps=2, blocks=3)
    assert step_times._measured(path, {"batches": [32, 64], "validation": [32]}, timing)
    assert not step_times._measured(path, {"batches": [32, 128], "validation": []}, timing)
    assert not step_times._measured(path, {"batches": [], "validation": [64]}, timing)
    assert not step_times._measured(tmp_path / "none.json", {"batches": [], "validation": []}, timing)
    slower = dataclasses.replace(timing, blocks=9)
    assert not step_times._measured(path, {"batches": [32], "validation": []}, slower), "other settings, other times"


# GPUs


NVIDIA_SMI = """#!/bin/sh
echo "GPU-aaa"
echo "GPU-bbb"
"""


def test_runs_side_by_side_have_a_gpu_each(fake, tmp_path, monkeypatch):
    """Two of two GPUs at first; then each run has the one that the run before it on that GPU has left."""
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake.wish({"weak-n2-seed0": "meet", "weak-n4-seed0": "meet"})
    assert fake.sweep(grid(scaling=("weak",), devices=(2, 4)))[0] == 0
    assert sorted(path.read_text() for path in fake.root.glob("runs/weak-*/gpu")) == ["GPU-aaa", "GPU-bbb"]


def test_a_run_alone_sees_all_gpus(fake, tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert fake.sweep(grid(jobs=1, scaling=("weak",), devices=(2,)))[0] == 0
    assert [path.read_text() for path in fake.root.glob("runs/weak-*/gpu")] == ["all"]

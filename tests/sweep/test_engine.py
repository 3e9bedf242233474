"""The engine with a small program in the place of a run, called once and called again."""

import dataclasses
import errno
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from gmmae.config.schema import Config, StopConfig, changed
from gmmae.config.toml import to_toml
from gmmae.multihost import environment
from gmmae.sweep import engine, step_times
from gmmae.sweep import jobs as sweep_jobs
from gmmae.sweep.engine import RUNS_FAILED
from gmmae.sweep.grid import RunKey, SlurmConfig, SweepConfig, TimingConfig
from gmmae.sweep.runs import CRASHED, TIMED_OUT, SweepDir
from gmmae.system import stop_reasons
from gmmae.system.errors import InputError, StorageError
from gmmae.system.files import write_text
from gmmae.training.fingerprint import Fingerprint
from gmmae.training.records import to_json, write_history
from gmmae.workloads.registry import configuration
from tests.sweep.fake_runs import NAMES, PATHS, ROOT, Fake, Watch, grid, without_clocks
from tests.waiting import DEADLINE_S, wait_until

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
    found = step_times.read(SweepDir(fake.root).step_times(1))
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
    config = grid(seeds=(0, 1), run_time_limit_s=LIMIT_S)
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
    assert watch.states[name] == f"{outcome}: {records[name].message}"
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


# Processes that stay


def test_a_sweep_has_as_many_processes_as_places_and_one_for_the_step_times(undisturbed):
    fake, _, _ = undisturbed
    assert ["step-times-n1"] in fake.processes()
    assert len(fake.processes()) <= 3
    assert sorted(name for names in fake.processes() for name in names) == sorted([*PATHS, "step-times-n1"])


def test_a_run_that_is_killed_is_tried_again_from_its_checkpoint_and_said_so(fake, undisturbed):
    fake.wish({"weak-n2-seed0": "crash once"})
    code, watch = fake.sweep(grid(jobs=1))
    assert code == 0
    log = SweepDir(fake.root).log("weak-n2-seed0")
    assert f"weak-n2-seed0 is tried again in a new process: killed by SIGKILL: no output ({log})" in watch.lines
    assert without_clocks(fake.records()) == without_clocks(undisturbed[0].records())
    assert watch.begun.count("weak-n2-seed0") == 1
    assert [names.count("weak-n2-seed0") for names in fake.processes()] == [1, 1, 0]


def test_a_run_that_crashes_twice_is_named_and_left_out_and_costs_no_other_run(fake):
    fake.wish({"weak-n2-seed0": "segfault"})
    code, watch = fake.sweep(grid(jobs=1))
    assert code == RUNS_FAILED
    assert fake.events("start").count("weak-n2-seed0") == 2
    assert watch.lines[-2].startswith("6 runs: 5 max_epochs, 1 crashed\n  weak-n2-seed0 crashed: killed by SIGSEGV: no output")


def test_bad_input_is_not_tried_again(fake):
    fake.wish({"linear-n2-seed0": "bad"})
    assert fake.sweep(grid(jobs=1))[0] == RUNS_FAILED
    assert fake.events("start").count("linear-n2-seed0") == 1


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (
            "full disk",
            r"^workdir must stay a folder that can be written; .*: give the same again \(.*weak-n2-seed0.log\.txt\)$",
        ),
        ("full disk, also for the error", r"must have space for what weak-n2-seed0 writes; .* give the same command again$"),
    ],
)
def test_a_disk_that_is_full_in_a_run_interrupts_the_sweep(fake, undisturbed, wish, said):
    """It is no crash of the run, so the same command goes on."""
    fake.wish({"weak-n2-seed0": wish})
    with pytest.raises(StorageError, match=said):
        fake.sweep(grid(jobs=1))
    assert "weak-n2-seed0" not in fake.records()
    assert fake.events("start").count("weak-n2-seed0") == 1
    fake.wish({})
    assert fake.sweep(grid(jobs=1))[0] == 0
    assert without_clocks(fake.records()) == without_clocks(undisturbed[0].records())


def test_a_disk_that_is_full_between_two_runs_loses_nothing(fake, undisturbed, monkeypatch):
    """The first run has ended, and its record cannot be written."""

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "some file")

    with monkeypatch.context() as patch:
        patch.setattr(SweepDir, "write", fail)
        with pytest.raises(StorageError, match=r"must stay a folder .*; writing some file failed \(No space left on device\)"):
            fake.sweep(grid(jobs=1))
    assert fake.records() == {}
    assert fake.orphans() == []
    assert fake.sweep(grid(jobs=1))[0] == 0
    assert without_clocks(fake.records()) == without_clocks(undisturbed[0].records())


@pytest.mark.parametrize(("wish", "failed"), [("full memory after others", 0), ("full memory", 1)])
def test_a_run_for_which_memory_was_full_gets_a_process_of_its_own(fake, wish, failed):
    fake.wish({"linear-n2-seed0": wish})
    code, _ = fake.sweep(grid(jobs=1))
    assert code == (RUNS_FAILED if failed else 0)
    assert [record.outcome for record in fake.records().values()].count(CRASHED) == failed
    assert fake.events("start").count("linear-n2-seed0") == 2


@pytest.mark.parametrize(("limit", "processes"), [("auto", 2), (2.5, 3), (50.0, 2)])
def test_a_process_that_grows_is_replaced(fake, limit, processes):
    """Two GB with each run. One process more measures the step times."""
    fake.wish({"memory": "1.0" if limit == "auto" else "2.0"})
    assert fake.sweep(grid(jobs=1, devices=(1, 2), worker_memory_gb=limit))[0] == 0
    assert len(fake.processes()) == processes


@pytest.mark.parametrize(
    ("changes", "launcher", "stays"),
    [
        ({}, {}, True),
        ({"run": changed(configuration(), distributed__coordinator="127.0.0.1:2000")}, {}, False),
        ({}, {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, False),
        ({"executor": "slurm", "slurm": SlurmConfig(devices_per_node=1), "mode": "measured", "jobs": 1}, {}, False),
        ({"executor": "slurm", "slurm": SlurmConfig(devices_per_node=2), "mode": "measured", "jobs": 1}, {}, True),
    ],
)
def test_only_a_run_of_one_process_leaves_its_process_to_others(fake, monkeypatch, changes, launcher, stays):
    """Several processes join once in their lives. They crash together, so one is not tried again alone."""
    for name, value in ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"} | launcher).items():
        monkeypatch.setenv(name, value)
    job = sweep_jobs.training_job(grid(**changes), SweepDir(fake.root), RunKey("weak", 2, 0))
    assert (job.stays, job.attempts) == ((True, 2) if stays else (False, 1))
    timed = sweep_jobs.timing_job(grid(**changes), SweepDir(fake.root), 1, {"batches": [8], "validation": []})
    assert (timed.stays, timed.attempts) == (False, 1)


# Step times


def throughputs(**changes) -> SweepConfig:
    timing = TimingConfig(device_batches=(1, 8), global_batches=(2, 16))
    return grid(mode="throughput", jobs=1, devices=(4, 2), timing=timing, **changes)


def test_throughput_is_measured_once_on_each_number_of_devices(fake):
    """Weak: 1 and 8 a device. Strong: 16 in all, and 2 where that is one for each device."""
    assert fake.sweep(throughputs())[0] == 0
    assert fake.events("start") == ["step-times-n2", "step-times-n4"]
    folder = SweepDir(fake.root)
    rows = {n: [row.samples for row in found.train] for n in (2, 4) if (found := step_times.read(folder.step_times(n)))}
    assert rows == {2: [2, 16], 4: [4, 16, 32]}
    assert fake.sweep(throughputs())[0] == 0
    assert len(fake.events("start")) == 2


def test_throughput_on_more_devices_than_the_base_batch_has_samples(fake):
    """The run that is timed must be one that exists: strong scaling of 32 samples on 40 devices does not."""
    job = sweep_jobs.timing_job(grid(mode="throughput", jobs=1), SweepDir(fake.root), 40, {"batches": [40], "validation": []})
    saved = Path(job.arguments[1]).read_text()
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


def test_a_batch_that_did_not_fit_is_not_tried_again_but_a_validation_of_that_size_is(tmp_path):
    """64 did not fit into training. That says nothing of a validation of 64."""
    folder, row = SweepDir(tmp_path), step_times.Timing(32, 32, 1.0, 1.0, 1.0)
    settings: dict[str, Any] = {"warmup_steps": 1, "steps": 2, "blocks": 3}
    folder.step_times(1).parent.mkdir()
    timings = step_times.Timings(1, "cpu", False, 1, [row], [row], {"training of 64": "why"}, settings, {}, None)
    step_times.write(folder.step_times(1), timings)

    def untimed(batches, validation, n=1, **changes):
        config = grid(timing=TimingConfig(**settings | changes))
        return engine._untimed(config, folder, {n: {"batches": batches, "validation": validation}})

    assert untimed([32, 64], [32]) == []
    assert untimed([32, 128], []) == untimed([], [64]) == untimed([32], [], blocks=9) == [1]
    assert untimed([], [], n=2) == [2]


# GPUs


@pytest.mark.parametrize(("jobs", "gpus"), [(2, ["GPU-aaa", "GPU-bbb"]), (1, ["all", "all"])])
def test_runs_side_by_side_have_a_gpu_each_and_a_run_alone_sees_all(fake, tmp_path, monkeypatch, jobs, gpus):
    """Side by side, each waits until both run."""
    (tmp_path / "nvidia-smi").write_text('#!/bin/sh\necho "GPU-aaa"\necho "GPU-bbb"\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if jobs > 1:
        fake.wish({"weak-n2-seed0": "meet", "weak-n4-seed0": "meet"})
    assert fake.sweep(grid(jobs=jobs, scaling=("weak",), devices=(2, 4)))[0] == 0
    assert sorted(path.read_text() for path in fake.root.glob("runs/weak-*/gpu")) == gpus


# Called again: checkpoints


def checkpoints(fake: Fake) -> list[str]:
    return sorted(path.parent.name for path in fake.root.glob("runs/*/checkpoints") if any(path.iterdir()))


def test_the_checkpoints_of_runs_that_ended_by_themselves_are_removed(fake):
    fake.wish({"weak-n2-seed0": "diverge", "linear-n2-seed0": "lie"})
    fake.sweep(grid(devices=(1, 2)))
    ends = {name: record.outcome for name, record in fake.records().items()}
    assert (ends["weak-n1-seed0"], ends["weak-n2-seed0"], ends["linear-n2-seed0"]) == ("max_epochs", "diverged", CRASHED)
    assert checkpoints(fake) == ["linear-n2-seed0"]


def test_checkpoints_stay_where_they_are_to_be_kept(fake):
    fake.sweep(grid(devices=(1,), keep_checkpoints=True))
    assert checkpoints(fake) == ["weak-n1-seed0"]
    fake.sweep(grid(devices=(1,)))
    assert checkpoints(fake) == []


def test_checkpoints_that_a_killed_sweep_had_no_time_to_remove_are_removed_by_the_next_call(fake, monkeypatch):
    """Killed between a run's record and the removal."""
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_remove_checkpoints", lambda *_: None)
        fake.sweep(grid(devices=(1,)))
    assert checkpoints(fake) == ["weak-n1-seed0"]
    fake.forget()
    assert fake.sweep(grid(devices=(1,)))[0] == 0
    assert (checkpoints(fake), fake.events("start")) == ([], [])


@pytest.mark.parametrize("kept", [True, False])
def test_a_raised_limit_goes_on_from_checkpoints_that_were_kept_and_begins_again_without(fake, kept):
    config = grid(scaling=("weak",), devices=(2,), keep_checkpoints=kept)
    fake.sweep(config)
    trace = SweepDir(fake.root).run("weak-n2-seed0").root / "trace"
    trace.touch()
    code, watch = fake.sweep(dataclasses.replace(config, run=Config(stop=StopConfig(max_epochs=5))))
    assert code == 0
    assert trace.exists() == kept
    assert any("weak-n2-seed0 starts again" in line for line in watch.lines) != kept


def test_runs_of_other_data_are_refused_before_the_next_ones_begin(undisturbed):
    fake, _, _ = undisturbed
    saved, begun = (fake.root / "sweep.toml").read_text(), fake.events("start")
    some = Fingerprint([], [], 640, {"train samples": "some"}, [])
    assert fake.sweep(grid(), data=some)[0] == 0
    with pytest.raises(InputError, match=r'data and workload must be .* train samples was "some", now "others"'):
        fake.sweep(grid(seeds=(5,)), data=some._replace(digests={"train samples": "others"}))
    assert ((fake.root / "sweep.toml").read_text(), fake.events("start")) == (saved, begun)


# The work directory


def test_a_second_sweep_on_the_same_work_directory_is_refused_while_the_first_runs(fake):
    class Second(Watch):
        error = ""

        def started(self, name):
            with pytest.raises(InputError) as caught:
                engine.sweep(grid(devices=(1,)), fake.root, Watch(), samples=640)
            self.error = str(caught.value)

    code, second = fake.sweep(grid(devices=(1,)), display=Second())
    assert code == 0
    assert second.error == (
        f"workdir must be worked on by one sweep at a time; got {fake.root}, which process "
        f"{os.getpid()} on {socket.gethostname()} holds: wait for it, end it, or give another with --workdir"
    )


@pytest.fixture
def claimed(tmp_path):
    """A work directory with the configuration of a sweep and nothing else."""
    root = tmp_path / "sweep"
    root.mkdir()
    (root / "sweep.toml").write_text(to_toml(grid()))
    return root


OTHERS = {
    "run.loss": (grid(run=changed(configuration(), loss="mae")), 'run.loss was "msle", now "mae"'),
    "mode": (grid(mode="measured", jobs=1), 'mode was "virtual", now "measured"'),
}


@pytest.mark.parametrize(("config", "part"), OTHERS.values(), ids=OTHERS.keys())
def test_the_work_directory_of_another_sweep_is_refused_and_left_as_it_is(claimed, config, part):
    before = (claimed / "sweep.toml").read_text()
    with pytest.raises(InputError) as caught:
        engine.sweep(config, claimed, Watch(), samples=640)
    message = str(caught.value)
    assert message.startswith(f"workdir must hold a sweep of the same runs; got {claimed} where ")
    assert part in message
    assert message.endswith(": give another --workdir")
    assert (claimed / "sweep.toml").read_text() == before


def test_the_work_directory_of_a_run_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(InputError, match=r"workdir must be new or hold a sweep; .* holds a run: give another --workdir"):
        engine.sweep(grid(), tmp_path, Watch(), samples=640)
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_a_broken_saved_configuration_is_refused(claimed):
    (claimed / "sweep.toml").write_text("a b")
    with pytest.raises(InputError, match=r"sweep\.toml must be TOML"):
        engine.sweep(grid(), claimed, Watch(), samples=640)


def test_a_larger_grid_computes_what_is_new_only(fake):
    assert fake.sweep(grid(devices=(1, 2)))[0] == 0
    fake.forget()
    code, watch = fake.sweep(grid(devices=(4, 2, 1), seeds=(0,), run_time_limit_s=100.0, jobs=1))
    assert (code, watch.begun) == (0, ["weak-n4-seed0", "linear-n4-seed0"])
    assert sorted(fake.records()) == sorted(NAMES)
    assert "devices = [4, 2, 1]" in SweepDir(fake.root).config.read_text()


def test_a_raised_limit_goes_on_with_the_runs_that_it_had_ended_only(fake):
    fake.wish({"weak-n2-seed0": "diverge"})
    assert fake.sweep(grid(devices=(1, 2)))[0] == 0
    fake.forget()
    longer = Config(stop=StopConfig(max_epochs=5))
    code, watch = fake.sweep(grid(devices=(1, 2), run=longer, jobs=1))
    assert (code, watch.begun) == (0, ["weak-n1-seed0", "linear-n2-seed0"])
    assert "max_epochs = 5" in SweepDir(fake.root).config.read_text()


@pytest.mark.parametrize(("patience", "begun"), [(2, []), (3, ["weak-n1-seed0"])])
def test_a_changed_patience_judges_the_runs_that_stalled_again(fake, patience, begun):
    """Each loss is a sixth of the one before: two epochs gain 35 of 36, not 99 %, so a patience of 2 ends after three."""
    stop = StopConfig(max_epochs=4, patience_epochs=2, min_relative_improvement=0.99)
    config = grid(scaling=("weak",), devices=(1,), keep_checkpoints=True, run=Config(stop=stop))
    assert fake.sweep(config)[0] == 0
    folder, record = SweepDir(fake.root), fake.records()["weak-n1-seed0"]
    assert record.record is not None
    run, stalled = folder.run(record.path), dataclasses.replace(record.record, stop_reason="stalled", epochs=3)
    write_history(run.history, run.read_rows()[:3])
    write_text(run.record, to_json(stalled))
    write_text(folder.record(record.key), to_json(dataclasses.replace(record, outcome="stalled", record=stalled)))
    fake.forget()
    _, watch = fake.sweep(dataclasses.replace(config, run=Config(stop=dataclasses.replace(stop, patience_epochs=patience))))
    assert watch.begun == begun


def test_a_new_run_on_a_known_path_gets_its_record_from_it(fake):
    assert fake.sweep(grid(scaling=("weak",), devices=(1,)))[0] == 0
    assert fake.sweep(grid(scaling=("weak", "strong"), devices=(1, 2)))[0] == 0
    strong = fake.records()["strong-n2-seed0"]
    assert strong.path == "weak-n1-seed0"
    assert strong.record is not None
    assert (strong.record.device_batch, strong.record.epochs) == (16, 4)


def test_a_work_directory_that_cannot_be_written_is_refused():
    with pytest.raises(InputError, match=r"workdir must be a folder that can be written; got /proc/sweep \("):
        engine.sweep(grid(), Path("/proc/sweep"), Watch(), samples=640)


# Interruptions


def test_an_interrupted_sweep_ends_its_runs_and_the_next_call_completes_it(fake, undisturbed):
    fake.wish({"weak-n2-seed0": "hang"})

    class Interrupting(Watch):
        """When the third run starts, one is done, and another hangs until it gets a signal."""

        def started(self, name):
            super().started(name)
            if name == "linear-n2-seed0":
                wait_until(lambda: fake.events("hang"))
                os.kill(os.getpid(), signal.SIGINT)

    code, watch = fake.sweep(grid(), display=Interrupting())
    assert code == 130
    assert engine.interrupted(code)
    assert watch.states["weak-n2-seed0"] == "interrupted"
    assert fake.events("sigterm") == ["weak-n2-seed0"]
    assert "weak-n2-seed0" not in fake.records()
    assert {"weak-n1-seed0", "linear-n1-seed0"} <= set(fake.records())
    assert not {"weak-n4-seed0", "linear-n4-seed0"} & set(fake.events("start"))
    assert watch.lines[-1] == "the same command continues the sweep"
    assert "not computed" in watch.lines[-2]
    fake.wish({})
    assert fake.sweep(grid())[0] == 0
    assert without_clocks(fake.records()) == without_clocks(undisturbed[0].records())


def test_sigterm_to_a_sweeping_process_is_exit_code_143(fake):
    fake.wish({"weak-n1-seed0": "hang"})
    process = fake.start(grid(devices=(1,)))
    wait_until(lambda: fake.events("hang"))
    process.terminate()
    printed, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 143, printed
    assert fake.records() == {}
    assert fake.orphans() == []
    fake.wish({})
    assert fake.sweep(grid(devices=(1,)))[0] == 0
    assert sorted(fake.records()) == ["linear-n1-seed0", "weak-n1-seed0"]


@pytest.mark.slow
def test_a_sweeping_process_killed_twice_loses_and_repeats_nothing(fake, undisturbed):
    """Each time two runs hang in the middle, the only ones left to run at that moment, when SIGKILL comes."""
    for hanging, done in (
        (("weak-n2-seed0", "linear-n2-seed0"), {"weak-n1-seed0", "linear-n1-seed0"}),
        (("linear-n4-seed0", "weak-n4-seed0"), {"weak-n1-seed0", "linear-n1-seed0", "weak-n2-seed0", "linear-n2-seed0"}),
    ):
        fake.wish(dict.fromkeys(hanging, "hang"))
        process = fake.start(grid())
        wait_until(lambda names=hanging: set(names) <= set(fake.events("hang")))
        wait_until(lambda done=done: set(fake.records()) == done)  # the sweep may be slower to write them
        assert sorted(fake.orphans()) == sorted(hanging)  # they live, and would be orphans
        process.kill()
        process.communicate(timeout=DEADLINE_S)
        wait_until(lambda: not fake.orphans())
        assert set(fake.records()) == done
    fake.wish({})
    assert fake.sweep(grid())[0] == 0
    assert without_clocks(fake.records()) == without_clocks(undisturbed[0].records())
    assert sorted(fake.events("end")) == sorted([*PATHS, "step-times-n1"])
    starts = fake.events("start")
    assert {name: starts.count(name) for name in PATHS} == dict.fromkeys(PATHS, 2) | {"weak-n1-seed0": 1}
    assert fake.orphans() == []

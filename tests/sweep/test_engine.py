"""Sweeps with a small program in the place of a run, called once and called again."""

import dataclasses
import math
import os
import signal
import socket
import subprocess
from contextlib import ExitStack

import pytest

from gmmae.config.schema import Config, StopConfig, changed
from gmmae.config.toml import to_toml
from gmmae.multihost import environment
from gmmae.sweep import engine, step_times, workers
from gmmae.sweep.engine import RUNS_FAILED
from gmmae.sweep.runs import CRASHED, TIMED_OUT, Attempt
from gmmae.system import locks
from gmmae.system.errors import InputError, StorageError
from gmmae.system.files import write_text
from gmmae.training.fingerprint import Fingerprint
from gmmae.training.records import to_json
from gmmae.training.run_logger import write_history
from gmmae.workloads.registry import configuration
from tests.commands import one_line
from tests.sweep.fake_runs import NAMES, PATHS, Fake, Watch, grid, without_clocks
from tests.waiting import DEADLINE_S, locked, wait_until


def completed(fake, undisturbed, **changes):
    """What a sweep says that comes to its end with the records of an undisturbed one."""
    code, watch = fake.sweep(grid(**changes))
    assert code == 0
    assert without_clocks(fake.records()) == without_clocks(undisturbed[0].records())
    return watch.lines


# Ends


def test_every_path_is_computed_once_and_every_run_has_a_record_and_the_projection_its_step_times(undisturbed):
    fake, code, watch = undisturbed
    assert code == 0, "\n".join(watch.lines)
    assert watch.jobs == 5
    assert sorted(fake.events("start")) == sorted(fake.events("end")) == sorted([*PATHS, "step-times-n1"])
    records = fake.records()
    assert sorted(records) == sorted(watch.states) == sorted(NAMES)
    for name, record in records.items():
        assert (record.outcome, record.message) == ("max_epochs", "")
        assert record.path == ("weak-n1-seed0" if "-n1-" in name else name)
        assert record.record is not None
        assert (record.record.scaling, record.record.devices) == record.key[:2]
        assert record.record.epochs == 4
    assert watch.lines[-1] == "6 runs: 6 max_epochs"
    assert ["step-times-n1"] in fake.processes()
    assert len(fake.processes()) <= 3
    # Weak and linear: 32 on every device, and a cluster's 24; validation volumes a device: 128, 64, 32.
    found = step_times.read(fake.folder.step_times(1))
    assert found is not None
    assert [row.samples for row in found.train] == [24, 32]
    assert [row.samples for row in found.validation] == [32, 64, 128]
    assert not fake.folder.step_times(2).exists()


WISHES = {
    "weak-n1-seed0": "crash",  # with it linear-n1
    "weak-n2-seed0": "segfault",
    "linear-n2-seed0": "hang",
    "weak-n4-seed0": "diverge",
    "linear-n4-seed0": "bad",
    "weak-n1-seed1": "deaf",
    "weak-n2-seed1": "garbage",
}
LIMIT_S = 6.0  # ample for all but those that hang, also beside other work


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    """A sweep with all kinds of failures; then the same call, then one with retry and all causes fixed."""
    fake = Fake(tmp_path_factory.mktemp("failing"))
    fake.wish(WISHES)
    config = grid(seeds=(0, 1), run_time_limit_s=LIMIT_S)
    calls = []
    for retry in (False, False, True):
        if retry:
            fake.wish({})
            fake.folder.run("weak-n2-seed1").record.unlink()
        fake.forget()
        calls.append((*fake.sweep(config, retry=retry), fake.events("start"), fake.records(config)))
    return fake, calls


ENDS = {
    "weak-n1-seed0": (CRASHED, "exit code 1: RuntimeError: what it was"),
    "linear-n1-seed0": (CRASHED, "exit code 1: RuntimeError: what it was"),
    "weak-n2-seed0": (CRASHED, "killed by SIGSEGV: no output"),
    "linear-n2-seed0": (TIMED_OUT, "ended after its time limit of 6 s"),
    "linear-n4-seed0": (CRASHED, "exit code 2: error: optim.batch_size must be smaller; got 9: lower it"),
    "weak-n1-seed1": (TIMED_OUT, "killed after its time limit of 6 s"),
    "linear-n1-seed1": (TIMED_OUT, "killed after its time limit of 6 s"),
    "weak-n2-seed1": (CRASHED, "it left no record of its end"),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_failed_run_is_an_outcome_with_its_last_words_and_where_to_read_more(failing, name):
    fake, [(code, watch, _, records), *_] = failing
    record, (outcome, message) = records[name], ENDS[name]
    path = name.replace("linear-n1", "weak-n1")
    assert (record.outcome, record.path, record.message) == (outcome, path, f"{message} ({fake.folder.log(path)})")
    assert f"  {name} {outcome}: {record.message}" in watch.lines[-2].splitlines()
    assert code == RUNS_FAILED


def test_a_run_that_crashes_is_tried_twice_and_bad_input_and_a_time_limit_once_and_what_it_left_is_kept(failing):
    fake, [(_, _, starts, records), *_] = failing
    assert {name: starts.count(name) for name in WISHES} == dict.fromkeys(WISHES, 1) | {"weak-n1-seed0": 2, "weak-n2-seed0": 2}
    assert fake.folder.log("weak-n1-seed0").read_text().count("RuntimeError: what it was") == 2
    assert records["weak-n1-seed0"].record is None
    hung = records["linear-n2-seed0"].record
    assert (hung.stop_reason, hung.epochs) == ("sigterm", 2)


def test_divergence_is_a_result_and_the_others_are_as_if_nothing_had_failed(failing, undisturbed):
    _, [(_, watch, _, records), *_] = failing
    diverged = records["weak-n4-seed0"]
    assert (diverged.outcome, diverged.message, diverged.record.epochs) == ("diverged", "", 3)
    assert math.isnan(diverged.record.final_val_loss)
    for name in ("linear-n2-seed1", "weak-n4-seed1", "linear-n4-seed1"):
        assert records[name].outcome == "max_epochs"
        same_path = undisturbed[0].records()[name.replace("seed1", "seed0")]
        assert records[name].record.final_val_loss == same_path.record.final_val_loss
    assert watch.lines[-2].splitlines()[0] == "12 runs: 5 crashed, 3 timed_out, 3 max_epochs, 1 diverged"
    assert watch.lines[-1] == "--retry computes crashed and timed-out runs again"


def test_failed_runs_are_left_alone_without_retry_which_computes_exactly_these_from_where_they_were(failing):
    _, [(_, first, _, before), (code, watch, starts, records), retried] = failing
    assert (code, starts, watch.jobs) == (RUNS_FAILED, [], 0)
    assert (list(records), watch.states) == (list(before), first.states)
    code, watch, starts, records = retried
    failed = {record.path for record in before.values() if record.outcome in (CRASHED, TIMED_OUT)}
    assert sorted(starts) == sorted(failed)
    assert code == 0
    assert watch.lines[-1] == "12 runs: 11 max_epochs, 1 diverged"
    assert all(record.record.epochs == 4 for record in records.values() if record.outcome == "max_epochs")


def test_a_strategy_has_no_run_on_more_devices_than_its_batch_has_samples(fake):
    config = grid(scaling=("strong", "weak"), devices=(1, 40))
    code, watch = fake.sweep(config)
    assert code == 0
    assert sorted(fake.records(config)) == ["strong-n1-seed0", "weak-n1-seed0", "weak-n40-seed0"]
    assert "strong on 40 devices: left out, a step of it has 32 samples" in watch.lines


def test_a_worker_that_cannot_begin_is_no_run_that_crashes(fake):
    """Its program has a fault, or a package is missing."""
    fake.script.write_text("raise SystemExit('no such thing')")
    with pytest.raises(InputError, match=r"a worker must be able to begin a run; got exit code 1: no such thing \(.*workers"):
        fake.sweep(grid(devices=(1,)))
    assert fake.records() == {}


@pytest.mark.parametrize(
    ("mode", "jobs", "counts"), [("measured", 1, ["2", "4"]), ("virtual", 1, ["3", "3"]), ("virtual", 2, ["1", "1"])]
)
def test_a_worker_sees_as_many_cpu_devices_as_its_runs_compute_on(fake, monkeypatch, mode, jobs, counts):
    """Virtual runs side by side share the cores. Measured runs share nothing, and need no further step times."""
    monkeypatch.setattr(environment, "cores", lambda: 3)
    config = grid(mode=mode, jobs=jobs, scaling=("weak",), devices=(2, 4))
    assert fake.sweep(config)[0] == 0
    assert [(fake.folder.run(f"weak-n{n}-seed0").root / "cpu").read_text() for n in (2, 4)] == counts
    assert fake.folder.step_times(1).exists() == (mode == "virtual")
    assert {record.record.virtual for record in fake.records(config).values() if record.record} == {mode == "virtual"}


# Workers that die


def test_a_run_that_is_killed_is_tried_again_from_its_checkpoint_and_said_so(fake, undisturbed):
    fake.wish({"weak-n2-seed0": "crash once"})
    said = completed(fake, undisturbed, jobs=1)
    log = fake.folder.log("weak-n2-seed0")
    assert f"weak-n2-seed0 has lost its process, killed by SIGKILL: no output ({log})" in said
    assert [names.count("weak-n2-seed0") for names in fake.processes()] == [1, 1, 0]


@pytest.mark.parametrize(
    ("before", "tried"),
    [
        ({"deaths": 1}, False),
        ({"deaths": 0}, True),
        ({"deaths": 1, "boot": "an earlier one"}, True),
        ({"deaths": 1, "boot": "another host's", "host": "another"}, False),
        ({"deaths": 1, "checkpoint": -1}, True),
        ({"deaths": 0, "timed_out": True}, False),
    ],
)
def test_a_run_is_left_out_after_two_deaths_without_a_checkpoint_while_the_machine_was_up(fake, before, tried):
    attempt = Attempt(1, locks.this_boot(), 0, 0, "how it was", host=socket.gethostname())._replace(**before)
    fake.folder.write(fake.folder.attempt("weak-n1-seed0"), attempt)
    fake.sweep(grid(devices=(1,)))
    assert fake.records()["weak-n1-seed0"].message == ("" if tried else "how it was")
    assert fake.events("start").count("weak-n1-seed0") == tried


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (
            "full disk",
            r"^workdir must stay a folder that can be written; .*: give the same again \(.*weak-n2-seed0.log\.txt\)$",
        ),
        ("full disk, also for the error", r"must have space for what weak-n2-seed0 writes; .* give the command again$"),
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
    completed(fake, undisturbed, jobs=1)


@pytest.mark.parametrize(("wish", "code"), [("full memory after others", 0), ("full memory", RUNS_FAILED)])
def test_a_run_for_which_memory_was_full_gets_a_process_of_its_own(fake, wish, code):
    fake.wish({"linear-n2-seed0": wish})
    assert fake.sweep(grid(jobs=1))[0] == code
    assert [record.outcome for record in fake.records().values()].count(CRASHED) == bool(code)
    assert fake.events("start").count("linear-n2-seed0") == 2


@pytest.mark.parametrize(("memory", "processes"), [("1.0", 2), ("3.0", 3)])
def test_a_process_that_grows_is_replaced(fake, memory, processes):
    """Gigabytes with each run. One process more measures the step times."""
    fake.wish({"memory": memory})
    assert fake.sweep(grid(jobs=1, devices=(1, 2)))[0] == 0
    assert len(fake.processes()) == processes


def test_a_run_that_another_worker_computes_is_waited_for(fake):
    class Other(Watch):
        def say(self, line):
            super().say(line)
            if line.startswith("waiting for"):
                held.close()

    held = ExitStack()
    held.enter_context(fake.folder.turn("weak-n2-seed0"))
    code, watch = fake.sweep(grid(devices=(2,)), display=Other())
    assert code == 0
    assert f"waiting for process {os.getpid()} on {socket.gethostname()}, which computes weak-n2-seed0" in watch.lines


# GPUs


@pytest.mark.parametrize(("jobs", "gpus"), [(2, ["GPU-aaa", "GPU-bbb"]), (1, ["all", "all"])])
def test_runs_side_by_side_have_a_gpu_each_and_a_run_alone_sees_all(fake, shell_scripts, monkeypatch, jobs, gpus):
    """Side by side, each waits until both run."""
    shell_scripts(**{"nvidia-smi": "echo GPU-aaa; echo GPU-bbb"})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if jobs > 1:
        fake.wish({"weak-n2-seed0": "meet", "weak-n4-seed0": "meet"})
    assert fake.sweep(grid(jobs=jobs, scaling=("weak",), devices=(2, 4)))[0] == 0
    assert sorted(path.read_text() for path in fake.root.glob("runs/weak-*/gpu")) == gpus


# Called again: checkpoints


LONGER = Config(stop=StopConfig(max_epochs=5))


def checkpoints(fake: Fake):
    return sorted(path.parent.name for path in fake.root.glob("runs/*/checkpoints") if any(path.iterdir()))


@pytest.mark.parametrize("kept", [False, True])
def test_the_checkpoints_of_runs_that_ended_by_themselves_are_removed_unless_they_are_to_be_kept(fake, kept):
    fake.wish({"weak-n2-seed0": "diverge", "linear-n2-seed0": "crash once"})
    fake.folder.write(fake.folder.attempt("linear-n2-seed0"), Attempt(1, locks.this_boot(), 2, 1, "how it was"))
    (fake.root / "runs/linear-n2-seed0/checkpoints/2").mkdir(parents=True)
    fake.sweep(grid(devices=(1, 2), keep_checkpoints=kept))
    ends = {name: record.outcome for name, record in fake.records().items()}
    assert ends == {"weak-n2-seed0": "diverged", "linear-n2-seed0": CRASHED} | dict.fromkeys(NAMES[:2], "max_epochs")
    assert checkpoints(fake) == ["linear-n2-seed0", *(["weak-n1-seed0", "weak-n2-seed0"] if kept else [])]
    fake.forget()
    fake.sweep(grid(devices=(1, 2)))  # as after a kill before they were removed
    assert (checkpoints(fake), fake.events("start")) == (["linear-n2-seed0"], [])


@pytest.mark.parametrize("kept", [True, False])
def test_a_raised_limit_goes_on_from_checkpoints_that_were_kept_and_begins_again_without(fake, kept):
    config = grid(scaling=("weak",), devices=(2,), keep_checkpoints=kept)
    fake.sweep(config)
    trace = fake.folder.run("weak-n2-seed0").root / "trace"
    trace.touch()
    config = dataclasses.replace(config, run=LONGER)
    assert not fake.records(config)
    code, watch = fake.sweep(config)
    assert code == 0
    assert trace.exists() == kept
    assert any("weak-n2-seed0 starts again" in line for line in watch.lines) != kept


def test_a_finished_sweep_starts_nothing_and_runs_of_other_data_are_refused_before_the_next_ones_begin(undisturbed):
    fake, _, first = undisturbed
    saved, begun = (fake.root / "sweep.toml").read_text(), fake.events("start")
    some = Fingerprint([], [], 640, {"train samples": "some"}, [])
    code, watch = fake.sweep(grid(), data=some)
    assert (code, watch.jobs, watch.lines[0], watch.states) == (0, 0, "6 runs: all done", first.states)
    with pytest.raises(InputError, match=r'data and workload must be .* train samples was "some", now "others"'):
        fake.sweep(grid(seeds=(5,)), data=some._replace(digests={"train samples": "others"}))
    assert ((fake.root / "sweep.toml").read_text(), fake.events("start")) == (saved, begun)


def test_a_file_of_a_workload_may_move_between_two_calls(fake, tmp_path):
    data = Fingerprint([], [], 640, {"workload file": "some"}, [])
    for file in (tmp_path / "mine.py", tmp_path / "renamed.py"):
        file.write_text("from gmmae.workloads.settings import NodulesConfig as Config\nbuild = print\n")
        config = grid(run=configuration(str(file), stop=StopConfig(max_epochs=1)), devices=(1,))
        assert fake.sweep(config, data=data)[0] == 0
        assert file.name in fake.folder.config.read_text()
    with pytest.raises(InputError, match="where workload file was"):
        fake.sweep(config, data=data._replace(digests={"workload file": "other"}))


# The work directory


def test_a_second_sweep_on_the_same_work_directory_is_refused_while_the_first_runs(fake):
    class Second(Watch):
        error = ""

        def start(self, ended, groups, total, at_once):
            super().start(ended, groups, total, at_once)
            self.error = one_line(engine.sweep, grid(devices=(1,)), fake.root, Watch(), samples=640)

    code, second = fake.sweep(grid(devices=(1,)), display=Second())
    assert code == 0
    assert second.error == (
        f"workdir must be worked on by one sweep at a time; got {fake.root}, which process "
        f"{os.getpid()} on {socket.gethostname()} holds: wait for it, end it, or give another with --workdir"
    )


@pytest.mark.parametrize(
    ("config", "change"),
    [
        (grid(run=changed(configuration(), loss="mae")), 'run.loss was "msle", now "mae"'),
        (grid(mode="measured", jobs=1), 'mode was "virtual", now "measured"'),
        (grid(run=Config(stop=StopConfig(validate_every_steps=1))), 'run.stop.validate_every_steps was "none", now 1'),
    ],
)
def test_the_work_directory_of_another_sweep_is_refused_and_left_as_it_is(tmp_path, config, change):
    (tmp_path / "sweep.toml").write_text(before := to_toml(grid()))
    with pytest.raises(
        InputError, match=f"must hold a sweep of the same runs; got .* where .*{change}.*: give another --workdir"
    ):
        engine.sweep(config, tmp_path, Watch(), samples=640)
    assert (tmp_path / "sweep.toml").read_text() == before


def test_the_work_directory_of_a_run_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(InputError, match=r"workdir must be new or hold a sweep; .* holds a run: give another --workdir"):
        engine.sweep(grid(), tmp_path, Watch(), samples=640)
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize("first", [{"devices": (2, 4)}, {"scaling": ("weak", "strong")}, {"devices": (8,)}])
def test_a_path_that_was_computed_under_another_name_is_not_computed_again(fake, first):
    """The path of strong scaling is that of one device, and of weak scaling there."""
    assert fake.sweep(grid(**{"scaling": ("strong",), "devices": (1, 2)} | first))[0] == 0
    fake.forget()
    config = grid(scaling=("linear", "strong"), devices=(1, 2))
    assert fake.sweep(config)[0] == 0
    assert set(fake.events("start")) <= {"linear-n2-seed0", "step-times-n1"}
    strong = fake.records(config)["strong-n2-seed0"].record
    assert strong is not None
    assert (strong.scaling, strong.device_batch, strong.epochs) == ("strong", 16, 4)


def test_a_larger_grid_with_a_raised_limit_computes_what_is_new_and_the_runs_that_the_limit_had_ended_only(fake):
    fake.wish({"weak-n2-seed0": "diverge"})
    assert fake.sweep(grid(devices=(1, 2)))[0] == 0
    fake.forget()
    assert fake.sweep(grid(devices=(4, 2, 1), run=LONGER, run_time_limit_s=100.0, jobs=1))[0] == 0
    assert fake.events("start") == ["weak-n1-seed0", "linear-n2-seed0", "weak-n4-seed0", "linear-n4-seed0", "step-times-n1"]
    assert sorted(fake.records()) == sorted(NAMES)
    assert all(line in fake.folder.config.read_text() for line in ("devices = [4, 2, 1]", "max_epochs = 5"))


@pytest.mark.parametrize(("patience", "begun"), [(2, []), (3, ["weak-n1-seed0"])])
def test_a_changed_patience_judges_the_runs_that_stalled_again(fake, patience, begun):
    """Each loss is a sixth of the one before: two epochs gain 35 of 36, not 99 %, so a patience of 2 ends after three."""
    stop = StopConfig(max_epochs=4, patience_epochs=2, min_relative_improvement=0.99)
    config = grid(scaling=("weak",), devices=(1,), keep_checkpoints=True, run=Config(stop=stop))
    assert fake.sweep(config)[0] == 0
    run = fake.folder.run("weak-n1-seed0")
    write_history(run.history, run.read_rows()[:3])
    write_text(run.record, to_json(dataclasses.replace(run.read_record(), stop_reason="stalled", epochs=3)))
    fake.forget()
    fake.sweep(dataclasses.replace(config, run=Config(stop=dataclasses.replace(stop, patience_epochs=patience))))
    assert fake.events("start") == begun


@pytest.mark.parametrize("rule", ["max_epochs", "patience_epochs"])
def test_a_rule_that_would_have_ended_a_run_earlier_is_refused_before_the_next_ones_begin(fake, rule):
    config = grid(scaling=("weak",), devices=(1,))
    fake.sweep(config)
    before = fake.folder.config.read_text()
    stop = StopConfig(**{"max_epochs": 4, "min_relative_improvement": 0.99, rule: 2})
    with pytest.raises(InputError, match=rf"run.stop.{rule} was .*, now 2.*: give another --workdir"):
        fake.sweep(grid(run=Config(stop=stop)))
    assert fake.folder.config.read_text() == before


# Interruptions


def test_an_interrupted_sweep_ends_its_runs_and_the_next_call_completes_it(fake, undisturbed):
    fake.wish({"weak-n2-seed0": "hang", "linear-n2-seed0": "hang"})

    class Interrupting(Watch):
        """When one run is done and two others hang until they get a signal."""

        def running(self, states):
            if len(fake.events("hang")) == 2 and not fake.events("sigterm"):
                os.kill(os.getpid(), signal.SIGINT)

    code, watch = fake.sweep(grid(), display=Interrupting())
    assert code == 130
    assert engine.interrupted(code)
    assert sorted(fake.events("sigterm")) == ["linear-n2-seed0", "weak-n2-seed0"]
    assert set(fake.records()) == {"weak-n1-seed0", "linear-n1-seed0"}
    assert not {"weak-n4-seed0", "linear-n4-seed0"} & set(fake.events("start"))
    assert "4 not computed" in watch.lines[-2]
    assert watch.lines[-1] == "the same command continues the sweep"
    assert not list(fake.root.glob("runs/*/attempt.json"))
    fake.wish({})
    completed(fake, undisturbed)


def test_a_second_signal_kills_a_run_that_does_not_end_and_that_is_no_fault_of_its_own(fake):
    fake.wish({"weak-n1-seed0": "deaf"})
    process = fake.start(grid(devices=(1,)))
    wait_until(lambda: fake.events("hang"))
    process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)
    process.terminate()
    printed, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 143, printed
    assert not any(map(locked, fake.root.glob("runs/*/.turn")))  # only death lets go of it
    assert not list(fake.root.glob("runs/*/attempt.json"))


# What is said of a process that died


@pytest.mark.parametrize(
    ("content", "code", "expected"),
    [
        (b"", 1, ""),
        (b"one\ntwo\n\n", 3, "two"),
        (b"20 %\r80 %\n", 0, "80 %"),
        (
            b"Traceback (most recent call last):\n  File\nValueError: bad\n\nSimple: JAX has removed\n",
            1,
            "ValueError: bad",
        ),
        (b"\xff\x1b[0m", 0, "\ufffd\ufffd[0m"),
        (b"x" * 400, 0, "x" * 300 + "…"),
    ],
)
def test_last_words(tmp_path, content, code, expected):
    (tmp_path / "log").write_bytes(content)
    assert workers.last_words(tmp_path / "log", code) == expected
    assert workers.last_words(tmp_path / "none", code) == ""

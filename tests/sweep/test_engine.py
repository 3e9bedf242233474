"""The engine with a small program in the place of a cell's run, and at the end whole sweeps of small runs."""

import dataclasses
import fcntl
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pytest
from rich.console import Console

from gmmae.base import environment, stopping
from gmmae.base.config import Config, StopConfig, changed, to_toml
from gmmae.base.errors import InputError
from gmmae.base.records import to_json, write_history, write_text
from gmmae.sweep import engine, throughput
from gmmae.sweep import jobs as sweep_jobs
from gmmae.sweep import timing as sweep_timing
from gmmae.sweep.cells import CRASHED, TIMED_OUT, CellRecord, SweepDir
from gmmae.sweep.display import PlainSweep
from gmmae.sweep.engine import CELLS_FAILED, summary
from gmmae.sweep.grid import Cell, SweepConfig, TimingConfig, cells, run_config
from gmmae.sweep.plan import COLUMNS, dry_run
from gmmae.training import loop
from gmmae.workloads.registry import configuration
from tests.small import Recorder, small
from tests.sweep.test_cells import RECORD, cell_record

DEADLINE_S = 60.0  # only a failing test comes near it
ROOT = Path(__file__).parent.parent.parent

# Four epochs of 20 steps, each loss made from the one before, so that an epoch computed twice or left out would show.
CELL = r"""
import fcntl, json, os, re, resource, signal, sys, time
from pathlib import Path
from gmmae.base.records import Epoch, Record, read_history, to_json, write_history, write_text
from gmmae.base.stopping import EXIT_CODES
from gmmae.processes.supervisor import die_with_parent

die_with_parent()
what, config, out = sys.argv[1], Path(sys.argv[2]).read_text(), Path(sys.argv[-1])
name = out.name if what == "train" else out.stem
wish = json.loads(Path(__file__).with_name("wishes.json").read_text()).get(name, "")


def note(event):
    with Path(__file__).with_name("events.txt").open("a") as file:
        file.write(f"{event} {name}\n")


def write_record(reason, loss, epochs):
    batch = 32 if arm == "strong" else 32 * n
    rate = 0.00105 * (n if arm == "linear" else 1)
    if wish == "clipped":  # as before the rate followed the batch
        batch = min(batch, 640)
    clocks = {"train_s": time.time(), "total_s": time.time()}
    write_text(out / "record.json", to_json(Record(
        run_id="0", arm=arm, seed=int(seed), devices=n, processes=1, device_kind="fake", oversubscribed=False,
        global_batch=batch, device_batch=batch // n, padding=0, steps_per_epoch=20, learning_rate=rate, parameters=1,
        base_batch=32, wanted_batch=batch, train_samples=640,
        validation_samples=128, target=0.0, virtual="virtual = 0" not in config, stop_reason=reason,
        epochs=epochs, final_train_loss=loss, final_val_loss=loss, clocks=clocks,
    )))


def timings():
    asked = json.loads(Path(sys.argv[3]).read_text())
    row = {"device_batch": 1, "median_s": 2.0, "low_s": 1.0, "high_s": 3.0}
    rows = {"train": [row | {"samples": b} for b in asked["batches"] if b != 64]}
    rows["validation"] = [row | {"samples": b} for b in asked["validation"]]
    failed = {"training of 64": "why"} if 64 in asked["batches"] else {}
    text = {"devices": 1, "device_kind": "fake", "oversubscribed": False, "parameters": 1, "versions": {}, "git_commit": None}
    asked["timing"] = {key: asked["timing"][key] for key in ("warmup_steps", "steps", "blocks")}
    write_text(out, json.dumps(text | rows | {"failed": failed, "timing": asked["timing"]}))


note("start")
if wish == "crash":
    print("a warning")
    sys.exit("what it was")
if wish == "bad":
    print("error: optim.base_batch must be smaller; got 9")
    sys.exit(2)
if wish == "segfault":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signal.SIGSEGV)
if what == "time":
    timings()
    note("end")
    sys.exit()
held = (out / "held").open("w")
fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
(out / "gpu").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
while wish == "meet" and len(list(out.parent.glob("weak-*/gpu"))) < 2:
    time.sleep(0.01)
arm, n, seed = re.fullmatch(r"([a-z-]+)-n(\d+)-seed(\d+)", name).groups()
n = int(n)
rows = read_history(out / "history.csv") if (out / "history.csv").exists() else []


def stop(*_):
    write_record("sigterm", rows[-1].val_loss, len(rows))
    note("sigterm")
    sys.exit(EXIT_CODES["sigterm"])


for epoch in range(len(rows) + 1, 5):
    loss = (rows[-1].val_loss if rows else 1.0) / (1 + n + len(arm))
    if wish == "diverge" and epoch == 3:
        loss = float("nan")
    rows.append(Epoch(epoch, 20 * epoch, 640 * epoch, 0.001, loss, loss, 0.0, 0.0, 0.0, 0.0, 0.0))
    write_history(out / "history.csv", rows)
    (out / "checkpoints" / str(epoch)).mkdir(parents=True)
    write_record(None, loss, epoch)
    if loss != loss:
        break
    if wish == "hang" and epoch == 2:
        signal.signal(signal.SIGTERM, stop)
        note("hang")
        time.sleep(120)
    if wish == "slow":
        time.sleep(0.2)
reason = "diverged" if rows[-1].val_loss != rows[-1].val_loss else "max_epochs"
write_record("collapsed" if wish == "lie" else reason, rows[-1].val_loss, len(rows))
if wish == "garbage":
    (out / "record.json").write_text("{")
note("end")
sys.exit(0 if wish == "lie" else EXIT_CODES[reason])
"""


class Watch:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.states: dict[str, str] = {}
        self.begun: list[str] = []
        self.jobs = -1

    def start(self, config, done, jobs) -> None:
        self.states = {cell.name: text for cell, text in done.items()}
        self.jobs = jobs

    def started(self, name) -> None:
        self.begun.append(name)

    def tick(self, running) -> None:
        pass

    def ended(self, name, cells, seconds) -> None:
        self.states |= {cell.name: text for cell, text in cells.items()}

    def say(self, line) -> None:
        self.lines.append(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error) -> None:
        pass


class Fake:
    """A sweep whose cells do as they are wished to."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "cell.py"
        self.script.write_text(CELL)
        self.root = folder / "sweep"
        self.wish({})

    def wish(self, wishes: dict[str, str]) -> None:
        self.script.with_name("wishes.json").write_text(json.dumps(wishes))

    def events(self, what: str) -> list[str]:
        path = self.script.with_name("events.txt")
        lines = path.read_text().splitlines() if path.exists() else []
        return [name for event, name in map(str.split, lines) if event == what]

    def forget(self) -> None:
        self.script.with_name("events.txt").unlink(missing_ok=True)

    def sweep(self, config: SweepConfig, *, display=None, **options) -> tuple[int, Watch]:
        watch = display or Watch()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sweep_jobs, "PROGRAM", (sys.executable, "-S", str(self.script)))
            return engine.sweep(config, self.root, watch, samples=640, **options), watch

    def start(self, config: SweepConfig) -> subprocess.Popen[str]:
        """The same in a process of its own."""
        path = self.script.with_name("wanted.toml")
        path.write_text(to_toml(config))
        command = (sys.executable, "-c", SWEEPER, self.script, path, self.root)
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def record(self, name: str) -> CellRecord | None:
        arm, n, seed = re.fullmatch(r"([a-z-]+)-n(\d+)-seed(\d+)", name).groups()  # pyright: ignore[reportOptionalMemberAccess]
        return SweepDir(self.root).read(Cell(arm, int(n), int(seed)))

    def records(self) -> dict[str, CellRecord]:
        found = {path.stem: self.record(path.stem) for path in SweepDir(self.root).records.glob("*.json")}
        return {name: record for name, record in found.items() if record is not None}

    def orphans(self) -> list[str]:
        """Cells whose processes live: only death lets go of their lock."""
        return [path.parent.name for path in self.root.glob("runs/*/held") if locked(path)]


SWEEPER = """
import sys
from pathlib import Path
from rich.console import Console
from gmmae.sweep import engine, jobs as sweep_jobs
from gmmae.commands.arguments import read_sweep
from gmmae.sweep.display import PlainSweep
sweep_jobs.PROGRAM = (sys.executable, "-S", sys.argv[1])
sys.exit(engine.sweep(read_sweep(Path(sys.argv[2])), Path(sys.argv[3]), PlainSweep(Console()), samples=640))
"""


def locked(path: Path) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def wait_until(condition) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def fake(tmp_path):
    return Fake(tmp_path)


def grid(**changes) -> SweepConfig:
    """Five paths for six cells: on one device both arms are the same."""
    run = Config(stop=StopConfig(max_epochs=4))
    plain: dict = {"arms": ("weak", "linear"), "devices": (1, 2, 4), "jobs": 2, "grace_s": 5.0, "run": run}
    return SweepConfig(**plain | changes)


PATHS = ["weak-n1-seed0", "weak-n2-seed0", "linear-n2-seed0", "weak-n4-seed0", "linear-n4-seed0"]
NAMES = ["linear-n1-seed0", *PATHS]


def without_clocks(records: dict[str, CellRecord]) -> dict[str, CellRecord]:
    assert all(record.record is not None for record in records.values())
    return {
        name: dataclasses.replace(record, record=dataclasses.replace(record.record, clocks={}))
        for name, record in records.items()
        if record.record is not None
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    fake = Fake(tmp_path_factory.mktemp("undisturbed"))
    code, watch = fake.sweep(grid())
    return fake, code, watch


# Ends


def test_every_path_is_computed_once_and_every_cell_has_a_record(undisturbed):
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
        assert (record.record.arm, record.record.devices) == (record.arm, record.devices)
        assert record.record.epochs == 4
    assert watch.lines[-1] == "6 cells: 6 max_epochs"
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


def test_virtual_cells_are_followed_by_the_step_times_that_the_projection_needs(undisturbed):
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
    """A sweep with all kinds of failures; then the same call, then one with retry and all causes mended."""
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
    "weak-n2-seed0": (CRASHED, "killed by SIGSEGV: nothing said"),
    "linear-n2-seed0": (TIMED_OUT, "killed after its time limit of 5 s: nothing said"),
    "linear-n4-seed0": (CRASHED, "exit code 2: error: optim.base_batch must be smaller; got 9"),
    "weak-n1-seed1": (CRASHED, "exit code 0: nothing said"),
    "linear-n1-seed1": (CRASHED, "exit code 0: nothing said"),
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
    assert code == CELLS_FAILED


def test_a_record_that_cannot_be_read_is_a_crash_of_its_cell(failing):
    _, [(_, _, _, records), *_] = failing
    assert records["weak-n2-seed1"].outcome == CRASHED
    assert "must be a record of this program" in records["weak-n2-seed1"].message


def test_what_a_failed_process_left_is_kept(failing):
    _, [(_, _, _, records), *_] = failing
    assert records["weak-n1-seed0"].record is None
    hung = records["linear-n2-seed0"].record
    assert (hung.stop_reason, hung.epochs) == (stopping.SIGTERM, 2)


def test_divergence_is_a_result_and_the_others_are_as_if_nothing_had_failed(failing, undisturbed):
    _, [(_, watch, _, records), *_] = failing
    diverged = records["weak-n4-seed0"]
    assert (diverged.outcome, diverged.message, diverged.record.epochs) == ("diverged", "", 3)
    assert diverged.record.final_val_loss != diverged.record.final_val_loss
    for name in ("linear-n2-seed1", "weak-n4-seed1", "linear-n4-seed1"):
        assert records[name].outcome == "max_epochs"
        same_path = undisturbed[0].records()[name.replace("seed1", "seed0")]
        assert records[name].record.final_val_loss == same_path.record.final_val_loss
    assert watch.lines[-2].splitlines()[0] == "12 cells: 7 crashed, 3 max_epochs, 1 timed_out, 1 diverged"
    assert watch.lines[-1] == "--retry computes crashed and timed-out cells again"


def test_failed_cells_are_left_alone_without_retry(failing):
    _, [(_, first, _, before), (code, watch, starts, records), _] = failing
    assert (code, starts, watch.jobs) == (CELLS_FAILED, [], 0)
    assert list(records) == list(before)
    assert watch.states == first.states


def test_retry_computes_exactly_the_failed_ones_from_where_they_were(failing):
    fake, [(_, _, _, before), _, (code, watch, starts, records)] = failing
    failed = {record.path for record in before.values() if record.outcome in (CRASHED, TIMED_OUT)}
    assert sorted(name for name in starts if name != "step-times-n1") == sorted(failed)
    assert code == 0
    assert watch.lines[-1] == "12 cells: 11 max_epochs, 1 diverged"
    assert all(record.record.epochs == 4 for record in records.values() if record.outcome == "max_epochs")
    assert fake.orphans() == []


def test_an_arm_has_no_cell_on_more_devices_than_its_batch_has_samples(fake):
    code, watch = fake.sweep(grid(arms=("strong", "weak"), devices=(1, 40)))
    assert code == 0
    assert sorted(fake.records()) == ["strong-n1-seed0", "weak-n1-seed0", "weak-n40-seed0"]
    assert "strong on 40 devices: left out, a step of it has 32 samples" in watch.lines


def test_a_program_that_cannot_be_started_is_a_crash(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_jobs, "PROGRAM", (str(tmp_path / "nowhere"),))
    assert engine.sweep(grid(devices=(1,)), tmp_path / "sweep", Watch(), samples=640) == CELLS_FAILED
    record = SweepDir(tmp_path / "sweep").read(Cell("weak", 1, 0))
    assert record is not None
    assert record.message.startswith("could not be started: ")


def test_a_summary_counts_outcomes_and_names_the_failed():
    found = [cell_record(), cell_record(RECORD, "diverged"), cell_record(None, "crashed", "exit code 1: why")]
    assert summary(found, 5).splitlines() == [
        "5 cells: 1 target_reached, 1 diverged, 1 crashed, 2 not computed",
        "  weak-n2-seed0 crashed: exit code 1: why",
    ]
    assert summary([], 2) == "2 cells: 2 not computed"


# One after the other, or side by side


def overlapping(fake: Fake) -> int:
    """The most cells that ran at the same time."""
    most = running = 0
    for line in fake.script.with_name("events.txt").read_text().splitlines():
        running += {"start": 1, "end": -1}[line.split()[0]]
        most = max(most, running)
    return most


@pytest.mark.parametrize("jobs", [1, 2])
def test_as_many_cells_run_at_once_as_asked(fake, jobs):
    fake.wish(dict.fromkeys(PATHS, "slow"))
    assert fake.sweep(grid(jobs=jobs, arms=("weak",), devices=(2, 4)))[0] == 0
    assert overlapping(fake) == jobs


def test_measured_cells_run_each_on_its_own_devices_and_need_no_further_step_times(fake, monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")
    code, _ = fake.sweep(grid(mode="measured", jobs=1, devices=(1, 2)))
    assert code == 0
    assert sorted(fake.events("start")) == ["linear-n1-seed0", "linear-n2-seed0", "weak-n1-seed0", "weak-n2-seed0"]
    assert {record.mode for record in fake.records().values()} == {"measured"}
    assert not any(record.record.virtual for record in fake.records().values() if record.record)


@pytest.mark.parametrize(("mode", "jobs", "count"), [("measured", 1, "4"), ("virtual", 1, "3"), ("virtual", 2, "1")])
def test_a_process_sees_as_many_cpu_devices_as_it_computes_on(fake, monkeypatch, mode, jobs, count):
    """Virtual cells side by side share the cores; step times are still measured on one device."""
    monkeypatch.setattr(environment, "cores", lambda: 3)
    config = grid(mode=mode, jobs=jobs)
    timed = sweep_jobs.timing_job(config, SweepDir(fake.root), 1, {"batches": [8], "validation": []})
    assert timed.environment["JAX_NUM_CPU_DEVICES"] == "1"
    job = sweep_jobs.training_job(config, SweepDir(fake.root), Cell("weak", 4, 0))
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
    assert 'arm = "weak"' in saved
    assert "devices = 40" in saved
    assert job.environment["JAX_NUM_CPU_DEVICES"] == "40"


def test_failed_step_times_are_said_and_measured_again_by_the_next_call(fake):
    fake.wish({"step-times-n2": "crash"})
    code, watch = fake.sweep(throughputs())
    assert code == CELLS_FAILED
    log = SweepDir(fake.root).log("step-times-n2")
    assert watch.lines[-1] == f"step-times-n2 failed: what it was ({log})"
    fake.forget()
    fake.wish({})
    assert fake.sweep(throughputs())[0] == 0
    assert fake.events("start") == ["step-times-n2"]


def test_failed_step_times_of_a_virtual_sweep_leave_the_cells(fake):
    fake.wish({"step-times-n1": "segfault"})
    code, watch = fake.sweep(grid(devices=(1,)))
    assert code == CELLS_FAILED
    assert watch.lines[-1].startswith("step-times-n1 failed: nothing said")
    assert [record.outcome for record in fake.records().values()] == ["max_epochs"] * 2


SETTINGS = {"warmup_steps": 1, "steps": 2, "blocks": 3}


def test_a_batch_that_did_not_fit_is_not_tried_again_but_a_validation_of_that_size_is(tmp_path):
    """64 did not fit into training: that says nothing of a validation of 64."""
    path = tmp_path / "times.json"
    row = throughput.Timing(32, 32, 1.0, 1.0, 1.0)
    throughput.write(path, throughput.Timings(1, "cpu", False, 1, [row], [row], {"training of 64": "why"}, SETTINGS, {}, None))
    timing = TimingConfig(warmup_steps=1, steps=2, blocks=3)
    assert sweep_timing._measured(path, {"batches": [32, 64], "validation": [32]}, timing)
    assert not sweep_timing._measured(path, {"batches": [32, 128], "validation": []}, timing)
    assert not sweep_timing._measured(path, {"batches": [], "validation": [64]}, timing)
    assert not sweep_timing._measured(tmp_path / "none.json", {"batches": [], "validation": []}, timing)
    slower = dataclasses.replace(timing, blocks=9)
    assert not sweep_timing._measured(path, {"batches": [32], "validation": []}, slower), "other settings, other times"


# Checkpoints


def checkpoints(fake: Fake) -> list[str]:
    return sorted(path.parent.name for path in fake.root.glob("runs/*/checkpoints") if any(path.iterdir()))


def test_the_checkpoints_of_cells_that_ended_by_themselves_are_removed(fake):
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
    """Killed between a cell's record and the removal."""
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_remove_checkpoints", lambda *_: None)
        fake.sweep(grid(devices=(1,)))
    assert checkpoints(fake) == ["weak-n1-seed0"]
    fake.forget()
    assert fake.sweep(grid(devices=(1,)))[0] == 0
    assert (checkpoints(fake), fake.events("start")) == ([], [])


def test_a_raised_limit_begins_again_without_checkpoints_and_says_so(fake):
    config = grid(arms=("weak",), devices=(2,))
    fake.sweep(config)
    (SweepDir(fake.root).run("weak-n2-seed0").root / "trace").touch()
    code, watch = fake.sweep(dataclasses.replace(config, run=Config(stop=StopConfig(max_epochs=5))))
    assert code == 0
    assert watch.lines[0] == (
        "weak-n2-seed0 begins again: its checkpoints were removed when it had ended, see keep_checkpoints"
    )
    assert not (SweepDir(fake.root).run("weak-n2-seed0").root / "trace").exists()


def test_a_raised_limit_goes_on_from_checkpoints_that_were_kept(fake):
    config = grid(arms=("weak",), devices=(2,), keep_checkpoints=True)
    fake.sweep(config)
    (SweepDir(fake.root).run("weak-n2-seed0").root / "trace").touch()
    _, watch = fake.sweep(dataclasses.replace(config, run=Config(stop=StopConfig(max_epochs=5))))
    assert not any("begins again" in line for line in watch.lines)
    assert (SweepDir(fake.root).run("weak-n2-seed0").root / "trace").exists()


def test_a_cell_of_another_versions_rule_is_refused(fake):
    """A batch of 640 on 32 devices, but 32 times the rate, where 640 / 32 = 20."""
    config = grid(arms=("linear",), devices=(32,))
    fake.wish({"linear-n32-seed0": "clipped"})
    fake.sweep(config)
    path = SweepDir(fake.root).record(Cell("linear", 32, 0))
    with pytest.raises(InputError) as caught:
        fake.sweep(config)
    message = str(caught.value)
    assert message.startswith(f"{path} must have its arm's batch and learning rate, 640 and 0.021; got 640 and 0.0336, ")
    assert str(SweepDir(fake.root).run("linear-n32-seed0").root) in message


# GPUs


NVIDIA_SMI = """#!/bin/sh
echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaa)"
echo "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbb)"
"""


@pytest.mark.parametrize("executor", ["processes", "local"])
def test_cells_side_by_side_have_a_gpu_each(fake, tmp_path, monkeypatch, executor):
    """Two of two GPUs at first; then each cell has the one that the cell before it on that GPU has left."""
    if executor == "local":
        pytest.importorskip("submitit")
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake.wish({"weak-n2-seed0": "meet", "weak-n4-seed0": "meet"})
    assert fake.sweep(grid(executor=executor, arms=("weak",), devices=(2, 4)))[0] == 0
    assert sorted(path.read_text() for path in fake.root.glob("runs/weak-*/gpu")) == ["GPU-aaa", "GPU-bbb"]


def test_a_cell_alone_sees_all_gpus(fake, tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert fake.sweep(grid(jobs=1, arms=("weak",), devices=(2,)))[0] == 0
    assert [path.read_text() for path in fake.root.glob("runs/weak-*/gpu")] == ["all"]


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
    "run.loss": (grid(run=changed(configuration(), loss="mae")), "run.loss was 'msle', now 'mae'"),
    "mode": (grid(mode="measured", jobs=1), "mode was 'virtual', now 'measured'"),
    "more than three": (grid(run=small(parallel__devices=0)), "; and "),
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
    assert message.count(" was ") <= 3
    assert (claimed / "sweep.toml").read_text() == before


def test_a_broken_saved_configuration_is_refused(claimed):
    (claimed / "sweep.toml").write_text("a b")
    with pytest.raises(InputError, match=r"sweep\.toml must be TOML"):
        engine.sweep(grid(), claimed, Watch(), samples=640)


def test_a_larger_grid_computes_what_is_new_only(fake):
    assert fake.sweep(grid(devices=(1, 2)))[0] == 0
    fake.forget()
    code, watch = fake.sweep(grid(devices=(4, 2, 1), seeds=(0,), cell_time_limit_s=100.0, jobs=1))
    assert (code, watch.begun) == (0, ["weak-n4-seed0", "linear-n4-seed0"])
    assert sorted(fake.records()) == sorted(NAMES)
    assert "devices = [4, 2, 1]" in SweepDir(fake.root).config.read_text()


def test_a_raised_limit_goes_on_with_the_cells_that_it_had_ended_only(fake):
    fake.wish({"weak-n2-seed0": "diverge"})
    assert fake.sweep(grid(devices=(1, 2)))[0] == 0
    fake.forget()
    longer = Config(stop=StopConfig(max_epochs=5))
    code, watch = fake.sweep(grid(devices=(1, 2), run=longer, jobs=1))
    assert (code, watch.begun) == (0, ["weak-n1-seed0", "linear-n2-seed0"])
    assert "max_epochs = 5" in SweepDir(fake.root).config.read_text()


@pytest.mark.parametrize(("patience", "begun"), [(2, []), (3, ["weak-n1-seed0"])])
def test_a_changed_patience_judges_the_cells_that_stalled_again(fake, patience, begun):
    """Each loss is a sixth of the one before: two epochs gain 35 of 36, not 99 %, so a patience of 2 ends after three."""
    stop = StopConfig(max_epochs=4, patience_epochs=2, patience_gain=0.99)
    config = grid(arms=("weak",), devices=(1,), keep_checkpoints=True, run=Config(stop=stop))
    assert fake.sweep(config)[0] == 0
    folder, record = SweepDir(fake.root), fake.records()["weak-n1-seed0"]
    assert record.record is not None
    run, stalled = folder.run(record.path), dataclasses.replace(record.record, stop_reason="stalled", epochs=3)
    write_history(run.history, run.read_rows()[:3])
    write_text(run.record, to_json(stalled))
    write_text(folder.record(record.cell), to_json(dataclasses.replace(record, outcome="stalled", record=stalled)))
    fake.forget()
    _, watch = fake.sweep(dataclasses.replace(config, run=Config(stop=dataclasses.replace(stop, patience_epochs=patience))))
    assert watch.begun == begun


def test_a_new_cell_on_a_known_path_gets_its_record_from_it(fake):
    assert fake.sweep(grid(arms=("weak",), devices=(1,)))[0] == 0
    assert fake.sweep(grid(arms=("weak", "strong"), devices=(1, 2)))[0] == 0
    strong = fake.records()["strong-n2-seed0"]
    assert strong.path == "weak-n1-seed0"
    assert strong.record is not None
    assert (strong.record.device_batch, strong.record.epochs) == (16, 4)


@pytest.mark.parametrize("place", ["/proc/sweep", "{file}/sweep"])
def test_a_work_directory_that_cannot_be_written_is_refused(tmp_path, place):
    (tmp_path / "file").write_text("")
    root = Path(place.format(file=tmp_path / "file"))
    with pytest.raises(InputError) as caught:
        engine.sweep(grid(), root, Watch(), samples=640)
    message = str(caught.value)
    assert message.startswith(f"workdir must be a folder that can be written; got {root} (")
    assert message.endswith("): give another with --workdir")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_work_directory_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match=r"got .* \(Permission denied\)"):
        engine.sweep(grid(), tmp_path / "sweep", Watch(), samples=640)


# Interruptions


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_an_interrupted_sweep_ends_its_cells_and_the_next_call_completes_it(fake, undisturbed, number, code):
    fake.wish({"weak-n2-seed0": "hang"})

    class Interrupting(Watch):
        """By the time that the third cell starts, one is done and another, without end, is ready to be told to."""

        def started(self, name):
            super().started(name)
            if name == "linear-n2-seed0":
                wait_until(lambda: fake.events("hang"))
                os.kill(os.getpid(), number)

    found, watch = fake.sweep(grid(), display=Interrupting())
    assert found == code
    assert engine.interrupted(found)
    assert watch.states["weak-n2-seed0"] == "interrupted"
    assert fake.events("sigterm") == ["weak-n2-seed0"]
    assert "weak-n2-seed0" not in fake.records()
    assert {"weak-n1-seed0", "linear-n1-seed0"} <= set(fake.records())
    assert not {"weak-n4-seed0", "linear-n4-seed0"} & set(fake.events("start"))
    assert watch.lines[-1] == "the same command goes on where it stopped"
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
    """Each time two cells hang in the middle, the only ones left to run at that moment, when SIGKILL comes."""
    for hanging, done in (
        (("weak-n2-seed0", "linear-n2-seed0"), {"weak-n1-seed0", "linear-n1-seed0"}),
        (("linear-n4-seed0", "weak-n4-seed0"), {"weak-n1-seed0", "linear-n1-seed0", "weak-n2-seed0", "linear-n2-seed0"}),
    ):
        fake.wish(dict.fromkeys(hanging, "hang"))
        process = fake.start(grid())
        wait_until(lambda names=hanging: set(names) <= set(fake.events("hang")))
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


# What follows from a grid


def test_the_grids_numbers_before_anything_is_run():
    """640 samples. Strong on 5: 32 = 5 × 7 - 3, 20 steps. Linear with warmup on 5: 160 = 5 × 32, 4 steps, 5 × 0.001."""
    run = dataclasses.replace(Config(), optim=dataclasses.replace(Config().optim, learning_rate=0.001))
    head, *rows = dry_run(SweepConfig(arms=("strong", "weak", "linear-warmup"), devices=(1, 5), run=run), 640)
    assert head == COLUMNS
    assert rows == [
        ("strong-n1-seed0", "32", "32", "0", "0.001", "20", ""),
        ("weak-n1-seed0", "32", "32", "0", "0.001", "20", "strong-n1-seed0"),
        ("linear-warmup-n1-seed0", "32", "32", "0", "0.001", "20", "strong-n1-seed0"),
        ("strong-n5-seed0", "32", "7", "3", "0.001", "20", "strong-n1-seed0"),
        ("weak-n5-seed0", "160", "32", "0", "0.001", "4", ""),
        ("linear-warmup-n5-seed0", "160", "32", "0", "0.001 → 0.005 = 5 η in 5 epochs", "4", ""),
    ]


def test_a_data_set_smaller_than_the_batch_is_one_step_of_all_of_it():
    """100 of the 128 samples that weak asks for on 4: 25 a device. 100 on 3 are 34 a device with 2 empty slots."""
    _, *rows = dry_run(SweepConfig(arms=("weak",), devices=(3, 4)), 100)
    assert [row[1:4] + row[5:6] for row in rows] == [("96", "32", "0", "2"), ("100 (clipped from 128)", "25", "0", "1")]
    _, *rows = dry_run(SweepConfig(arms=("weak",), devices=(3,)), 88)
    assert rows[0][1:4] == ("88 (clipped from 96)", "30", "2")


def test_the_linear_arm_on_32_devices_with_574_samples():
    """A batch of 574 rather than 1024, and 574 / 32 = 17.94 times the rate, rather than 32 times."""
    _, row = dry_run(SweepConfig(arms=("linear",), devices=(32,)), 574)
    assert row == ("linear-n32-seed0", "574 (clipped from 1024)", "18", "2", "0.0188344 = 17.94 η", "1", "")


@pytest.mark.parametrize(("arm", "samples", "batch"), [("strong", 640, 32), ("weak", 10, 10)])
def test_more_devices_than_samples_in_a_step_are_refused(arm, samples, batch):
    with pytest.raises(InputError, match=rf"at most the samples in a step.*, {batch}; got \(?40"):
        dry_run(SweepConfig(arms=(arm,), devices=(40,)), samples)


# Whole sweeps, with the program that cells run in earnest

RUN = small(parallel__devices=0, stop__max_epochs=2, checkpoint__every_epochs=5)
TIMING = TimingConfig(warmup_steps=1, steps=2, blocks=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two arms on one and on two virtual devices: strong-n1, which three cells share, and weak-n2."""
    root = tmp_path_factory.mktemp("whole") / "sweep"
    config = SweepConfig(arms=("strong", "weak"), devices=(1, 2), timing=TIMING, run=RUN)
    out = Console(file=io.StringIO(), force_terminal=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")  # the second run then compiles half as much
        code = engine.sweep(config, root, PlainSweep(out), samples=22)
    printed = out.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    return config, SweepDir(root), code, printed


def comparable(record) -> dict[str, object]:
    clocks = {"clocks", "git_commit", "run_id"}
    return {key: value for key, value in dataclasses.asdict(record).items() if key not in clocks and "loss" not in key}


@pytest.mark.slow
def test_a_sweep_of_real_runs_has_the_results_of_each_run_alone(whole, tmp_path):
    config, folder, code, printed = whole
    assert code == 0, printed
    assert printed.splitlines()[0] == "cells done: 0, runs to compute: 2"
    assert "4 cells: 4 max_epochs" in printed
    for cell in cells(config):
        run = run_config(config, cell)
        run = dataclasses.replace(run, parallel=dataclasses.replace(run.parallel, devices=environment.device_a_core(run)))
        alone = loop.run(run, tmp_path / cell.name, Recorder())
        found = folder.read(cell)
        assert found is not None
        assert found.record is not None
        assert found.outcome == alone.stop_reason
        assert comparable(found.record) == comparable(alone)
        for name in ("final_train_loss", "final_val_loss", "best_val_loss"):
            assert getattr(found.record, name) == pytest.approx(getattr(alone, name), rel=1e-6)
        assert set(found.record.clocks) == set(alone.clocks)
    assert sorted(path.name for path in (folder.root / "runs").iterdir()) == [
        "step-times-n1", "strong-n1-seed0", "weak-n2-seed0",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_sweep_of_real_runs_measures_the_step_times_of_its_projection(whole):
    """Batches a device: 8 of strong on 1 and of weak, 4 of strong on 2; validation: 6 volumes on 1, 3 on 2."""
    _, folder, _, _ = whole
    found = throughput.read(folder.step_times(1))
    assert found is not None
    assert (found.devices, found.failed, found.oversubscribed) == (1, {}, False)
    assert [row.samples for row in found.train] == [4, 8]
    assert [row.samples for row in found.validation] == [3, 6]
    assert all(0 < row.low_s <= row.median_s <= row.high_s for row in (*found.train, *found.validation))


@pytest.mark.slow
def test_a_measured_cell_runs_on_its_devices(tmp_path, whole):
    _, folder, _, _ = whole
    config = SweepConfig(mode="measured", arms=("weak",), devices=(2,), run=RUN)
    assert engine.sweep(config, tmp_path / "sweep", Watch(), samples=22) == 0
    found, virtual = (place.read(Cell("weak", 2, 0)) for place in (SweepDir(tmp_path / "sweep"), folder))
    assert found is not None
    assert virtual is not None
    assert found.record is not None
    assert virtual.record is not None
    assert (found.mode, found.record.devices, found.record.virtual, found.record.oversubscribed) == ("measured", 2, False, True)
    assert (found.record.global_batch, found.record.device_batch) == (16, 8)
    # ReLU: equal but for rounding, and for inputs within rounding of zero; here 4 steps.
    assert found.record.final_val_loss == pytest.approx(virtual.record.final_val_loss, rel=1e-4)

"""Faults of a sweep: a killed worker, a full memory, a full disk. It ends with the results of an undisturbed one."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gmmae.training.records import read_history
from tests.faults.disks import fill, mount_disk, unmount
from tests.faults.greedy_workload import MARK, TELL
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent.parent
EPOCHS, EVERY = 100, 20
CONFIG = f"""
scaling = ["strong", "weak", "linear"]
devices = [1, 2, 4]

[timing]
warmup_steps = 1
steps = 1
blocks = 1

[run.checkpoint]
every_epochs = {EVERY}
min_interval_s = 0

[run.stop]
max_epochs = {EPOCHS}

[run.log]
tensorboard = false
"""
"""Five computed runs for nine of the grid."""


class Sweep:
    """One work directory and the commands on it, all the same."""

    def __init__(self, folder: Path):
        self.folder, self.workdir = folder, folder / "disk" / "work"
        (folder / "sweep.toml").write_text(CONFIG, encoding="utf-8")
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "sweep.py", "--config", str(self.folder / "sweep.toml"), "--workdir", str(self.workdir)]
        command += ["--run.workload", str(Path(__file__).with_name("greedy_workload.py"))]
        environment = os.environ | {MARK: str(self.folder)}
        with (self.folder / "output.txt").open("a") as file:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, text=True
            )

    def finish(self) -> int:
        assert self.process
        return self.process.wait(300)

    def said(self) -> str:
        return (self.folder / "output.txt").read_text(errors="replace")

    def processes(self) -> list[int]:
        """The processes of this sweep, the command among them."""
        mark = f"{MARK}={self.folder}".encode()
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and mark in _read(name, "environ").split(b"\0")]

    def worker(self) -> int:
        """The process that trains."""
        [found] = [pid for pid in self.processes() if b"gmmae.sweep.worker" in _read(pid, "cmdline")]
        return found

    def wait_for(self, epochs: int, run: int) -> str:
        """Waits for so many epochs of the run of a number, from 0 in the order in which they begin; returns its name."""
        names: list[str] = []

        def done() -> bool:
            histories = sorted(self.workdir.glob("runs/*/history.csv"))
            names.extend(path.parent.name for path in histories if path.parent.name not in names)
            return run < len(names) and len(read_history(self.workdir / "runs" / names[run] / "history.csv")) >= epochs

        wait_until(done, 240)
        return names[run]

    def records(self) -> dict[str, bytes]:
        """Of the runs that have ended."""
        found = {path.parent.name: path.read_bytes() for path in self.workdir.glob("runs/*/record.json")}
        return {name: content for name, content in found.items() if json.loads(content)["stop_reason"] == "max_epochs"}

    def results(self) -> dict[str, object]:
        """The records and the histories, without seconds."""
        found: dict[str, object] = {}
        for name, content in self.records().items():
            found[f"{name}.json"] = {key: value for key, value in json.loads(content).items() if not _is_time(key)}
        for path in sorted(self.workdir.glob("runs/*/history.csv")):
            rows = [row._asdict() for row in read_history(path)]
            found[path.parent.name] = [{key: repr(value) for key, value in row.items() if not _is_time(key)} for row in rows]
        return found

    def kill(self) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process:
            self.process.wait()


def _is_time(name: str) -> bool:
    return name == "clocks" or name.endswith("_s") or name == "run_id"


def _read(pid: int | str, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, object]:
    sweep = Sweep(tmp_path_factory.mktemp("undisturbed"))
    sweep.start()
    assert sweep.finish() == 0, sweep.said()
    return sweep.results()


@pytest.fixture
def sweep(tmp_path) -> Iterator[Sweep]:
    made = Sweep(tmp_path)
    yield made
    made.kill()
    if (tmp_path / "disk").is_mount():
        unmount(tmp_path / "disk")


def kill_worker(sweep: Sweep) -> None:
    os.kill(sweep.worker(), signal.SIGKILL)


def take_memory(sweep: Sweep) -> None:
    """The next validation asks for more memory than there is."""
    (sweep.folder / TELL).touch()
    wait_until(lambda: not (sweep.folder / TELL).exists())


@pytest.mark.parametrize(
    ("strike", "says"), [(kill_worker, "killed by SIGKILL"), (take_memory, "exit code 1")], ids=["killed", "out of memory"]
)
def test_a_run_whose_worker_dies_goes_on_in_a_new_one(sweep, undisturbed, strike: Callable[[Sweep], None], says):
    sweep.start()
    name = sweep.wait_for(EVERY + 5, run=2)
    strike(sweep)
    assert sweep.finish() == 0, sweep.said()
    assert re.search(rf"^{name} has lost its process, {says}", sweep.said(), re.MULTILINE)
    assert "resumed after epoch" in (sweep.workdir / "runs" / name / "log.txt").read_text(errors="replace")
    assert sweep.results() == undisturbed
    assert sweep.processes() == []


def test_a_sweep_ends_with_its_workers_and_the_same_command_goes_on(sweep, undisturbed):
    sweep.start()
    sweep.wait_for(EVERY + 5, run=2)
    worker = sweep.worker()
    kept = sweep.records()
    sweep.process.kill()
    sweep.process.wait()
    wait_until(lambda: worker not in sweep.processes(), 10)
    sweep.start()
    assert sweep.finish() == 0, sweep.said()
    assert {name: sweep.records()[name] for name in kept} == kept
    assert sweep.results() == undisturbed


def test_a_full_disk_ends_a_sweep_and_the_same_command_goes_on(sweep, undisturbed):
    try:
        mount_disk(sweep.workdir.parent)
    except OSError as error:
        sweep.workdir.parent.rmdir()
        pytest.skip(f"a disk must be mounted; that failed with {error}")
    sweep.start()
    sweep.wait_for(5, run=2)
    fill(sweep.workdir.parent)
    assert sweep.finish() == 74, sweep.said()
    assert re.search(r"^error: .*same command", sweep.said(), re.MULTILINE)
    time.sleep(1)
    assert sweep.processes() == []
    kept = sweep.records()
    (sweep.workdir.parent / "filler").unlink()
    sweep.start()
    assert sweep.finish() == 0, sweep.said()
    assert {name: sweep.records()[name] for name in kept} == kept
    assert sweep.results() == undisturbed

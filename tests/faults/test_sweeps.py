"""Faults of a sweep: its command is killed, or its disk is full. It ends with the results of an undisturbed one.

A killed worker is in tests/sweep/test_whole.py.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gmmae.config.schema import changed
from gmmae.config.toml import to_toml
from gmmae.sweep.grid import SweepConfig, TimingConfig
from gmmae.training.records import read_history
from tests.faults.disks import fill, mount_disk, unmount
from tests.faults.test_runs import CONFIG as CHEAP
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent.parent
MARK = "GMMAE_FAULTS_SWEEP"
"""An environment variable of all processes of a sweep, with the sweep's folder. No worker names it in its command line."""
EPOCHS, EVERY = 100, 20
RUN = changed(
    CHEAP, stop__max_epochs=EPOCHS, checkpoint__every_epochs=EVERY, checkpoint__keep=2, checkpoint__min_interval_s=0.0
)
TIMING = TimingConfig(warmup_steps=1, steps=1, blocks=1)
CONFIG = SweepConfig(scaling=("strong", "weak", "linear"), devices=(1, 2, 4), timing=TIMING, run=RUN)
"""Five computed runs for nine of the grid."""


class Sweep:
    """One work directory and the commands on it, all the same."""

    def __init__(self, folder: Path):
        self.folder, self.workdir = folder, folder / "disk" / "work"
        (folder / "sweep.toml").write_text(to_toml(CONFIG), encoding="utf-8")
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "sweep.py", "--config", str(self.folder / "sweep.toml"), "--workdir", str(self.workdir)]
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

    def rows(self) -> dict[str, list[dict[str, str]]]:
        """The histories so far, without seconds."""
        return {
            path.parent.name: [{key: repr(value) for key, value in _timeless(row._asdict())} for row in read_history(path)]
            for path in self.workdir.glob("runs/*/history.csv")
        }

    def records(self) -> dict[str, bytes]:
        """Of the runs that have ended."""
        found = {path.parent.name: path.read_bytes() for path in self.workdir.glob("runs/*/record.json")}
        return {name: content for name, content in found.items() if json.loads(content)["stop_reason"] == "max_epochs"}

    def results(self) -> tuple[object, object]:
        """The records and the histories, without seconds."""
        return {name: dict(_timeless(json.loads(content))) for name, content in self.records().items()}, self.rows()

    def kill(self) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process:
            self.process.wait()


def _timeless(values: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in values.items() if key not in ("clocks", "run_id") and not key.endswith("_s")]


def _read(pid: int | str, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[object, object]:
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


@pytest.mark.parametrize("fault", ["killed", "disk full"])
def test_a_sweep_ends_with_its_workers_and_the_same_command_goes_on(sweep, undisturbed, fault):
    disk = sweep.workdir.parent
    if fault == "disk full":
        try:
            mount_disk(disk)
        except OSError as error:
            disk.rmdir()
            pytest.skip(f"a disk must be mounted; that failed with {error}")
    sweep.start()
    wait_until(lambda: sum(map(len, sweep.rows().values())) > 2 * EPOCHS + EVERY, 240)  # amid the third run
    if fault == "killed":
        sweep.process.kill()
        assert sweep.finish() == -signal.SIGKILL
    else:
        fill(disk)
        assert sweep.finish() == 74, sweep.said()
        assert re.search(r"^error: .*same command", sweep.said(), re.MULTILINE)
    wait_until(lambda: sweep.processes() == [], 10)
    kept = sweep.records()
    (disk / "filler").unlink(missing_ok=True)
    sweep.start()
    assert sweep.finish() == 0, sweep.said()
    assert {name: sweep.records()[name] for name in kept} == kept
    assert sweep.results() == undisturbed

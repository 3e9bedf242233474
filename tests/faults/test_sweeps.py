"""Faults of a sweep. It ends with the results of an undisturbed one, at the latest with the same command.

`make test-faults` injects all of them, with one job and with three, and prints a row of a table for each.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gmmae.config.schema import changed
from gmmae.config.toml import to_toml
from gmmae.sweep.grid import SweepConfig, TimingConfig
from gmmae.sweep.runs import SweepDir
from gmmae.system.locks import STALE_S, this_boot
from gmmae.training.workdir import WorkDir
from tests.faults.damages import HISTORY, damage_newest
from tests.faults.disks import fill, mount_disk, unmount
from tests.faults.test_runs import ALL, KILL, STOP, TERM, empty
from tests.faults.test_runs import CONFIG as CHEAP
from tests.launched import ROOT, processes_with
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
MARK = "GMMAE_FAULTS_SWEEP"
"""An environment variable of all processes of a sweep, with the sweep's folder. No worker names it in its command line."""
EPOCHS, EVERY = 100, 20
RUN = changed(
    CHEAP, stop__max_epochs=EPOCHS, checkpoint__every_epochs=EVERY, checkpoint__keep=2, checkpoint__min_interval_s=0.0
)
TIMING = TimingConfig(warmup_steps=1, steps=1, blocks=1)
CONFIG = SweepConfig(scaling=("strong", "weak", "linear"), devices=(1, 2), timing=TIMING, run=RUN)
"""Three computed runs for six of the grid."""
WITHOUT_FLOCK = """
import errno, fcntl
def flock(file, operation):
    raise OSError(errno.ENOLCK, "No locks available")
fcntl.flock = flock
"""


class Sweep:
    """One work directory and the commands on it, all the same."""

    def __init__(self, folder: Path, jobs: int):
        self.folder, self.workdir, self.jobs = folder, folder / "disk" / "work", jobs
        (folder / "sweep.toml").write_text(to_toml(CONFIG))
        self.environment = os.environ | {MARK: str(folder)}
        self.process: subprocess.Popen[bytes] | None = None

    def command(self, *options: str):
        words = ["--config", self.folder / "sweep.toml", "--workdir", self.workdir, "--jobs", str(self.jobs), *options]
        with (self.folder / "output.txt").open("a") as file:
            command = [sys.executable, "sweep.py", *words]
            return subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=file, stderr=subprocess.STDOUT)

    def start(self, *options: str):
        self.process = self.command(*options)

    def finish(self):
        assert self.process
        return self.process.wait(300)

    def send(self, *numbers: signal.Signals):
        """To the command alone."""
        assert self.process
        for number in numbers:
            self.process.send_signal(number)
            time.sleep(1.0)

    def worker(self, died: int = 0):
        """A run that is computed, and its process, which is the next one after so many deaths."""
        folder, found = SweepDir(self.workdir), []

        def look():
            attempts = {path.parent.name: folder.read_attempt(path.parent.name) for path in folder.runs.glob("*/attempt.json")}
            found[:] = [(name, one.pid) for name, one in attempts.items() if one and one.deaths == died and not one.how]
            return found

        wait_until(look, 60)
        return found[0]

    def hit(self, number: signal.Signals, died: int = 0):
        """Sends a signal to a worker."""
        os.kill(self.worker(died)[1], number)

    def said(self):
        return (self.folder / "output.txt").read_text(errors="replace")

    def processes(self):
        """The processes of this sweep, the command among them."""
        return processes_with("environ", f"{MARK}={self.folder}\0")

    def rows(self):
        """The histories so far, without seconds."""
        return {
            path.parent.name: [repr(_timeless(row._asdict())) for row in WorkDir(path.parent).read_rows()]
            for path in self.workdir.glob("runs/*/history.csv")
        }

    def epochs(self):
        return sum(map(len, self.rows().values()))

    def records(self):
        """Of the runs that have ended."""
        found = {path.parent.name: path.read_bytes() for path in self.workdir.glob("runs/*/record.json")}
        return {name: content for name, content in found.items() if json.loads(content)["stop_reason"] == "max_epochs"}

    def results(self):
        """The records and the histories, without seconds."""
        return {name: _timeless(json.loads(content)) for name, content in self.records().items()}, self.rows()

    def begun(self):
        """The folder of a run that has begun and not ended."""
        return next(self.workdir / "runs" / name for name in sorted(self.rows()) if name not in self.records())

    def kill(self):
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process:
            self.process.wait()


def _timeless(values: dict[str, Any]):
    left_out = ("clocks", "run_id", "git_commit")
    return {key: value for key, value in values.items() if key not in left_out and not key.endswith("_s")}


def third_run(sweep: Sweep):
    """With three jobs all are under way then."""
    return sweep.epochs() > 2 * EPOCHS + EVERY


def between_runs(sweep: Sweep):
    return bool(sweep.records())


def waits(sweep: Sweep):
    return "waiting for process 1 on gone" in sweep.said()


def twice(sweep: Sweep):
    sweep.hit(KILL)
    sweep.hit(KILL, died=1)


def second_call(sweep: Sweep):
    sweep.hit(STOP)
    assert sweep.command().wait(120) == 2, sweep.said()
    sweep.hit(signal.SIGCONT)


def later(sweep: Sweep):
    """Five minutes later: nobody has touched a lock."""
    for owner in sweep.workdir.rglob("*.owner"):
        os.utime(owner, (then := time.time() - 2 * STALE_S, then))


def boot(sweep: Sweep):
    for file in [*sweep.workdir.rglob("*.owner"), *sweep.workdir.glob("runs/*/attempt.json")]:
        file.write_text(file.read_text().replace(this_boot(), "an earlier one"))
    later(sweep)


def without_flock(sweep: Sweep):
    (sweep.folder / "sitecustomize.py").write_text(WITHOUT_FLOCK)
    sweep.environment["PYTHONPATH"] = f"{sweep.folder}:{os.environ.get('PYTHONPATH', '')}"


def lost_host(sweep: Sweep):
    owner = sweep.workdir / "runs/weak-n2-seed0/.turn.owner"
    owner.parent.mkdir(parents=True)
    owner.write_text("process 1 on gone\nanother kernel")


def spoil(sweep: Sweep, change: Callable[[Path], object]):
    history = sweep.begun() / "history.csv"
    history.with_name("kept.csv").write_bytes(history.read_bytes())
    change(history)


def put_back(sweep: Sweep):
    [kept] = sweep.workdir.glob("runs/*/kept.csv")
    kept.rename(kept.with_name("history.csv"))


INT = signal.SIGINT


class Fault(NamedTuple):
    """A fault of a sweep, and how it has to bear it.

    Attributes:
      strike: does it.
      code: with which the command ends; 0 where it goes on by itself.
      then: happens before the same command.
      refused: the exit code of the same command until `mend`, where that is needed.
      retry: whether the command must be told to try a failed run again.
      when: it strikes.
      before: is done before the first command.
      disk: whether a disk must be mounted for it.
    """

    strike: Callable[[Sweep], object]
    code: int
    then: Callable[[Sweep], object] = lambda sweep: None
    refused: int = 0
    mend: Callable[[Sweep], object] = lambda sweep: None
    retry: bool = False
    when: Callable[[Sweep], bool] = third_run
    before: Callable[[Sweep], object] = lambda sweep: None
    disk: bool = False


KILLED = Fault(lambda sweep: sweep.send(KILL), -KILL)
FULL = Fault(lambda sweep: fill(sweep.workdir.parent), 74, then=empty, disk=True)
FAULTS: dict[str, Fault] = {
    "the command: SIGKILL": KILLED,
    "a full disk in a run": FULL,
    "a full disk between two runs": FULL._replace(when=between_runs),
}
if ALL:  # other tests hold most of these, with runs of a stand-in
    FAULTS |= {
        "the command: SIGTERM": Fault(lambda sweep: sweep.send(TERM), 143),
        "the command: Ctrl-C": Fault(lambda sweep: sweep.send(INT), 130),
        "the command: Ctrl-C twice": Fault(lambda sweep: sweep.send(INT, INT), 130),
        "a worker: SIGKILL, also as by a lack of memory": Fault(lambda sweep: sweep.hit(KILL), 0),
        "a worker: SIGTERM": Fault(lambda sweep: sweep.hit(TERM), 0),
        "a worker: SIGSTOP, then Ctrl-C twice": Fault(lambda sweep: (sweep.hit(STOP), sweep.send(INT, INT)), 130),
        "a worker: SIGKILL twice in a run": Fault(twice, 4, retry=True),
        "a second call in the folder": Fault(second_call, 0),
        "all killed, and the machine started again": Fault(Sweep.kill, -KILL, then=boot),
        "no flock; the command: SIGKILL": KILLED._replace(before=without_flock),
        "no flock; all killed, five minutes later": Fault(Sweep.kill, -KILL, then=later, before=without_flock),
        "no flock; a second call in the folder": Fault(second_call, 0, before=without_flock),
        "a host that has gone with a run's lock": Fault(later, 0, when=waits, before=lost_host),
        "the newest checkpoint damaged": KILLED._replace(then=lambda sweep: damage_newest(sweep.begun())),
        **{
            what: KILLED._replace(then=lambda sweep, change=change: spoil(sweep, change), refused=4, mend=put_back, retry=True)
            for what, change in HISTORY.items()
        },
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """By the number of jobs, which divide the cores and so round differently."""

    @cache
    def of(jobs: int):
        sweep = Sweep(tmp_path_factory.mktemp("undisturbed"), jobs)
        sweep.start()
        assert sweep.finish() == 0, sweep.said()
        return sweep.results()

    return of


@pytest.fixture
def sweep(tmp_path, request):
    made = Sweep(tmp_path, request.param)
    yield made
    made.kill()
    if (tmp_path / "disk").is_mount():
        unmount(tmp_path / "disk")


@pytest.mark.parametrize("sweep", [1, 3] if ALL else [1], indirect=True, ids="{}-jobs".format)
@pytest.mark.parametrize("name", FAULTS)
def test_a_sweep_ends_with_its_workers_and_goes_on_at_the_latest_with_the_same_command(sweep, undisturbed, name):
    fault = FAULTS[name]
    if fault.disk:
        mount_disk(sweep.workdir.parent)
    fault.before(sweep)
    sweep.start()
    wait_until(lambda: fault.when(sweep), 240)
    struck = time.monotonic()
    fault.strike(sweep)
    assert sweep.finish() == fault.code, sweep.said()
    took_s = time.monotonic() - struck
    assert bool(re.search("(same|the) command", sweep.said())) == (fault.code not in (0, 4, -KILL)), sweep.said()
    wait_until(lambda: sweep.processes() == [], 10)
    kept, done = sweep.records(), sweep.epochs()
    fault.then(sweep)
    if fault.refused:
        sweep.start()
        assert sweep.finish() == fault.refused, sweep.said()
        assert "history.csv must begin with the" in sweep.said()
    fault.mend(sweep)
    sweep.start(*["--retry"] * fault.retry)
    assert sweep.finish() == 0, sweep.said()
    assert {name: sweep.records()[name] for name in kept} == kept
    assert sweep.results() == undisturbed(sweep.jobs)
    again = "0" + f", after {fault.refused} and mending" * bool(fault.refused) + " with --retry" * fault.retry
    print(f"| {name} | {sweep.jobs} | {fault.code} | {took_s:.1f} s | {done} | {again} |")

"""Faults of a sweep, whose workers compute one run after the other: a killed worker, a full memory, a full disk."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from gmmae.training.records import read_history
from tests.faults.disks import fill, keep_full, make_room
from tests.faults.greedy_workload import MARK, TELL
from tests.faults.runs import PATIENCE_S, ROOT, MissedError
from tests.faults.trials import Trial, clear, no_disk

EPOCHS, EVERY = 100, 20
STRUCK_AFTER = range(EVERY + 5, EPOCHS - 30)
"""Epochs of a run before its worker is struck, of which one is drawn. A checkpoint is behind it."""
END_S = 10.0
"""Seconds from the end of a sweep's command until none of its processes is left."""
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

Results = Mapping[str, object]
"""The records of runs and the rows of histories, without seconds, by file."""


class Sweep:
    """One work directory and the commands on it, all the same.

    Attributes:
      disk: the folder of `workdir`, on which a small disk can be mounted.
      begun: the computed runs with an epoch, in the order in which they were first seen.
    """

    def __init__(self, folder: Path, compiled: Path, rng: Random):
        self.folder, self._compiled, self.rng = folder, compiled, rng
        self.disk = folder / "disk"
        self.workdir = self.disk / "work"
        self.disk.mkdir(parents=True)
        (folder / "sweep.toml").write_text(CONFIG, encoding="utf-8")
        self.outputs: list[Path] = []
        self.begun: list[str] = []
        self._process: subprocess.Popen | None = None

    def start(self, *options: str) -> None:
        """Starts the sweep's command."""
        self.outputs.append(self.folder / f"output_{len(self.outputs)}.txt")
        command = [sys.executable, "sweep.py", "--config", str(self.folder / "sweep.toml"), "--workdir", str(self.workdir)]
        command += ["--run.workload", str(Path(__file__).with_name("greedy_workload.py")), *options]
        environment = os.environ | {
            MARK: str(self.folder),
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self._compiled),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        with self.outputs[-1].open("wb") as file:
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)

    def finish(self) -> int | None:
        """Returns the exit code of the command, or None if it does not end."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(PATIENCE_S)
        return None

    def said(self) -> str:
        """Returns what the command has printed."""
        return self.outputs[-1].read_text(encoding="utf-8", errors="replace")

    def processes(self) -> list[int]:
        """Returns the processes of this sweep, the command among them."""
        mark = f"{MARK}={self.folder}".encode()
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and mark in _read(name, "environ").split(b"\0")]

    def trainer(self) -> int:
        """Returns the process that trains: a worker that another process of the worker watches."""
        workers = {pid for pid in self.processes() if b"gmmae.sweep.worker" in _read(pid, "cmdline")}
        found = [pid for pid in workers if _parent(pid) in workers]
        if len(found) != 1:
            raise MissedError(f"one process must train; got {found} of {sorted(workers)}")
        return found[0]

    def epochs(self, name: str) -> int:
        """Returns the number of rows in a run's history."""
        with suppress(OSError):
            return max(0, (self.workdir / "runs" / name / "history.csv").read_bytes().count(b"\n") - 1)
        return 0

    def log(self, name: str) -> str:
        """Returns what a run has printed."""
        return (self.workdir / "runs" / name / "log.txt").read_text(encoding="utf-8", errors="replace")

    def records(self) -> dict[str, bytes]:
        """Returns the records that the sweep has written."""
        return {path.name: path.read_bytes() for path in (self.workdir / "records").glob("*.json")}

    def wait_for_run(self, number: int) -> str:
        """Waits until that number of runs have begun. Returns the last of them."""
        self.wait_until(lambda: len(self._note_begun()) >= number)
        return self.begun[number - 1]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition holds of a sweep that goes on."""
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise MissedError(f"the moment did not come: {self.said()[-2000:]}")
            time.sleep(0.001)

    def _note_begun(self) -> list[str]:
        names = sorted(path.parent.name for path in self.workdir.glob("runs/*/history.csv"))
        self.begun += [name for name in names if name not in self.begun and self.epochs(name)]
        return self.begun

    def results(self) -> Results:
        """Returns the records and the histories, without seconds."""
        found: dict[str, object] = {}
        for name, content in self.records().items():
            outer = json.loads(content)
            inner = outer["record"] or {}
            found[name] = outer | {"record": {key: value for key, value in inner.items() if not _is_time(key)}}
        for path in sorted(self.workdir.glob("runs/*/history.csv")):
            rows = [row._asdict() for row in read_history(path)]
            found[f"{path.parent.name}/history"] = [[(k, repr(v)) for k, v in row.items() if not _is_time(k)] for row in rows]
        return found

    def end(self) -> None:
        """Kills what a failed check has left."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process:
            self._process.wait()


def _is_time(name: str) -> bool:
    return name == "clocks" or name.endswith("_s")


def _read(pid: int | str, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


@dataclass(frozen=True)
class SweepFault:
    """A fault of a sweep.

    Attributes:
      kind, moment: what strikes, and when.
      strike: waits for its moment in the run of a number, and does it. Returns that run.
      words: a pattern of a line of the command. `{run}` in it is the struck run.
      log: a pattern of a line in the log of the struck run.
      code: the exit code of the command.
      mend: what a person does before giving the same command again.
      disk: the work directory is on a small disk of its own; needs the right to mount.
    """

    kind: str
    moment: str
    strike: Callable[[Sweep, int], str]
    words: str
    log: str = ""
    code: int = 0
    mend: Callable[[Sweep], object] = lambda sweep: None
    disk: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.moment}"


def kill_worker(sweep: Sweep, number: int) -> str:
    """SIGKILL, as by a person or by the kernel of a host without memory."""
    name = sweep.wait_for_run(number)
    trainer = sweep.trainer()
    after = sweep.rng.choice(STRUCK_AFTER)
    sweep.wait_until(lambda: sweep.epochs(name) >= after)
    os.kill(trainer, signal.SIGKILL)
    return name


def take_memory(sweep: Sweep, number: int) -> str:
    """The next validation asks for more memory than there is."""
    name = sweep.wait_for_run(number)
    after = sweep.rng.choice(STRUCK_AFTER)
    sweep.wait_until(lambda: sweep.epochs(name) >= after)
    (sweep.folder / TELL).touch()
    sweep.wait_until(lambda: not (sweep.folder / TELL).exists())
    return name


def fill_disk(sweep: Sweep, number: int) -> str:
    """Leaves no byte when the run before has its record, and fills what is given back."""
    before = sweep.wait_for_run(number - 1)
    sweep.wait_until(lambda: f"{before}.json" in sweep.records())
    fill(sweep, 0)
    keep_full(sweep, 0)
    return before


AGAIN = r"^{run} is tried again in a new process: "
SWEEP_FAULTS = (
    SweepFault("worker killed by SIGKILL", "a sweep's third run", kill_worker, AGAIN + "killed by SIGKILL"),
    SweepFault("worker out of memory", "a later run of a sweep", take_memory, AGAIN, log="Unable to allocate"),
    SweepFault(
        "disk full",
        "between two runs of a sweep",
        fill_disk,
        r"^error: .*(No space left on device|must have space).*same command",
        code=74,
        mend=make_room,
        disk=True,
    ),
)
"""The faults. The first struck run is the third, the next one the fourth."""
FIRST_STRUCK = 3


class SweepBench:
    """What the trials share: a folder, compiled programs, and the results of an undisturbed sweep."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.wanted: Results = {}

    def sweep(self, name: str) -> Sweep:
        """Returns a new sweep, whose name decides on its moments."""
        return Sweep(self._folder / name, self._folder / "compiled", Random(name))

    def compute_undisturbed(self) -> None:
        """Computes the results to compare with."""
        sweep = self.sweep("undisturbed_sweep")
        try:
            sweep.start()
            if code := sweep.finish():
                raise SystemExit(f"an undisturbed sweep ended with {code}: {sweep.said()[-2000:]}")
            self.wanted = sweep.results()
        finally:
            clear(sweep)

    def trials(self, faults: Sequence[SweepFault], name: str) -> Iterator[Trial]:
        """Tries faults in a row on one sweep. Yields the trials as they end. The last one has the results compared."""
        sweep = self.sweep(name)
        try:
            yield from _in_a_row(sweep, faults, self.wanted)
        finally:
            clear(sweep)


def _in_a_row(sweep: Sweep, faults: Sequence[SweepFault], wanted: Results) -> Iterator[Trial]:
    trials = [Trial(fault.kind, fault.moment, bound_s=END_S) for fault in faults]
    no_mount = no_disk(sweep) if any(fault.disk for fault in faults) else ""
    tried = [(fault, trial) for fault, trial in zip(faults, trials, strict=True) if not (fault.disk and no_mount)]
    for fault, trial in zip(faults, trials, strict=True):
        trial.skipped = no_mount if fault.disk else ""
    start = time.monotonic()
    if tried:
        try:
            _try(sweep, tried)
            _compare(sweep, wanted, tried[-1][1])
        except Exception as error:
            tried[-1][1].failed(error)
            tried[-1][1].errors = sweep.said()[-3000:]
        tried[-1][1].wall_s = time.monotonic() - start
    yield from trials


def _try(sweep: Sweep, tried: Sequence[tuple[SweepFault, Trial]]) -> None:
    """Strikes one run after the other, and gives the same command again until the sweep is whole."""
    sweep.start()
    struck: list[str] = []
    for number, (fault, trial) in enumerate(tried, FIRST_STRUCK):
        struck.append(fault.strike(sweep, number))
        trial.epochs = sweep.epochs(struck[-1])
        trial.hit = trial.epochs < EPOCHS or fault.disk
        kept = sweep.records()
        if fault.code or number == FIRST_STRUCK + len(tried) - 1:
            trial.codes = [sweep.finish()]
            trial.gone_s = _seconds_until_none_is_left(sweep)
            if trial.gone_s is None:
                trial.complaints.append(f"processes {sweep.processes()} are left")
            if trial.codes != [fault.code]:
                trial.complaints.append(f"the sweep ended with {trial.codes[0]}, not {fault.code}: {sweep.said()[-2000:]}")
        fault.mend(sweep)
        if fault.code:
            _give_again(sweep, trial)
        if changed := [name for name, content in kept.items() if sweep.records().get(name) != content]:
            trial.complaints.append(f"records were written again: {', '.join(changed)}")
    for name, (fault, trial) in zip(struck, tried, strict=True):
        _judge_words(sweep, fault, name, trial)
        found = re.findall(r"resumed after epoch (\d+)", sweep.log(name))
        trial.resumed_after = int(found[-1]) if found and not fault.disk else None
        if not fault.disk and not found:
            trial.complaints.append(f"{name} did not go on from a checkpoint")


def _seconds_until_none_is_left(sweep: Sweep) -> float | None:
    start = time.monotonic()
    while sweep.processes():
        if time.monotonic() - start > END_S:
            return None
        time.sleep(0.01)
    return time.monotonic() - start


def _give_again(sweep: Sweep, trial: Trial) -> None:
    """The same command, with the option that its message names, if it names one."""
    options = ["--retry"] if "--retry computes" in sweep.said() else []
    sweep.end()
    sweep.start(*options)
    trial.codes = [*trial.codes, sweep.finish()]
    if trial.codes[-1] != 0:
        trial.complaints.append(f"the same command ended with {trial.codes[-1]}: {sweep.said()[-2000:]}")


def _judge_words(sweep: Sweep, fault: SweepFault, struck: str, trial: Trial) -> None:
    text = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in sweep.outputs)
    pattern = fault.words.replace("{run}", re.escape(struck))
    trial.said = [[line for line in text.splitlines() if re.search(pattern, line)]]
    if not trial.said[0]:
        trial.complaints.append(f"no line of the command has the pattern {pattern!r}")
        trial.errors = text[-3000:]
    if not re.search(fault.log, sweep.log(struck)):
        trial.complaints.append(f"no line of the log of {struck} has the pattern {fault.log!r}")
        trial.errors += sweep.log(struck)[-3000:]


def _compare(sweep: Sweep, wanted: Results, trial: Trial) -> None:
    """Whether the sweep has the records and histories of an undisturbed one, to the bit."""
    found = sweep.results()
    if missing := wanted.keys() ^ found.keys():
        trial.complaints.append(f"records or histories are missing or new: {', '.join(sorted(missing))}")
    if other := [name for name in wanted.keys() & found.keys() if wanted[name] != found[name]]:
        trial.complaints.append(f"other bits in {', '.join(sorted(other))}")

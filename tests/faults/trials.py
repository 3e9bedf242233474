"""One fault, one trial: strike, look at how the run ends, give the same command again, and compare with an undisturbed run."""

import itertools
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from gmmae.training.records import read_history
from tests.faults.damages import DAMAGES
from tests.faults.disks import Work, mount_disk, unmount
from tests.faults.faults import BESIDE, STOPPED, Ending, Fault
from tests.faults.moments import MOMENTS
from tests.faults.runs import CONFIG, EPOCHS, PATIENCE_S, ROOT, MissedError, Run, processes_of, said
from tests.small import fingerprint

GRACE_S = 20.0
"""Seconds after the bound, to learn how late the end was."""
ATTEMPTS = 3
SCANS = ("--scans", "6", "--nodules", "3", "3", "--slices", "40", "--pixels", "64")
"""Options of `gmmae data synth`."""
MANY_CHECKPOINTS = ("--checkpoint.every-epochs", "1", "--checkpoint.keep", "40")


@dataclass
class Trial:
    """What was seen; `complaints` is empty if the fault was survived."""

    kind: str
    moment: str
    hit: bool = False
    epochs: int = 0  # rows of the history when the fault struck
    bound_s: float = 0.0
    gone_s: float | None = None  # until no process was left
    codes: Sequence[int | None] = ()
    said: list[list[str]] = field(default_factory=list)
    checkpoint: int = 0  # the newest one that the fault has left whole
    resumed_after: int | None = None  # the epoch; None where another fault came before that
    set_aside: list[int] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wall_s: float = 0.0
    skipped: str = ""
    missed: list[str] = field(default_factory=list)  # why earlier attempts were stopped early
    errors: str = ""

    def plain(self) -> dict[str, Any]:
        return {"survived": not self.complaints and not self.skipped} | asdict(self)

    def failed(self, error: Exception) -> None:
        """A trial that fails is a finding, and the next one goes on."""
        self.complaints.append(f"{type(error).__name__}: {error}")


class Bench:
    """What the trials share: a folder, compiled programs, the state to reach, and a run that was stopped."""

    def __init__(self, folder: Path):
        self.folder, self.compiled = folder, folder / "compiled"
        self._names = (f"run_{i}" for i in itertools.count(1))
        self.wanted = ""
        self.wanted_of_scans = ""
        self.stopped: Path | None = None
        self._lock = threading.Lock()

    def run(self, options: Sequence[str] = (), scans: bool = False) -> Run:
        with self._lock:
            folder = self.folder / next(self._names)
        if scans:
            data = {"source": "luna16", "root": self.folder / "scans", "cache": folder / "cache", "workers": 2}
            options = [*options, *(str(word) for key, value in data.items() for word in (f"--data.{key}", value))]
        return Run(folder, self.compiled, options)

    def write_scans(self) -> None:
        """Writes the scans for the faults that need them, and trains on them without a fault."""
        write = "import sys; from gmmae.cli.main import main; sys.exit(main())"
        subprocess.run([sys.executable, "-c", write, "data", "synth", self.folder / "scans", *SCANS], cwd=ROOT, check=True)
        self.wanted_of_scans = self.undisturbed(scans=True)

    def undisturbed(self, scans: bool = False) -> str:
        """The fingerprint of the end of a run without a fault."""
        for _ in range(ATTEMPTS):
            run = self.run(scans=scans)
            try:
                run.start(0, 1)
                codes = run.finish(PATIENCE_S)
                if codes == [0, 0]:
                    return fingerprint(CONFIG, run.workdir)
                print(f"an undisturbed run ended with {codes}: {run.errors()}", flush=True)
            finally:
                run.end()
        raise SystemExit("there is no undisturbed run to compare with")

    def stop_one(self) -> None:
        """Makes the run that SIGTERM has ended, on copies of which checkpoints are damaged: it has one more than damages."""
        run = self.run(MANY_CHECKPOINTS)
        try:
            run.start(0, 1)
            run.wait_until(lambda: run.epochs() > len(DAMAGES))
            run.send(signal.SIGTERM, 0)
            run.finish(PATIENCE_S)
        finally:
            run.end()
        self.stopped = run.workdir

    def trial(self, fault: Fault, seed: str) -> Trial:
        """Tries a fault; where its moment is missed, at another moment."""
        start = time.monotonic()
        missed: list[str] = []
        trial = Trial(fault.kind, fault.moment)
        for attempt in range(ATTEMPTS):
            trial = Trial(fault.kind, fault.moment, bound_s=fault.bound_s, missed=missed)
            run = self.run(fault.options, fault.scans)
            try:
                self._try(fault, Random(f"{seed} {attempt}"), run, trial)
            except MissedError as error:
                missed.append(str(error))
                continue
            except Exception as error:
                trial.failed(error)
            finally:
                clear(run)
            if trial.hit or trial.skipped or trial.complaints:
                break
            missed.append("struck beside its moment")
        if not (trial.hit or trial.skipped or trial.complaints):
            trial.complaints.append(f"its moment was missed in all of {ATTEMPTS} attempts")
        trial.wall_s = time.monotonic() - start
        return trial

    def _try(self, fault: Fault, rng: Random, run: Run, trial: Trial) -> None:
        if fault.disk and (reason := no_disk(run)):
            trial.skipped = reason
            return
        if fault.moment == STOPPED:
            assert self.stopped is not None
            shutil.copytree(self.stopped, run.workdir)
        befall(fault, rng, run, trial)
        codes = run.finish(PATIENCE_S) if fault.moment == BESIDE else again(run, trial)
        compare(run, codes, self.wanted_of_scans if fault.scans else self.wanted, trial)


def no_disk(run: Work) -> str:
    """Puts the run on a small disk; why not, where that is not possible."""
    try:
        mount_disk(run)
    except OSError as error:
        return f"mounting is not possible ({error})"
    return ""


def clear(run: Work) -> None:
    """Leaves nothing of a run that goes on, or that is mounted."""
    run.end()
    for place in (run.workdir, run.disk):
        while place.is_mount():
            unmount(place)


def befall(fault: Fault, rng: Random, run: Run, trial: Trial) -> None:
    """The fault, and all that a person does about it before the same command."""
    if fault.moment == STOPPED:
        fault.strike(run)
        trial.hit = True
    elif fault.moment == BESIDE:
        _beside(fault, run, trial)
    else:
        _strike(fault, rng, run, trial)
    if note := fault.mend(run):
        trial.notes.append(note)
    before, trial.checkpoint = trial.checkpoint, run.newest_whole()
    if trial.checkpoint < before:
        trial.complaints.append(f"the checkpoint of epoch {before} is lost")


def _strike(fault: Fault, rng: Random, run: Run, trial: Trial) -> None:
    """Does it at its moment, and looks how the processes end."""
    true_now = MOMENTS[fault.moment](run, rng, fault.rank)
    trial.epochs = run.epochs()
    trial.checkpoint = run.newest_whole()
    before = true_now()
    fault.strike(run)
    trial.hit = before and (true_now() or not run.workdir.exists())
    fault.hold(run)
    run.start(*({0, 1} - run.processes.keys()))
    start = time.monotonic()
    trial.codes = run.finish(fault.bound_s + GRACE_S)
    trial.gone_s = None if processes_of(run.workdir) else time.monotonic() - start
    trial.said = [run.said(0), run.said(1)]
    if trial.gone_s is None:
        trial.complaints.append(f"processes were left: exit codes {trial.codes}")
    elif trial.gone_s > fault.bound_s:
        trial.complaints.append(f"the processes were gone after {trial.gone_s:.1f} s, not {fault.bound_s:g} s")
    pids = [process.pid for _, process in sorted(run.processes.items())]
    if not any(fits(ending, trial.codes, trial.said, pids) for ending in fault.endings):
        trial.complaints.append(f"exit codes {trial.codes} and words {trial.said} are none of those expected")
        trial.errors = run.errors()
    if any("checkpoint written" in words for words in trial.said[0]) and run.checkpoints()[-1:] != [run.epochs()]:
        trial.complaints.append(f"after epoch {run.epochs()} a checkpoint is said to be written; there are {run.checkpoints()}")


def fits(ending: Ending, codes: Sequence[int | None], words: Sequence[Sequence[str]], pids: Sequence[int]) -> bool:
    """Whether two processes have ended in this way, each with at most one line that says why."""
    for rank, (code, pattern) in ending.items():
        wanted = pattern.replace("{lost}", str(pids[1 - rank]))
        if codes[rank] != code or len(words[rank]) > 1 or (pattern and not any(re.match(wanted, line) for line in words[rank])):
            return False
    return True


def again(run: Run, trial: Trial) -> list[int | None]:
    """The same command; what the fault has left, which is a complaint, goes first."""
    run.end()
    run.start(0, 1)
    codes = run.finish(PATIENCE_S)
    look_back(run, trial)
    return codes


def look_back(run: Run, trial: Trial) -> None:
    """Whether the processes that were started after the fault went on from where they had to, and what they set aside."""
    out = run.logs[0].with_suffix(".out").read_text()
    found = re.search(r"resumed after epoch (\d+)|holds a finished run: \w+ after (\d+) epochs", out)
    trial.resumed_after = int(found[1] or found[2]) if found else 0
    if trial.resumed_after != trial.checkpoint:
        trial.complaints.append(f"the run went on after epoch {trial.resumed_after}, not after {trial.checkpoint}")
    lines = [line for line in out.splitlines() if "cannot be read" in line]
    trial.set_aside = sorted(int(epoch) for line in lines for epoch in re.findall(r"moved to (\d+)\.corrupt", line))
    if trial.set_aside != sorted(run.spoilt) or not run.spoilt <= run.set_aside():
        trial.complaints.append(f"damaged: {sorted(run.spoilt)}, set aside: {run.set_aside()}, said to be: {trial.set_aside}")
    run.spoilt.clear()


def _beside(fault: Fault, run: Run, trial: Trial) -> None:
    """A second run on the work directory of one that goes on."""
    run.start(0, 1)
    run.wait_until(run.holds_workdir)
    port = run.port
    second = Run(run.folder / "second", run.compiled)
    start = time.monotonic()
    if fault.second == 1:
        arguments = [["--config", str(run.config), "--workdir", str(run.workdir)]]
    else:
        arguments = [run.command(rank, second.port) for rank in range(fault.second)]
    assert port != second.port
    started = [run.launch(words) for words in arguments]
    trial.codes = [process.wait(PATIENCE_S) for process, _ in started]
    trial.notes.append(f"refused after {time.monotonic() - start:.1f} s")
    trial.hit = all(process.poll() is None for process in run.processes.values())
    run.wait_until(run.has_begun)  # the refusal may come before the first run has read its checkpoints
    trial.said = [said(log) for _, log in started]
    wanted = r"error: workdir must be worked on by one run at a time; got .* which process \d+ on .* holds"
    if trial.codes != [2, 2][: fault.second] or len(trial.said[0]) != 1 or not re.match(wanted, trial.said[0][0]):
        trial.complaints.append(f"the second run was not refused: exit codes {trial.codes}, words {trial.said}")
    trial.epochs = run.epochs()


def compare(run: Run, codes: Sequence[int | None], wanted: str, trial: Trial) -> None:
    """Whether the run has ended as an undisturbed one has, and nothing is left of it."""
    if codes != [0, 0]:
        trial.complaints.append(f"the same command ended with {codes}: {run.said(0)} {run.said(1)}")
        trial.errors += run.errors()
    else:
        epochs = [row.epoch for row in read_history(run.workdir / "history.csv")]
        if epochs != list(range(1, EPOCHS + 1)):
            trial.complaints.append(f"history.csv has the epochs {epochs}")
        elif fingerprint(CONFIG, run.workdir) != wanted:
            trial.complaints.append("other bits in the checkpoint or the losses")
    if left := processes_of(run.workdir):
        trial.complaints.append(f"processes {left} are left")

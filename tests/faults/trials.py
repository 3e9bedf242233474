"""One fault, one trial: strike, look at how the run ends, give the same command again, and compare with an undisturbed run."""

import itertools
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from gmmae.records import read_history
from tests.faults.faults import BESIDE, STOPPED, Ending, Fault, mount_disk, unmount
from tests.faults.moments import MOMENTS
from tests.faults.runs import PATIENCE_S, START_S, MissedError, Run, final_state, history_faults, processes_of, said

GRACE_S = 20.0
"""After the bound, to learn how late the end was."""
ATTEMPTS = 3


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
    resumed_after: int = 0
    complaints: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wall_s: float = 0.0
    skipped: str = ""
    missed: list[str] = field(default_factory=list)  # earlier attempts, whose moment did not come
    errors: str = ""

    def plain(self) -> dict[str, Any]:
        return {"survived": not self.complaints and not self.skipped} | asdict(self)


class Bench:
    """What the trials share: a folder, compiled programs, the state to reach, and a run that was stopped."""

    def __init__(self, folder: Path):
        self.folder, self.compiled = folder, folder / "compiled"
        self._names = (f"run_{i}" for i in itertools.count(1))
        self.wanted: dict[str, str] = {}
        self.stopped: Path | None = None
        self._lock = threading.Lock()

    def run(self, options: Sequence[str] = ()) -> Run:
        with self._lock:
            return Run(self.folder / next(self._names), self.compiled, options)

    def undisturbed(self) -> dict[str, str]:
        """The state at the end of a run without a fault."""
        for _ in range(ATTEMPTS):
            run = self.run()
            try:
                run.start(0, 1)
                codes = run.finish(PATIENCE_S)
                if codes == [0, 0]:
                    return final_state(run.workdir)
                print(f"an undisturbed run ended with {codes}: {run.errors()}", flush=True)
            finally:
                run.end()
        raise SystemExit("there is no undisturbed run to compare with")

    def stop_one(self) -> None:
        """Makes the run that SIGTERM has ended, on copies of which checkpoints are damaged."""
        run = self.run()
        try:
            MOMENTS["an epoch"](run, Random(0), 0)
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
            run = self.run(fault.options)
            try:
                self._try(fault, Random(f"{seed} {attempt}"), run, trial)
                break
            except MissedError as error:
                trial.complaints.append("not tried: its moment did not come")
                missed.append(str(error))
            except Exception as error:  # a trial that fails is a finding, and the next one goes on
                trial.complaints.append(f"{type(error).__name__}: {error}")
                break
            finally:
                run.end()
                while run.workdir.is_mount():
                    unmount(run.workdir)
        trial.wall_s = time.monotonic() - start
        return trial

    def _try(self, fault: Fault, rng: Random, run: Run, trial: Trial) -> None:
        if fault.disk:
            try:
                mount_disk(run)
            except (OSError, subprocess.CalledProcessError) as error:
                trial.skipped = f"mounting is not possible ({error})"
                return
        if fault.moment == STOPPED:
            assert self.stopped is not None
            shutil.copytree(self.stopped, run.workdir)
            fault.strike(run)
            trial.hit = True
        elif fault.moment == BESIDE:
            _beside(fault, run, trial)
        else:
            _strike(fault, rng, run, trial)
        if note := fault.mend(run):
            trial.notes.append(note)
        codes = run.finish(PATIENCE_S) if fault.moment == BESIDE else _again(run, trial)
        _compare(run, codes, self.wanted, trial)


def _strike(fault: Fault, rng: Random, run: Run, trial: Trial) -> None:
    """Does it at its moment, and looks how the processes end."""
    true_now = MOMENTS[fault.moment](run, rng, fault.rank)
    trial.epochs = run.epochs()
    before = true_now()
    fault.strike(run)
    trial.hit = before and (true_now() or not run.workdir.exists())
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


def fits(ending: Ending, codes: Sequence[int | None], words: Sequence[Sequence[str]], pids: Sequence[int]) -> bool:
    """Whether two processes have ended in this way, each with at most one line that says why."""
    for rank, (code, pattern) in ending.items():
        wanted = pattern.replace("{lost}", str(pids[1 - rank]))
        if codes[rank] != code or len(words[rank]) > 1 or (pattern and not any(re.match(wanted, line) for line in words[rank])):
            return False
    return True


def _again(run: Run, trial: Trial) -> list[int | None]:
    """The same command; where a process that is stopped is in its way, once more after that one has gone on."""
    left = [process for process in run.everyone if process.poll() is None]
    run.start(0, 1)
    codes = run.finish(PATIENCE_S)
    if not left:
        return codes
    trial.notes.append(f"beside the process that is left the same command ends with {codes} {run.said(0)} {run.said(1)}")
    for process in left:
        process.send_signal(signal.SIGCONT)
        try:
            trial.notes.append(f"when it is continued it ends with {process.wait(START_S + GRACE_S)}")
        except subprocess.TimeoutExpired:
            trial.complaints.append("when it is continued it does not end")
            process.kill()
    if codes != [0, 0]:
        run.start(0, 1)
        codes = run.finish(PATIENCE_S)
    return codes


def _beside(fault: Fault, run: Run, trial: Trial) -> None:
    """A second run on the work directory of one that goes on."""
    run.start(0, 1)
    run.wait_until((run.workdir / "config.toml").exists)
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
    trial.said = [said(log) for _, log in started]
    wanted = r"error: workdir must be worked on by one run at a time; got .* which process \d+ on .* holds"
    if trial.codes != [2, 2][: fault.second] or len(trial.said[0]) != 1 or not re.match(wanted, trial.said[0][0]):
        trial.complaints.append(f"the second run was not refused: exit codes {trial.codes}, words {trial.said}")
    trial.epochs = run.epochs()


def _compare(run: Run, codes: Sequence[int | None], wanted: dict[str, str], trial: Trial) -> None:
    """Whether the run has ended as an undisturbed one has, and nothing is left of it."""
    if codes != [0, 0]:
        trial.complaints.append(f"the same command ended with {codes}: {run.said(0)} {run.said(1)}")
        trial.errors += run.errors()
        run.start(0, 1)
        codes = run.finish(PATIENCE_S)
        trial.notes.append(f"the same command once more ended with {codes}")
    if codes == [0, 0]:
        got = final_state(run.workdir)
        trial.complaints += [f"other bits in {name}" for name in wanted if got[name] != wanted[name]]
        trial.complaints += history_faults([row.epoch for row in read_history(run.workdir / "history.csv")])
    out = run.logs[0].with_suffix(".out").read_text()
    if found := re.search(r"resumed after epoch (\d+)", out):
        trial.resumed_after = int(found[1])
    trial.notes += [line.partition("checkpoints/")[2] for line in out.splitlines() if "cannot be read" in line]
    if left := processes_of(run.workdir):
        trial.complaints.append(f"processes {left} are left")

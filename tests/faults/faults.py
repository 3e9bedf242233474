"""The faults: what strikes, when, how the processes may end, and what a person does before giving the same command again."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread

from tests.faults import damages
from tests.faults.damages import DAMAGES, UnmatchedError
from tests.faults.disks import bring_back, fill, keep_full, make_read_only, make_room, make_writable, take_away
from tests.faults.runs import PATIENCE_S, SILENCE_S, START_S, MissedError, Run, children_of

MARGIN_S, ASKED_MARGIN_S, STARTING_S = 4.0, 16.0, 40.0
"""Seconds beyond the heartbeat's timeout until no process is left, on a machine with much other work.

The first is after the loss of a process. The second adds an epoch and a checkpoint. The third adds the rest of the start."""
PAUSE_S = 3 * SILENCE_S
"""Longer than a process that is stopped alone is left alive."""
ROOM_BYTES = 24 * 1024
"""Room for rows and records, and none for a checkpoint."""

Ending = Mapping[int, tuple[int, str]]
"""The exit code by rank, and a pattern of the one line that says why. `{lost}` in it is the pid of the other process."""


@dataclass(frozen=True)
class Fault:
    """A fault, and how a run has to bear it.

    Attributes:
      kind, moment: what and when; `moment` is a key of `MOMENTS`, or words.
      rank: the process that is meant, for the moment.
      strike: does it, at once.
      hold: keeps it up for a while.
      endings: the ways in which both may end; none: the fault ends nothing.
      mend: what has to be done before the same command; says what was found.
      bound_s: from the fault, or the start of the last process, until no process is left.
      options: more of `train.py`'s.
      disk: the work directory is on a disk of its own, of `disks.DISK_BYTES`; needs the right to mount.
      scans: the data are cubes that the run extracts from scans.
      second: processes of a second run on the same work directory, which is the fault.
    """

    kind: str
    moment: str
    rank: int
    strike: Callable[[Run], None]
    endings: tuple[Ending, ...] = ()
    hold: Callable[[Run], None] = lambda run: None
    mend: Callable[[Run], str] = lambda run: ""
    bound_s: float = SILENCE_S + MARGIN_S
    options: tuple[str, ...] = ()
    disk: bool = False
    scans: bool = False
    second: int = 0

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.moment}"


RESUME = r"to resume, start all processes again: python train\.py .*--distributed\.process-id"
WRITTEN = r"checkpoint written; to resume: python train\.py .*--distributed\.process-id 0"


def lost(rank: int, code: int) -> Ending:
    """A process is gone, and the other one says so."""
    why = rf"error: process {rank} \(.*, pid {{lost}}\) (has|was) .*; {RESUME} {1 - rank}\b"
    return {rank: (code, ""), 1 - rank: (75, why)}


def asked(code: int) -> Ending:
    """Both end after the same epoch."""
    return {0: (code, WRITTEN), 1: (code, "")}


def unmet(rank: int, code: int) -> Ending:
    """The other process waits in vain for this one."""
    return {rank: (code, ""), 1 - rank: (2, r"error: .*distributed\.start_timeout_s, ")}


UNWRITTEN: Ending = {
    0: (74, r"error: (the checkpoint of epoch \d+ must be written|workdir must stay a folder).*same command again"),
    1: (74, rf"error: process 0 \(.*\) has ended: .*; {RESUME} 1\b"),
}
UNDRAWN: Ending = {0: (74, r"error: .*figures.*same command again"), 1: (0, "")}
"""The run itself has ended well."""


def signalled(number: signal.Signals, rank: int, moment: str) -> Fault:
    """One process gets a signal."""
    how = 75 if number == signal.SIGSTOP else -number
    struck = number in (signal.SIGKILL, signal.SIGSTOP)  # who trains; other signals come to the parent, which passes them on
    endings = [lost(rank, how)]
    bound_s = SILENCE_S + MARGIN_S
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        ends_alone = moment not in ("an epoch", "a checkpoint")
        bound_s = SILENCE_S + ASKED_MARGIN_S + STARTING_S * ends_alone
        endings = [lost(rank, how)] * ends_alone + [asked(128 + number)]
    if moment.startswith(("before", "while", "JAX")):  # JAX itself waits for others until the start's end
        endings.append(unmet(rank, how))
        bound_s += START_S
    if number == signal.SIGSTOP:  # its parent waits for twice the heartbeat's timeout
        bound_s += SILENCE_S
    return Fault(
        f"{number.name} of process {rank}",
        moment,
        rank,
        lambda run: run.strike(number, rank) if struck else run.send(number, rank),
        tuple(endings),
        bound_s=bound_s,
    )


def parent(number: signal.Signals, rank: int, moment: str) -> Fault:
    """The parent of one process gets a signal that it cannot pass on: it is killed, or stopped, alone."""
    bound_s = SILENCE_S + MARGIN_S + 2 * SILENCE_S * (number == signal.SIGSTOP)
    kind = f"{number.name} of the parent of process {rank}"

    def strike(run: Run) -> None:
        run.send(number, rank)
        if number == signal.SIGSTOP:
            Thread(target=slow_down, args=(run, 1 - rank), daemon=True).start()

    return Fault(kind, moment, rank, strike, (lost(rank, -signal.SIGKILL),), bound_s=bound_s)


def slow_down(run: Run, rank: int) -> None:
    """Lets a process train for a twentieth of the time: the run goes on when a parent is stopped, and is to outlast it."""
    started = run.processes[rank]
    while started.poll() is None:
        for number, seconds in ((signal.SIGSTOP, 0.95), (signal.SIGCONT, 0.05)):
            for worker in children_of(started.pid):
                with suppress(ProcessLookupError):
                    os.kill(worker, number)
            time.sleep(seconds)


def both(number: signal.Signals, moment: str) -> Fault:
    """Both processes get a signal at once."""
    killed = number == signal.SIGKILL
    endings = ({0: (-number, ""), 1: (-number, "")} if killed else asked(128 + number),)
    bound_s = SILENCE_S + (MARGIN_S if killed else ASKED_MARGIN_S)
    return Fault(f"{number.name} of both", moment, 0, lambda run: run.send(number, 0, 1), endings, bound_s=bound_s)


def kill_worker(run: Run) -> None:
    workers = run.workers()
    if not workers:
        raise MissedError("the workers had ended")
    os.kill(workers[0], signal.SIGKILL)


def worker_killed() -> Fault:
    """A worker that extracts cubes is killed: its scan is read again, and the run goes on to its end."""
    return Fault(
        "SIGKILL of an extraction worker",
        "the extraction",
        0,
        kill_worker,
        ({0: (0, ""), 1: (0, "")},),
        bound_s=PATIENCE_S,
        scans=True,
    )


def go_on_later(run: Run) -> None:
    time.sleep(PAUSE_S)
    run.send_job(signal.SIGCONT)


def paused(moment: str) -> Fault:
    """All processes are stopped together for a while, as by `scontrol suspend`, and then go on to their end."""
    return Fault(
        f"SIGSTOP of both, and SIGCONT after {PAUSE_S:g} s",
        moment,
        0,
        lambda run: run.send_job(signal.SIGSTOP),
        ({0: (0, ""), 1: (0, "")},),
        go_on_later,
        bound_s=PATIENCE_S,
    )


def full(what: str, moment: str, leave_bytes: int, *options: str, ending: Ending = UNWRITTEN) -> Fault:
    """The disk is full, but for some bytes."""
    return Fault(
        f"disk full {what}",
        moment,
        0,
        lambda run: fill(run, leave_bytes),
        (ending,),
        lambda run: keep_full(run, leave_bytes),
        make_room,
        SILENCE_S + ASKED_MARGIN_S,
        options,
        disk=True,
    )


def read_only(moment: str) -> Fault:
    bound_s = SILENCE_S + ASKED_MARGIN_S
    return Fault(
        "read-only work directory", moment, 0, make_read_only, (UNWRITTEN,), mend=make_writable, bound_s=bound_s, disk=True
    )


def vanished(moment: str) -> Fault:
    bound_s = SILENCE_S + ASKED_MARGIN_S
    return Fault("work directory moved away", moment, 0, take_away, (UNWRITTEN,), mend=bring_back, bound_s=bound_s)


def damage(run: Run, name: str, epoch: int) -> None:
    damages.apply(name, run.workdir / "checkpoints" / str(epoch))
    run.spoilt.add(epoch)


def damaged(name: str) -> Fault:
    """The newest checkpoint of a run that has been stopped is damaged."""
    return Fault(f"checkpoint damaged: {name}", STOPPED, 0, lambda run: damage(run, name, run.checkpoints()[-1]))


def damage_many(run: Run) -> None:
    """Each damage once, from the newest checkpoint on; an older one is left as it is."""
    epochs = run.checkpoints()
    if len(epochs) <= len(DAMAGES):
        raise UnmatchedError(f"there must be more checkpoints than the {len(DAMAGES)} damages; got {epochs}")
    for name, epoch in zip(DAMAGES, reversed(epochs), strict=False):
        damage(run, name, epoch)


STOPPED = "between two runs"
BESIDE = "while the first goes on"
AGAIN = 2
"""How often signals strike an epoch and a checkpoint, each time at another moment of them."""


def matrix() -> Iterator[Fault]:
    """All faults."""
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
        for rank in (0, 1):
            for moment in ("before the other process is there", "JAX's start and compilation"):
                yield signalled(number, rank, moment)
            for moment in ("an epoch", "a checkpoint"):
                for _ in range(AGAIN if number != signal.SIGTERM else 1):
                    yield signalled(number, rank, moment)
    for rank in (0, 1):
        yield signalled(signal.SIGKILL, rank, "before they have met")
        yield signalled(signal.SIGINT, rank, ("an epoch", "a checkpoint")[rank])
        yield signalled(signal.SIGHUP, rank, ("a checkpoint", "an epoch")[rank])
        for number in (signal.SIGKILL, signal.SIGSTOP):
            yield parent(number, rank, "an epoch")
    for number in (signal.SIGKILL, signal.SIGSTOP):
        yield signalled(number, 0, "while it waits for the other process")
    for moment in ("an epoch", "a checkpoint"):
        yield both(signal.SIGKILL, moment)
    yield both(signal.SIGTERM, "an epoch")
    for moment in ("an epoch", "a checkpoint"):
        yield paused(moment)
    yield worker_killed()
    yield full("but for some rows", "the first epoch", ROOM_BYTES)
    yield full("but for some rows", "an epoch", ROOM_BYTES)
    yield full("to the last byte", "a checkpoint", 0)
    yield full("to the last byte", "end of a page of the history", 0, "--checkpoint.every-epochs", "10")
    yield full("to the last byte", "the figures", 0, ending=UNDRAWN)
    for moment in ("an epoch", "a checkpoint"):
        yield read_only(moment)
        yield vanished(moment)
    for name in DAMAGES:
        yield damaged(name)
    yield Fault("checkpoint damaged: many, each in another way", STOPPED, 0, damage_many)
    for processes in (2, 1):
        yield Fault(f"second run, of {processes}", BESIDE, 0, lambda run: None, second=processes)


QUICK = (
    "SIGKILL of process 1, an epoch",
    "disk full but for some rows, an epoch",
    "SIGHUP of process 0, a checkpoint",
    "checkpoint damaged: many, each in another way, between two runs",
    "second run, of 1, while the first goes on",
)
"""The cheap part: every way to go on once, and all damages, in the order in which they strike one run."""


def quick() -> list[Fault]:
    """The faults of `QUICK`."""
    by_name = {fault.name: fault for fault in matrix()}
    return [by_name[name] for name in QUICK]

"""Faults strike runs of one process and of two. All processes end in time, and the same command ends as if nothing had been.

`make test-faults` prints a row of a table for each.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gmmae.config.schema import changed
from gmmae.system import exit_codes
from tests.faults.damages import DAMAGES, HISTORY, damage_newest
from tests.faults.disks import fill, make_read_only, mount_disk, unmount
from tests.launched import SILENCE_S, Launch
from tests.small import CHEAP, checkpoint_epochs, fingerprint, small
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
ALL = bool(os.environ.get("GMMAE_TEST_FAULTS"))
"""Also the faults whose promise other tests hold, or that strike the other of two processes: make test-faults."""
EPOCHS, EVERY = 30, 2
CONFIG = small(
    parallel__devices="all",
    stop__max_epochs=EPOCHS,
    checkpoint__every_epochs=EVERY,
    checkpoint__keep=20,
    **CHEAP,
)
ALONE, TWO = (), (0, 1)
ROOM_BYTES = 24 * 1024
"""Room for rows and records, and none for a checkpoint."""


class Fault(NamedTuple):
    """A fault, and how a run has to bear it.

    Attributes:
      strike: does it.
      codes: of the processes; None for one that stays stopped, until it is killed.
      then: happens once all that can end have ended.
      refused: the exit code of the same command until `mend`, where that is needed.
      mend: what a person does before the same command.
      bound_s: until all have ended.
      options: of `distributed`.
      disk: whether a disk must be mounted for it.
    """

    strike: Callable[[Launch], object]
    codes: tuple[int | None, ...]
    then: Callable[[Launch], object] = lambda launch: None
    refused: int = 0
    mend: Callable[[Launch], object] = lambda launch: None
    bound_s: float = 10.0
    options: dict[str, object] = {}  # noqa: RUF012
    disk: bool = False


def sent(number: signal.Signals, *ranks: int):
    return lambda launch: [os.kill(launch.processes[rank].pid, number) for rank in ranks]


def saving(strike: Callable[[Launch], object]):
    """Strikes while Orbax writes a checkpoint: its temporary folder is there."""

    def while_saving(launch: Launch):
        wait_until(lambda: any("orbax-checkpoint-tmp" in name for name in os.listdir(launch.workdir / "checkpoints")), tick_s=0)
        strike(launch)

    return while_saving


def empty(run: Any):
    (run.workdir.parent / "filler").unlink()


def spoil(launch: Launch, change: Callable[[Path], object]):
    shutil.copy(history := launch.workdir / "history.csv", launch.folder)
    change(history)


def put_back(launch: Launch):
    shutil.copy(launch.folder / "history.csv", launch.workdir)


def back(launch: Launch):
    shutil.rmtree(launch.workdir, ignore_errors=True)
    launch.workdir.with_name("away").rename(launch.workdir)


KILL, STOP, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM
LOST_S = SILENCE_S + 6.0  # an abort, on a busy machine
AWAY = "work directory moved away"
FULL = {
    "disk full but for rows": (lambda launch: fill(launch.workdir.parent, ROOM_BYTES), empty),
    "disk full": (lambda launch: fill(launch.workdir.parent), empty),
    "work directory read-only": (lambda launch: make_read_only(launch.workdir), lambda launch: unmount(launch.workdir)),
    AWAY: (lambda launch: launch.workdir.rename(launch.workdir.with_name("away")), back),
}
FAULTS: dict[str, Fault] = {
    "alone: SIGKILL": Fault(sent(KILL, 0), (-KILL,)),
    "alone: SIGKILL amid a checkpoint": Fault(saving(sent(KILL, 0)), (-KILL,)),
    "alone: SIGTERM": Fault(sent(TERM, 0), (143,)),
    "two: SIGKILL of 1": Fault(sent(KILL, 1), (-signal.SIGABRT, -KILL), bound_s=LOST_S),
    "two: SIGKILL of 0 amid a checkpoint": Fault(saving(sent(KILL, 0)), (-KILL, -signal.SIGABRT), bound_s=LOST_S),
    "two: SIGSTOP of 0": Fault(sent(STOP, 0), (None, -signal.SIGABRT), bound_s=LOST_S),
    "two: SIGTERM of 1": Fault(sent(TERM, 1), (143, 143)),
    # A collective operation that does not end: the other process is there, by its heartbeats, as far as JAX can tell.
    "two: a hang": Fault(
        sent(STOP, 1), (-signal.SIGALRM, None), bound_s=20.0, options={"stall-timeout-s": 3, "heartbeat-timeout-s": 100}
    ),
    "two: a pause of both": Fault(
        lambda launch: (sent(STOP, *TWO)(launch), time.sleep(SILENCE_S), sent(signal.SIGCONT, *TWO)(launch)),
        (0, 0),
        bound_s=60.0,
        options={"heartbeat-timeout-s": 3 * SILENCE_S},
    ),
    **{
        f"{who}: {what}": Fault(strike, codes, mend=mend, disk=what != AWAY)
        for who, codes in {"alone": (74,), "two": (74, 74)}.items()
        for what, (strike, mend) in FULL.items()
        if ALL or what == "disk full" or (who, what) in (("alone", "disk full but for rows"), ("two", AWAY))
    },
}
if ALL:
    FAULTS |= {
        "alone: SIGINT": Fault(sent(signal.SIGINT, 0), (130,)),
        "alone: SIGHUP": Fault(sent(signal.SIGHUP, 0), (129,)),
        "two: SIGHUP of 1 amid a checkpoint": Fault(saving(sent(signal.SIGHUP, 1)), (129, 129)),
        "alone: SIGSTOP, or a hang": Fault(sent(STOP, 0), (None,), refused=2),
        "two: SIGKILL of 0": Fault(sent(KILL, 0), (-KILL, -signal.SIGABRT), bound_s=LOST_S),
        "two: SIGKILL of 1 amid a checkpoint": Fault(saving(sent(KILL, 1)), (-signal.SIGABRT, -KILL), bound_s=LOST_S),
        "two: SIGSTOP of 1": Fault(sent(STOP, 1), (-signal.SIGABRT, None), bound_s=LOST_S),
        "two: SIGTERM of both": Fault(sent(TERM, *TWO), (143, 143)),
        "two: SIGINT of 0": Fault(sent(signal.SIGINT, 0), (130, 130)),
    }
    for who, codes in {"alone": (143,), "two": (143, 143)}.items():
        ends = Fault(sent(TERM, 0), codes)
        FAULTS[f"{who}: the newest checkpoint damaged after SIGTERM"] = ends._replace(
            then=lambda launch: damage_newest(launch.workdir)
        )
        for what, change in HISTORY.items():
            spoiled = ends._replace(then=lambda launch, change=change: spoil(launch, change), refused=2, mend=put_back)
            FAULTS[f"{who}: {what} after SIGTERM"] = spoiled


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The bits at the end of a run without a fault."""
    found = {}
    for ids in (ALONE, TWO):
        launch = Launch(tmp_path_factory.mktemp("undisturbed"))
        launch.start(CONFIG, ids)
        assert {end.code for end in launch.finish()} == {0}
        found[ids] = fingerprint(CONFIG, launch.workdir)
    return found


@pytest.fixture
def launch(tmp_path, request):
    made = Launch(tmp_path / "logs", tmp_path / "disk" / "work")
    disk = made.workdir.parent
    if getattr(request, "param", False):
        mount_disk(disk)
    yield made
    made.kill()
    for place in (made.workdir, disk):
        if place.is_mount():
            unmount(place)


@pytest.mark.parametrize(("name", "launch"), [(name, fault.disk) for name, fault in FAULTS.items()], indirect=["launch"])
def test_all_processes_end_in_time_and_the_same_command_ends_as_if_nothing_had_been(launch, undisturbed, name):
    fault, ids = FAULTS[name], ALONE if name.startswith("alone") else TWO
    launch.start(CONFIG, ids, **fault.options)
    launch.wait_for_epochs(2 * EVERY + 1)
    fault.strike(launch)
    struck = time.monotonic()
    ended = launch.finish(fault.bound_s, [rank for rank, code in enumerate(fault.codes) if code is not None])
    took_s = time.monotonic() - struck
    assert [end.code for end in ended] == [code for code in fault.codes if code is not None]
    if 74 in fault.codes:
        assert {end.error.count("\n") for end in ended} == {1}
    done = len(launch.rows())
    fault.then(launch)
    if fault.refused:
        launch.start(CONFIG, ids, **fault.options)
        assert {(end.code, end.error.count("\n")) for end in launch.finish()} == {(fault.refused, 1)}
    launch.kill()  # a process that was stopped alone holds the work directory
    fault.mend(launch)
    launch.start(CONFIG, ids, **fault.options)
    again = launch.finish()
    assert [end.code for end in again] == [0] * len(again), again[0].error
    assert [row.epoch for row in launch.rows()] == list(range(1, EPOCHS + 1))
    assert fingerprint(CONFIG, launch.workdir) == undisturbed[ids]
    assert launch.left() == []
    same = f"0, after {fault.refused} and mending" if fault.refused else "0"
    print(f"| {name} | {', '.join(map(str, fault.codes))} | {took_s:.1f} s | {done} | {same} | {queued(fault.codes)} |")


def queued(codes: Sequence[int | None]):
    """Whether launch/slurm.sbatch queues a run again that ends with these codes. srun kills a process that stays behind."""
    in_a_shell = [128 - code if code < 0 else code for code in (-KILL if code is None else code for code in codes)]
    code = exit_codes.of_run([max(in_a_shell)], len(codes))
    return "queued again" if exit_codes.again([code], 1) else "no"


@pytest.mark.parametrize("ids", [ALONE, TWO], ids=["alone", "two"])
def test_the_newest_whole_checkpoint_is_taken_where_newer_ones_are_damaged_each_in_another_way(launch, undisturbed, ids):
    launch.start(changed(CONFIG, stop__max_epochs=EPOCHS - 2), ids)
    assert {end.code for end in launch.finish()} == {0}
    saved = checkpoint_epochs(launch.workdir)[::-1]
    assert len(saved) > len(DAMAGES)
    for epoch, damage in zip(saved, DAMAGES.values(), strict=False):
        damage(launch.workdir / "checkpoints" / str(epoch))
    launch.start(CONFIG, ids)
    ended = launch.finish()
    assert {end.code for end in ended} == {0}
    assert ended[0].out.count("cannot be read") == len(DAMAGES)
    assert fingerprint(CONFIG, launch.workdir) == undisturbed[ids]

"""What happens to the disk of a work directory: it is full, read-only, or gone; and how a person repairs that."""

import contextlib
import ctypes
import os
import shutil
import time
from pathlib import Path
from typing import Protocol

from tests.faults.runs import Run


class Work(Protocol):
    """A run or a sweep: its work directory in a folder `disk`, on which a small disk can be mounted, and its processes."""

    disk: Path
    workdir: Path

    def end(self) -> None:
        """Kills the processes that are left."""


FILLING_S = 0.5
DISK_BYTES = 8 * 2**20
LIBC = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_REMOUNT, MS_BIND, MNT_DETACH = 1, 32, 4096, 2
"""Flags of `sys/mount.h`."""


def fill(run: Work, leave_bytes: int) -> None:
    """Fills the disk of a work directory."""
    with (run.disk / "filler").open("ab") as file, contextlib.suppress(OSError):  # the run was faster
        if (left := _free_bytes(run.disk) - leave_bytes) > 0:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size + left)


def keep_full(run: Work, leave_bytes: int) -> None:
    """Fills what is given back too, as by the removal of an old checkpoint."""
    until = time.monotonic() + FILLING_S
    while time.monotonic() < until:
        fill(run, leave_bytes)


def _free_bytes(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def make_room(run: Work) -> str:
    (run.disk / "filler").unlink()
    return ""


def _call(name: str, place: Path, *arguments: object) -> None:
    """A system call about mounts: at once, where the command would take longer than an epoch."""
    if getattr(LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(place))


def mount_disk(run: Work) -> None:
    """Puts the work directory on a small disk."""
    _call("mount", run.disk, b"tmpfs", bytes(run.disk), b"tmpfs", 0, f"size={DISK_BYTES}".encode())


def unmount(place: Path) -> None:
    _call("umount2", place, bytes(place), MNT_DETACH)


def make_read_only(run: Run) -> None:
    """Mounts the work directory over itself, read-only: what is open, as the lock, keeps a mount from being made read-only."""
    place = bytes(run.workdir)
    _call("mount", run.workdir, place, place, None, MS_BIND, None)
    _call("mount", run.workdir, place, place, None, MS_BIND | MS_REMOUNT | MS_RDONLY, None)


def make_writable(run: Run) -> str:
    unmount(run.workdir)
    return ""


def take_away(run: Run) -> None:
    run.workdir.rename(run.disk / "away")


def bring_back(run: Run) -> str:
    note = ""
    if run.workdir.exists():
        found = ", ".join(sorted(str(path.relative_to(run.workdir)) for path in run.workdir.rglob("*"))[:5])
        note = f"in its place there was a new folder with {found or 'nothing'}"
        shutil.rmtree(run.workdir)
    (run.disk / "away").rename(run.workdir)
    return note

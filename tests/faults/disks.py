"""What happens to the disk of a work directory, and how a person repairs it. The right to mount is needed."""

import ctypes
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

DISK_BYTES = 8 * 2**20
LIBC = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_REMOUNT, MS_BIND, MNT_DETACH = 1, 32, 4096, 2
"""Flags of `sys/mount.h`."""


def _call(name: str, place: Path, *arguments: object):
    """A system call about mounts: at once, where the command would take longer than an epoch."""
    if getattr(LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(place))


def mount_disk(place: Path):
    """Puts a folder on a small disk of its own, or skips the test where that is not allowed."""
    place.mkdir()
    try:
        _call("mount", place, b"tmpfs", bytes(place), b"tmpfs", 0, f"size={DISK_BYTES}".encode())
    except OSError as error:
        place.rmdir()
        pytest.skip(f"a disk must be mounted; that failed with {error}")


def unmount(place: Path):
    """Takes a disk away."""
    _call("umount2", place, bytes(place), MNT_DETACH)


def fill(disk: Path, leave_bytes: int = 0):
    """Fills a disk but for some bytes, and for a while also what is given back, as by the removal of an old checkpoint."""
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        space = os.statvfs(disk)
        with (disk / "filler").open("ab") as file, suppress(OSError):  # others were faster
            if (left := space.f_bavail * space.f_frsize - leave_bytes) > 0:
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size + left)


def make_read_only(folder: Path):
    """Mounts a folder over itself, read-only: what is open in it, as a lock, keeps its disk from being made so."""
    _call("mount", folder, bytes(folder), bytes(folder), None, MS_BIND, None)
    _call("mount", folder, bytes(folder), bytes(folder), None, MS_BIND | MS_REMOUNT | MS_RDONLY, None)

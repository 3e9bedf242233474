"""Interrupts at a chosen moment: Python's audit events tell when a file or a folder is opened, made, renamed or removed."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def _is_below(root: Path, arguments: tuple[object, ...]) -> bool:
    path = arguments[0]
    if not isinstance(path, str | os.PathLike):
        return False
    folder = arguments[-1]  # a descriptor, where the path is relative to it
    if isinstance(folder, int) and folder > 2 and not os.path.isabs(path):
        try:
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
        except OSError:
            return False
    return os.path.abspath(path).startswith(f"{root}{os.sep}")


def _needs_room(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether it fails where the disk is full; the flags of a file that is opened come last."""
    return event in ("os.mkdir", "os.rename") or (event == "open" and bool(arguments[2] & WRITING))


_watching: list[Callable[[str, tuple[object, ...]], None]] = []


def _hook(event: str, arguments: tuple[object, ...]):
    for see in _watching:
        see(event, arguments)


sys.addaudithook(_hook)


@contextmanager
def moments(
    root: Path, at: int = 0, error: Callable[[], BaseException] = KeyboardInterrupt, for_good: bool = False
) -> Iterator[SimpleNamespace]:
    """Counts the moments below a folder at which a command touches the disk, and raises at one of them.

    Args:
      root: the folder.
      at: the moment, from 1; 0: none.
      error: makes what is raised.
      for_good: all later moments raise too. So nothing is cleaned up, as after SIGKILL.
    """
    seen = SimpleNamespace(count=0)

    def see(event: str, arguments: tuple[object, ...]):
        if event not in EVENTS or not _is_below(root, arguments):
            return
        if error is full_disk and not _needs_room(event, arguments):
            return
        seen.count += 1
        if seen.count == at or (for_good and 0 < at < seen.count):
            raise error()

    _watching.append(see)
    try:
        yield seen
    finally:
        _watching.remove(see)


def full_disk() -> OSError:
    """What a full disk raises."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def killed() -> BaseException:
    """What nothing catches."""
    return Killed()


class Killed(BaseException):
    """SIGKILL, as far as one process can play it."""


def tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder, with their bytes; folders end in a stroke."""
    return {
        str(path.relative_to(folder)) + "/" * path.is_dir(): b"" if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }

"""One process at a time, on one host or on several that share a file system, however that was mounted.

Two means, because neither is enough alone:

- `flock` is exact among the processes of one kernel, which frees it however its holder ends, and of all hosts where the file
system locks for all. But under NFS with `nolock`, or Lustre with `localflock`, every host gets its own, and without a lock
service it fails (ENOLCK, ENOTSUP). NFS wants the file opened for writing.
- An owner file names the holder. It is created exclusively, which is atomic on NFS too, and touched every `BEAT_S` seconds. Who
has the `flock` and finds an owner of its own kernel knows that it is dead. Otherwise the lock is taken over if the file stays
as it is for `SILENCE_S` seconds; without looking, after `STALE_S`. No clock is compared with another host's.

Not covered where hosts do not see each other's `flock`: a holder that is suspended for `SILENCE_S` while another host asks, and
two hosts that take over from one dead holder within milliseconds.
"""

import errno
import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

BEAT_S = 5.0
SILENCE_S = 30.0
STALE_S = 300.0
LOOK_EVERY_S = 0.5
UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@contextmanager
def held(path: Path, busy: Callable[[str], None], look: bool = True) -> Iterator[None]:
    """Holds the lock at `path`, with the owner file beside it, while the context is entered.

    `busy` is told once who holds the lock. If it returns, the holder's end is awaited; if it raises, so does this. Unless we
    `look` whether the holder lives, the age of its last touch decides.
    """
    owner = path.with_name(f"{path.name}.owner")
    new = not path.exists()
    file, exact = _opened(path, lambda: busy(_holder(owner)))
    with file:
        try:
            _own(owner, exact, busy, _silent if look else partial(_stale, path))
        except (OSError, KeyboardInterrupt):
            if new:
                path.unlink(missing_ok=True)
            raise
        done = threading.Event()
        threading.Thread(target=_beat, args=(owner, done), daemon=True).start()
        try:
            yield
        finally:
            done.set()
            with suppress(OSError):
                if _read(owner) == _this_process():
                    owner.unlink()


def _opened(path: Path, blocked: Callable[[], None]) -> tuple[IO[str], bool]:
    while True:
        file = path.open("a")
        try:
            exact = _flock(file, blocked)
            with suppress(FileNotFoundError):  # a former holder may have removed the file before it was locked
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file, exact
        except BaseException:
            file.close()
            raise
        file.close()


def _flock(file: IO[str], blocked: Callable[[], None]) -> bool:
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            blocked()
            fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        return False
    return True


def _own(owner: Path, exact: bool, busy: Callable[[str], None], is_dead: Callable[[Path], bool]) -> None:
    reported = False
    while True:
        try:
            with owner.open("x", encoding="utf-8") as file:
                try:
                    file.write(_this_process())
                    file.flush()
                except BaseException:
                    owner.unlink(missing_ok=True)
                    raise
            return
        except FileExistsError:
            left_by_the_dead = exact and _read(owner).endswith(this_boot())
        if left_by_the_dead or is_dead(owner):
            owner.unlink(missing_ok=True)
        elif owner.exists() and not reported:
            reported = True
            busy(_holder(owner))


def _silent(owner: Path) -> bool:
    """Returns at the first sign of life, or when the file goes."""
    first, end = _stamp(owner), time.monotonic() + SILENCE_S
    while time.monotonic() < end:
        time.sleep(LOOK_EVERY_S)
        if _stamp(owner) != first:
            return False
    return first is not None


def _stale(path: Path, owner: Path) -> bool:
    """By the clock of the file system, because the lock is touched now."""
    os.utime(path)
    now, then = _stamp(path), _stamp(owner)
    return now is not None and then is not None and now[1] - then[1] > STALE_S * 1e9


def _stamp(owner: Path) -> tuple[int, int] | None:
    """Changes with every beat. Opening the file makes NFS ask its server; `stat` alone may be a minute old."""
    try:
        with owner.open("rb") as file:
            stat = os.fstat(file.fileno())
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _beat(owner: Path, done: threading.Event) -> None:
    while not done.wait(BEAT_S):
        with suppress(OSError):
            os.utime(owner)


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}\n{this_boot()}"


def _holder(owner: Path) -> str:
    return _read(owner).partition("\n")[0] or "another process"


def _read(owner: Path) -> str:
    try:
        return owner.read_text(encoding="utf-8")
    except OSError:
        return ""


def this_boot() -> str:
    """Of processes among which `flock` always works; names of containers on a host may differ."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()

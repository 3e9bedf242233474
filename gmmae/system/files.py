"""Files and folders that are written whole, or not at all: beside their place, and then renamed.

A folder NAME is written as `.NAME.partial`. A former NAME is `.NAME.former` for a moment, and put back if the process is killed
in it. `.NAME.lock` lets one process write at a time; the next one removes what a killed one has left.
"""

import csv
import ctypes
import errno
import glob
import io
import os
import shutil
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from gmmae.system import locks
from gmmae.system.errors import InputError, Interrupted, StorageError, exit_code, raise_interrupted

ANYTHING = "."
"""The mark that all have."""
LEFT_AFTER_S = 86400
"""After this a half-written file was left by a killed process."""
FAILED = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.EFBIG, errno.ENODEV)
"""Errors of a disk, where the path is right."""
TAKEN_AWAY = (errno.ENOENT, errno.EACCES, errno.EPERM)
"""Errors of a folder that could be written before."""


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")  # for names of files in other encodings


def csv_text(rows: Iterable[Mapping[str, object]], columns: Iterable[str]) -> str:
    r"""Comma-separated values under a header, with empty cells for what a row lacks.

    >>> csv_text([{"name": "a", "loss": 0.5}, {"name": "b,c"}], ("name", "loss"))
    'name,loss\na,0.5\n"b,c",\n'
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, tuple(columns), restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file that takes the place of `path` when the block ends. If the block raises, nothing has changed.

    The last of several writers wins. A pipe or a device is written as it is.
    """
    path = _followed(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        yield path
        return
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFT_AFTER_S:
                left.unlink()
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        part.touch(exist_ok=False)
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _followed(path: Path) -> Path:
    with suppress(FileNotFoundError):
        path.stat()
    return Path(os.path.realpath(path))


@contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """`whole_file` for the file of `--out`, whose block does nothing but write it. SIGTERM and SIGHUP leave nothing either."""
    with stoppable(), writing("--out", path, "file"), whole_file(path) as part:
        yield part


@contextmanager
def whole_folder(out: Path, option: str = "--out", mark: str = "", waits: bool = False) -> Iterator[Path]:
    """An empty folder that takes the place of `out` when the block ends. If the block raises, nothing has changed.

    An earlier result of the same command has the file `mark`, and is replaced. In the block SIGTERM and SIGHUP raise as Ctrl-C
    does. A process that `waits` for another one that is writing the folder says so; otherwise it is refused.
    """
    place, made = Path(os.path.realpath(out)), None
    try:
        with ExitStack() as held:
            held.callback(remove_empty, [path for path in place.parents if not path.exists()])
            with writing(option, out, "folder"):
                partial, former, _ = _besides(place)
                place.parent.mkdir(parents=True, exist_ok=True)
                held.enter_context(_alone(place, option, waits))
                _require_ours(out, mark, option)
                partial.mkdir()
                made = partial.stat()
            with stoppable(), writing(option, out, "folder", partial):
                yield partial
                _require_ours(out, mark, option)
                _flush_all(partial)
                if place.exists() and any(place.iterdir()):
                    place.rename(former)
                partial.rename(place)
    except KeyboardInterrupt as error:
        if made is not None and place.exists() and os.path.samestat(place.stat(), made):
            raise _after(out, error) from None
        raise


def _besides(place: Path) -> list[Path]:
    if place == place.parent:
        raise PermissionError(errno.EPERM, "the root of all folders")
    return [place.with_name(f".{place.name}.{kind}") for kind in ("partial", "former", "lock")]


@contextmanager
def _alone(place: Path, option: str, waits: bool = False) -> Iterator[None]:
    def busy(holder: str) -> None:
        if not waits:
            raise InputError(
                f"{option} must be written by one process at a time; got {place}, which {holder} is writing: wait for it, "
                "end it, or name another"
            )
        print(f"waiting for {holder}, which is writing {place}", file=sys.stderr, flush=True)

    partial, former, lock = _besides(place)

    def clear() -> None:
        if former.exists() and not place.exists():
            former.rename(place)
        for left in (partial, former):
            shutil.rmtree(left, ignore_errors=True)

    with locks.held(lock, busy):
        try:
            clear()
            yield
        finally:
            clear()
            lock.unlink(missing_ok=True)


def claim_output(out: Path, mark: str | bytes | None = "", option: str = "--out") -> None:
    """Refuses an output that is not a command's to write, before the command begins what takes long.

    An earlier result, which is replaced, has `mark`: a file in a folder, or bytes at the head of a file; empty: there is none.
    None is for a work directory, which is entered.
    """
    place = Path(os.path.realpath(out))
    is_file = isinstance(mark, bytes)
    with writing(option, out, "file" if is_file else "place"):
        if is_file:
            os.stat(f"{place.parent}/")  # which nothing makes
        if _besides(place)[-1].exists():
            with _alone(place, option):
                pass
        _require_ours(out, mark, option)


def _require_ours(out: Path, mark: str | bytes | None, option: str) -> None:
    place = _followed(out)
    if mark is None or not place.exists():
        return
    is_file, held = isinstance(mark, bytes), ""
    if place.is_dir():
        held = os.listdir(place)
    elif place.is_file():
        with place.open("rb") as file:
            held = file.read(4096)  # in which the mark stands
    if place.is_dir() == is_file or (held and mark != ANYTHING and not (mark and cast(Any, mark) in held)):
        kind = "file" if is_file else "folder"
        earlier = ", or an earlier result, which is replaced" if mark else ""
        raise InputError(
            f"{option} must be a {kind} that is new or empty{earlier}; got {out}, which holds something else: name another"
        )
    if is_file:
        return
    here = mark != ANYTHING and Path.cwd().is_relative_to(place)
    if here or place.is_mount():
        why = "in which the command was given" if here else "where a disk is mounted"
        raise InputError(f"{option} must be a folder that can be replaced; got {out}, {why}: name a folder in it")


def print_result(out: Path, lines: Iterable[object]) -> None:
    """Prints lines after `out` was written; Ctrl-C says that it was."""
    try:
        print(*lines, sep="\n", flush=True)
    except KeyboardInterrupt as error:
        raise _after(out, error) from None


def _after(out: Path, error: KeyboardInterrupt) -> Interrupted:
    return Interrupted(f"{out} is written, and whole", exit_code(error))


def remove_empty(folders: Sequence[Path]) -> None:
    """Removes the empty ones, in their order."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def writing(option: str, place: Path, kind: str, inside: Path | None = None) -> Iterator[None]:
    """Turns errors of the file system into errors for the user, who calls the place `option`.

    `inside` could be written before; if None, the path itself may be wrong.
    """
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        taken_away = error.errno in TAKEN_AWAY and inside is not None and Path(str(error.filename)).is_relative_to(inside)
        if error.errno in FAILED or taken_away:
            raise StorageError(
                f"{option} must stay a {kind} that can be written; writing {place} failed ({why}): nothing was written; see to "
                "the disk, and give the same command again"
            ) from error
        if inside is None:
            raise InputError(f"{option} must be a {kind} that can be written; got {place} ({why}): name another") from error
        raise


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM and SIGHUP raise, so that what is half written is removed, unless they are ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in handled:
            signal.signal(number, raise_interrupted)
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _flush_all(folder: Path) -> None:
    """Of a whole file system, which takes 0.1 s for 2000 files, not 10 s."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(descriptor)

"""A folder of finished results. The name of an entry is a hash of its inputs, and an entry is whole or not there.

An entry is written into a temporary folder, flushed to disk and renamed. Its manifest has the hashes of its files. One process
at a time works on an entry, and the others wait. So every process of a distributed run may ask for it.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gmmae.data.extraction.tasks import sha256
from gmmae.data.volumes import DataError
from gmmae.system import locks
from gmmae.system.errors import StorageError
from gmmae.system.files import FAILED

MANIFEST = "manifest.json"
STALE_AFTER_S = 30 * 24 * 3600.0
"""Age after which the remains of a killed process are removed."""


def key(inputs: object) -> str:
    """Returns twenty hexadecimal digits of the SHA-256 of any JSON value.

    >>> key({"size": 16}) == key({"size": 16}) != key({"size": 32})
    True
    """
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:20]


def whole(entry: Path) -> bool:
    """Returns whether an entry has all its files with their original bytes."""
    try:
        hashes = json.loads((entry / MANIFEST).read_text())
        return all(sha256(entry / name) == digest for name, digest in hashes.items())
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def obtain(
    place: Path, name: str, make: Callable[[Path], None], say: Callable[[str], None], refresh: bool = False
) -> tuple[Path, bool]:
    """Returns the entry `name`, and makes it first where it is not whole.

    Args:
      place: the cache's folder.
      name: the entry's `key`.
      make: writes the entry's files into the folder it is given.
      say: takes a line for the user, when it waits for another process.
      refresh: makes an existing entry again.

    Returns:
      The entry's folder, and whether it was there already.

    Raises:
      DataError: the folder cannot be written or locked.
      StorageError: its disk is full, or failed.
    """
    entry = place / name
    if not refresh and whole(entry):
        return entry, True
    try:
        place.mkdir(parents=True, exist_ok=True)
        with locks.held(place / f"{name}.lock", lambda holder: say(f"waiting for {holder}, which prepares {entry}")):
            _remove_stale(place, name)
            if not refresh and whole(entry):
                return entry, True
            shutil.rmtree(entry, ignore_errors=True)
            temporary = place / f".{name}-{os.getpid()}"
            temporary.mkdir()
            try:
                make(temporary)
                _seal(temporary)
                temporary.rename(entry)
                _flush(place)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise (StorageError if error.errno in FAILED else DataError)(
            f"data.cache must be a folder that can be written and locked; {place}: {error.strerror or error}"
        ) from error
    return entry, False


def _seal(folder: Path) -> None:
    """Flushes every file, then the manifest of their hashes, then the folder."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    for path in files:
        _flush(path)
    (folder / MANIFEST).write_text(json.dumps({path.name: sha256(path) for path in files}))
    _flush(folder / MANIFEST)
    _flush(folder)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_stale(place: Path, name: str) -> None:
    """Removes temporary folders of killed processes: those of this entry, whose lock is held, and old ones of others."""
    for folder in place.glob(".*-*"):
        with suppress(OSError):
            if folder.name[1:].partition("-")[0] == name or old(folder):
                shutil.rmtree(folder, ignore_errors=True)


def old(path: Path) -> bool:
    """Returns whether the path is older than `STALE_AFTER_S`."""
    return time.time() - path.stat().st_mtime > STALE_AFTER_S

"""A folder of made files, replaced as a whole: a reader never finds files of two makings in it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gmmae.base.errors import InputError


@contextmanager
def rebuilt(folder: Path) -> Iterator[Path]:
    """An empty folder that takes the place of `folder` when the block ends, and vanishes when the block raises.

    Raises:
      InputError: the folder, or the one that it lies in, cannot be written.
    """
    new, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{which}") for which in ("new", "old"))
    try:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        try:
            yield new
            if folder.exists():
                os.replace(folder, old)
            os.replace(new, folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"{folder} must be a folder that can be written; got {error.strerror or error}: make it writable, or move it away"
        ) from error

"""JAX's persistent cache of compiled programs, in a folder of the user's, which may serve several hosts.

JAX's key of an entry leaves out the number of threads of a CPU's operation from 0.12 on. Where bits depend on that, it has a
folder of its own. A damaged entry costs a warning of JAX, and the program is compiled.
"""

import os
import tempfile
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from gmmae.system.environment import CACHE_FOLDER, CACHE_MIN_S, THREADS
from gmmae.system.errors import write_error

LIMIT_BYTES = 2**30
"""At the start of a process. A program takes from ten kilobytes to a few megabytes."""

ENTRIES = f"*-{'[0-9a-f]' * 64}-cache"
"""What JAX writes, and nobody else."""


def user_cache() -> Path:
    """`gmmae` in $XDG_CACHE_HOME, or in `~/.cache`; raises RuntimeError for a user without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gmmae"


def keep(setting: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Tells JAX, before it is imported, where to keep compiled programs. JAX's own variable goes before.

    A folder that cannot be used costs a line on standard error, and time.
    """
    if setting == "off" or CACHE_FOLDER in environ:
        return
    try:
        folder = user_cache() / "compiled" if setting == "on" else Path(setting).expanduser()
        folder /= f"threads_{environ[THREADS]}" if THREADS in environ else ""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is in it will be executed
        with tempfile.TemporaryFile(dir=folder):
            pass
        # JAX can evict too, but locks the folder at each access, and 0.10 writes no more once an entry has no time stamp.
        size = 0
        with suppress(FileNotFoundError):  # another process is as far as this one
            for path in sorted(folder.glob(ENTRIES), key=os.path.getmtime, reverse=True):
                size += path.stat().st_size
                if size > LIMIT_BYTES:
                    path.unlink()
    except (OSError, RuntimeError) as error:
        write_error(f"warning: compiled programs cannot be kept, and every start takes as long as the first ({error})\n")
        return
    environ[CACHE_FOLDER] = str(folder.absolute())
    environ.setdefault(CACHE_MIN_S, "0.1")

"""JAX's persistent cache of compiled programs, in a folder of the user's.

One folder serves all hosts. JAX's key of an entry has its version, the program, the GPU's model or the CPU's features, and the
compiler's options. The number of threads of a CPU's operation is in the key of JAX 0.10 but not of 0.12. Where it is fixed,
because bits depend on it, it has a folder of its own.
"""

import os
import re
import tempfile
import warnings
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path

from gmmae.system.environment import CACHE_FOLDER, CACHE_MIN_S, THREADS
from gmmae.system.errors import write_error

LIMIT_BYTES = 2**30
"""The limit of the folder's size when a process begins. A program takes from ten kilobytes to a few megabytes."""

_ENTRY = re.compile(r".+-[0-9a-f]{64}-cache")
_WARNING = r"Error (?P<what>reading|writing) persistent compilation cache entry for '(?P<program>[^']+)'"


def user_cache() -> Path:
    """Returns `gmmae` in the folder for data that programs can make again: $XDG_CACHE_HOME, or `~/.cache`.

    Raises:
      RuntimeError: the user has no home.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gmmae"


def keep(setting: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Tells JAX, which must not have been imported yet, where to keep compiled programs.

    Where JAX's own variable is set, it decides. A folder that cannot be used costs a line on standard error, and time.

    Args:
      setting: `compilation_cache` of the configuration.
      environ: the process's environment.
    """
    if setting == "off" or CACHE_FOLDER in environ:
        return
    try:
        folder = user_cache() / "compiled" if setting == "on" else Path(setting).expanduser()
        folder /= f"threads_{environ[THREADS]}" if THREADS in environ else ""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is in it will be executed
        with tempfile.TemporaryFile(dir=folder):
            pass
        _evict_oldest(folder)
    except (OSError, RuntimeError) as error:
        write_error(f"warning: compiled programs cannot be kept, and every start takes as long as the first ({error})\n")
        return
    environ[CACHE_FOLDER] = str(folder.absolute())
    environ.setdefault(CACHE_MIN_S, "0.1")


def _evict_oldest(folder: Path) -> None:
    """Deletes the oldest entries of a folder that has outgrown its limit, and nothing that JAX has not written.

    JAX can do so itself, but locks the folder for every access then, and 0.10 writes no more once an entry has no time stamp.
    """
    entries = []
    for path in folder.iterdir():
        if _ENTRY.fullmatch(path.name):
            with suppress(FileNotFoundError):  # another process is as far as this one
                stat = path.stat()
                entries.append((stat.st_mtime, stat.st_size, path))
    excess = sum(size for _, size, _ in entries) - LIMIT_BYTES
    for _, size, path in sorted(entries):
        if excess <= 0:
            break
        path.unlink(missing_ok=True)
        excess -= size


@contextmanager
def repairing_cache() -> Iterator[None]:
    """Around a compilation: what JAX warns of its cache becomes one line, and a damaged entry is deleted.

    JAX writes entries in place: a full disk, or a kill at that moment, leaves one that cannot be read and is never replaced.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message=_WARNING)
        yield
    for warning in caught:
        text = " ".join(str(warning.message).split())
        if match := re.match(_WARNING, text):
            write_error(f"warning: {text[:300]}: {'compiled anew' if match['what'] == 'reading' else 'not kept'}\n")
            _delete_entries(match["program"])
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _delete_entries(program: str) -> None:
    """Deletes all entries of a program's name: JAX does not tell which one it was."""
    import jax

    folder = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    with suppress(OSError):
        for path in Path(folder).glob(f"{program}-*"):
            if _ENTRY.fullmatch(path.name):
                path.unlink(missing_ok=True)

"""One call of the command line, in this process or in another one, with its output and its end."""

import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from typing import IO, NamedTuple
from unittest import mock

from gmmae.cli import main
from gmmae.system import guard

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0
"""Maximum seconds of a call."""

PROGRAM = "import sys; from gmmae.cli.main import main; sys.exit(main())"


class Outcome(NamedTuple):
    """The outcome of a call.

    Attributes:
      code: the exit code; None after an exception or at the time limit.
      out, err: the output, also of native libraries.
      crash: the last line of a traceback, or the time limit; empty otherwise.
    """

    code: int | None
    out: str
    err: str
    crash: str

    @property
    def errors(self) -> list[str]:
        """The lines on standard error that begin with `error: `."""
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


class OutOfTimeError(BaseException):
    """The call took longer than the limit. No `except Exception` catches this."""


class EndedError(BaseException):
    """The program has called `os._exit`."""


def in_process(arguments: Sequence[str], cwd: Path, limit_s: float = LIMIT_S) -> Outcome:
    """Calls `gmmae` in this process."""
    code, crash = None, ""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with (
            _writing_to(out, err),
            chdir(cwd),
            mock.patch("os._exit", _raise_ended),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("default")
            warnings.showwarning = _show
            try:
                with _limited(limit_s):
                    code = guard.guarded(main.dispatch, list(arguments))
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 1
            except EndedError as error:
                code = error.args[0]
            except OutOfTimeError:
                crash = f"not done within {limit_s:g} s"
            except BaseException as error:  # pytest's own too, which warnings may become
                crash = _place(error)
        return Outcome(code, _contents(out), _contents(err), crash)


def subprocess_of(arguments: Sequence[str], cwd: Path, limit_s: float = LIMIT_S) -> Outcome:
    """Calls the installed command's entry point in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, cwd=cwd, env=environment, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return Outcome(None, "", "", f"not done within {limit_s:g} s")
    out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    crash = err.strip().splitlines()[-1] if "Traceback (most recent call last)" in err else ""
    return Outcome(None if crash else done.returncode, out, err, crash)


def _raise_ended(code: int) -> None:
    raise EndedError(code)


def _show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
    sys.stderr.write(f"{filename}:{lineno}: {category.__name__}: {message}\n")


def _place(error: BaseException) -> str:
    """Returns the error, and the line of the project that raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if f"{os.sep}gmmae{os.sep}" in frame.filename]
    at = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}{at}"


def _contents(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


@contextmanager
def _writing_to(*files: IO[bytes]) -> Iterator[None]:
    """Sends both streams to files, those of Python and of native libraries."""
    with ExitStack() as stack:
        for name, number, file in zip(("stdout", "stderr"), (1, 2), files, strict=True):
            getattr(sys, name).flush()
            kept = os.dup(number)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, number)
            os.dup2(file.fileno(), number)
            stream = stack.enter_context(os.fdopen(os.dup(number), "w", errors="backslashreplace"))
            stack.enter_context(mock.patch.object(sys, name, stream))
        yield


@contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    def end(*_: object) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

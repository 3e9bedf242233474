"""The workers of a sweep on this host, and how those ended that died."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FrameType

from gmmae.sweep.runs import CRASHED, REPLACE, BusyError, Failure, SweepDir
from gmmae.system.errors import InputError, StorageError
from gmmae.system.interrupts import REASONS, Interrupts
from gmmae.system.stop_reasons import EXIT_CODES, INTERRUPTED

PROGRAM = (sys.executable, "-P", "-m", "gmmae.sweep.worker")

LIFELINE = os.pipe()
"""The standard input of all workers, and the end that this process alone holds and its death closes."""

POLL_S, WAIT_S = 0.1, 1.0
"""Between two looks at workers, and at runs that others compute."""

MAX_FAILED_STARTS = 3
"""Workers that may die, one after the other, before they have begun a run."""

ENDS_WELL = (REPLACE, *(EXIT_CODES[reason] for reason in INTERRUPTED))
"""Exit codes of a worker that is to be replaced."""

TRACEBACK = "Traceback (most recent call last):"
TAIL_BYTES = 16384
LINE_LENGTH = 300


class Signals(Interrupts):
    """Handles the second signal too: otherwise this process would die before its workers."""

    count = 0

    def _note(self, number: int, _: FrameType | None) -> None:
        self.reason = self.reason or REASONS[signal.Signals(number)]
        self.count += 1


def start(folder: SweepDir, arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a worker, which ends when this process does. `arguments` are its command, and what follows the work directory."""
    command, *rest = arguments
    with folder.workers_log.open("ab") as log:
        return subprocess.Popen(
            (*PROGRAM, command, str(folder.root), *rest),
            stdin=LIFELINE[0],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": import_path(), **environment},
        )


def import_path() -> str:
    """The PYTHONPATH with which a program imports everything that this process can."""
    return os.pathsep.join(os.path.abspath(path or ".") for path in sys.path)


def note_end(folder: SweepDir, pid: int, code: int) -> str:
    """Notes how a worker ended in the run that it was at, if any, and returns that as a line.

    Raises the `StorageError` that ended it, if one did.
    """
    for name, attempt in folder.attempts_of(pid):
        log, path = folder.log(name), folder.attempt(name)
        how = f"{describe(code)}: {last_words(log, code) or 'no output'} ({log})"
        if code == StorageError.exit_code:
            path.unlink(missing_ok=True)
            said = next(reversed(_last_lines(log)), "")
            if said.startswith("error: "):
                raise StorageError(f"{said.removeprefix('error: ')} ({log})")
            raise StorageError(  # the log has no room either
                f"{folder.root} must have space for what {name} writes; a write failed: make room, and give the command again"
            )
        if code == InputError.exit_code:  # one of several processes, which cannot go on
            folder.write(folder.failure(name), Failure(CRASHED, how))
            path.unlink(missing_ok=True)
        elif not attempt.timed_out:
            folder.write(path, attempt._replace(how=how))
        return f"{name} has lost its process, {how}"
    if code == StorageError.exit_code:  # between two runs
        raise StorageError(
            f"{folder.root} must stay a folder that can be written; a worker's write failed: make room, and give the same "
            "command again"
        )
    return ""


def keep(
    folder: SweepDir,
    arguments: Sequence[str],
    left: Callable[[], Collection[str]],
    say: Callable[[str], None],
    signals: Signals,
    *,
    environments: Sequence[Mapping[str, str]],
) -> None:
    """Keeps workers running until all runs have an end, also those that others compute, or a signal comes.

    A worker that dies is replaced, and the run tried again or left out (`SweepDir.begin`).

    Raises:
      InputError: workers die before they begin a run.
    """
    alive: dict[int, subprocess.Popen[bytes]] = {}  # by place in `environments`
    idle, failed_starts, say_once = False, 0, cache(say)
    try:
        while (names := left()) and not signals.reason:
            for place, environment in enumerate(environments[: 0 if idle else len(names)]):
                if place not in alive:
                    alive[place] = start(folder, arguments, environment)
            for place, worker in list(alive.items()):
                if worker.poll() is None:
                    continue
                del alive[place]
                idle = worker.returncode == 0
                if lost := note_end(folder, worker.pid, worker.returncode):
                    say(lost)
                began = lost or idle or worker.returncode in ENDS_WELL
                failed_starts = 0 if began else failed_starts + 1
                if failed_starts == MAX_FAILED_STARTS:
                    how = f"{describe(worker.returncode)}: {last_words(folder.workers_log, 1) or 'no output'}"
                    raise InputError(f"a worker must be able to begin a run; got {how} ({folder.workers_log})")
            if idle and not alive and (names := left()) and (holder := _holder(folder, names)):
                say_once(f"waiting for {holder}")
                time.sleep(WAIT_S)
            elif not alive:
                idle = False
            time.sleep(POLL_S)
    finally:
        end(folder, alive.values(), signals)


def wait(folder: SweepDir, worker: subprocess.Popen[bytes], signals: Signals) -> int:
    """Waits for a single worker, and returns its return code. Signals end it as in `keep`."""
    try:
        while worker.poll() is None and not signals.reason:
            time.sleep(POLL_S)
    finally:
        end(folder, [worker], signals)
    return worker.returncode


def _holder(folder: SweepDir, names: Collection[str]) -> str | None:
    holder = ""
    for name in names:
        try:
            with folder.turn(name):
                return None
        except BusyError as error:
            holder = f"{error}, which computes {name}"
    return holder


def end(folder: SweepDir, alive: Collection[subprocess.Popen[bytes]], signals: Signals) -> None:
    """Ends workers with SIGTERM, at which they write checkpoints, and after a second signal to this process with SIGKILL."""
    for worker in alive:
        worker.terminate()
    while [worker for worker in alive if worker.poll() is None]:
        if signals.count > 1:
            for worker in alive:
                worker.kill()
                worker.wait()
                for name, _ in folder.attempts_of(worker.pid):
                    folder.attempt(name).unlink()  # that was no fault of the run
        time.sleep(POLL_S)


def describe(code: int) -> str:
    """How a process ended."""
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name if -code in set(signal.Signals) else f'signal {-code}'}"


def last_words(log: Path, code: int) -> str:
    """The last line of a log, or after an exit code of 1 the exception of its last traceback, behind which JAX writes notes.

    Unprintable characters become U+FFFD.
    """
    lines = _last_lines(log)
    line = next(reversed(lines), "")
    starts = [number for number, text in enumerate(lines, start=1) if text == TRACEBACK]
    if code == 1 and starts:
        line = next((text for text in lines[starts[-1] :] if not text.startswith(" ")), line)
    shown = line if len(line) <= LINE_LENGTH else line[:LINE_LENGTH] + "…"
    return "".join(character if character.isprintable() else "\ufffd" for character in shown)


def _last_lines(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.expandtabs().rstrip() for line in text.splitlines() if line.strip()]

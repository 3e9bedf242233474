"""The program of a sweep's subprocess. It runs one command, or stays and runs one after the other.

Each task of a cluster's job may be such a process, and they work together. Only the first one writes and prints.

python -m gmmae.sweep.worker train CONFIG.toml WORKDIR
python -m gmmae.sweep.worker time CONFIG.toml TIMING.json OUT.json
python -m gmmae.sweep.worker serve DESCRIPTOR    # requests and answers: see gmmae.sweep.processes
"""

import gc
import json
import os
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from gmmae.sweep.processes import Answer, die_with_parent
from gmmae.system.errors import InputError
from gmmae.system.garbage import no_collection_of_imports
from gmmae.system.guard import guarded
from gmmae.system.stop_reasons import EXIT_CODES, INTERRUPTED

POLL_S = 0.5
"""Longest wait for a request before signals are handled."""

READ_BYTES = 65536

ANSWERED = {code for reason, code in EXIT_CODES.items() if reason not in INTERRUPTED} | {InputError.exit_code}
"""Exit codes of commands after which a process that serves goes on: results, and bad input."""


class Worker:
    """The commands of this process, with what they keep from one run to the next."""

    def __init__(self) -> None:
        self._commands: object = None
        self._failed = False

    def run(self, command: str, *arguments: str) -> int:
        """Runs a command, and returns its exit code. The first call imports the commands, which are large."""
        with no_collection_of_imports():
            self._commands = self._commands or import_module("gmmae.sweep.worker_commands").Commands()
        return getattr(self._commands, command)(*arguments)

    def serve(self, requests: int, answers: int) -> int:
        """Runs the requested commands, one at a time, and answers. Returns the exit code of this process.

        An interrupted command, an unexpected error or a full memory ends the process without an answer. The next command might
        fail because of it.

        Args:
          requests: the descriptor of the requests.
          answers: the descriptor of the answers.
        """
        first, folder = True, os.getcwd()
        with suppress(KeyboardInterrupt):  # SIGINT between two commands
            for request in _read(requests):
                os.chdir(folder)  # paths are relative to it, and a workload may have left it
                _send_output_to(request["log"])
                code = guarded(self._run_noting_failures, request["command"], *request["arguments"])
                if self._failed or code not in ANSWERED:
                    return code
                gc.collect()  # what is left of a command holds no memory during the next one
                if first:
                    gc.freeze()  # modules need not be looked at again, which takes 0.1 s
                first = False
                os.write(answers, json.dumps(Answer(code, resident_bytes())._asdict()).encode() + b"\n")
        return 0

    def _run_noting_failures(self, *arguments: str) -> int:
        """Runs a command. `guarded` makes bad input of a full memory, so it is noted here."""
        try:
            return self.run(*arguments)
        except InputError:
            raise
        except BaseException:
            self._failed = True
            raise


def _read(requests: int) -> Iterator[dict[str, Any]]:
    """Yields the requests, until one is null or the descriptor ends.

    A signal that comes just before a blocking call is not handled before the call ends. So none takes longer than a moment.
    """
    received = b""
    while True:
        while not select.select([requests], [], [], POLL_S)[0]:
            pass
        data = os.read(requests, READ_BYTES)
        *lines, received = (received + data).split(b"\n")
        for line in lines:
            if (request := json.loads(line)) is None:
                return
            yield request
        if not data:
            return


def _send_output_to(log: str) -> None:
    """Appends what this process prints from now on to a file. What it has printed before is in the file before."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def resident_bytes() -> int:
    """Returns the resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def start(arguments: Sequence[str]) -> int:
    """Runs a command once, with errors as on the command line, or serves. Returns the exit code."""
    if arguments[0] != "serve":
        die_with_parent()
        return guarded(Worker().run, *arguments)
    answers = int(arguments[1])
    os.set_inheritable(answers, False)
    requests, passed_on = os.pipe()
    die_with_parent(passed_on)
    return Worker().serve(requests, answers)


if __name__ == "__main__":
    # Slurm may send it to all processes of a job. Only the parent handles it, and then sends SIGTERM.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    sys.exit(start(sys.argv[1:]))

"""Processes of `train.py` on one work directory, as a person starts them: alone, or several by the options."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gmmae.config.schema import Config
from gmmae.config.toml import to_toml
from gmmae.training.records import Epoch
from gmmae.training.workdir import WorkDir
from tests.waiting import free_port

ROOT = Path(__file__).parent.parent


def python(*words: object, cwd: Path = ROOT, env: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    """Runs Python to its end: on a file, or on a program after `-c`."""
    return subprocess.run([sys.executable, *map(str, words)], cwd=cwd, env=env, capture_output=True, text=True, check=False)


SILENCE_S, START_S = 4.0, 60.0
"""The heartbeat's timeout, and more than a start takes on a busy machine."""


def processes_with(file: str, words: str) -> list[int]:
    """Processes, other than this one, whose command line or environment has some words."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if words.encode() in Path(f"/proc/{name}/{file}").read_bytes() and int(name) != os.getpid():
                found.append(int(name))
    return found


class End(NamedTuple):
    """How a process ended: its exit code, what it printed, and its last line on standard error, which is ours if it is one."""

    code: int
    out: str
    error: str


class Launch:
    """Processes of two virtual devices each. What is left of them is killed in the end.

    Args:
      folder: for configurations and outputs.
      workdir: of the run, by default in that folder.
    """

    def __init__(self, folder: Path, workdir: Path | None = None):
        self.folder, self.workdir = folder, workdir or folder / "work"
        folder.mkdir(parents=True, exist_ok=True)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, config: Config | Sequence[Config], ids: Sequence[int] = (0, 1), **options: object):
        """Starts processes of two with one configuration, or with one each; without ids, one that trains alone."""
        place = {"coordinator": f"127.0.0.1:{free_port()}", "num-processes": 2, "heartbeat-timeout-s": SILENCE_S} if ids else {}
        self.processes = []
        for i in ids or (0,):
            file = self.folder / f"{len(self._all)}.toml"
            file.write_text(to_toml(config if isinstance(config, Config) else config[i]))
            given = place | ({"start-timeout-s": START_S, "process-id": i} if ids else {}) | options
            words = [str(word) for key, value in given.items() for word in (f"--distributed.{key}", value)]
            command = [sys.executable, "train.py", "--config", file, "--workdir", self.workdir, *words]
            environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2"}
            with file.with_suffix(".out").open("w") as out, file.with_suffix(".err").open("w") as error:
                process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=error)
            self.processes.append(process)
            self._all.append(process)

    def rows(self) -> list[Epoch]:
        """The history so far."""
        return WorkDir(self.workdir).read_rows()

    def wait_for_epochs(self, count: int):
        """Waits until the history has so many rows."""
        end = time.monotonic() + 2 * START_S
        while len(self.rows()) < count:
            assert time.monotonic() < end
            assert all(process.poll() is None for process in self.processes), [self._end(i) for i in range(len(self.processes))]
            time.sleep(0.005)

    def finish(self, within_s: float = 2 * START_S, only: Sequence[int] | None = None) -> list[End]:
        """Waits for the processes, or for some of them, and returns how they ended."""
        deadline = time.monotonic() + within_s
        ranks = range(len(self.processes)) if only is None else only
        for i in ranks:
            self.processes[i].wait(max(0.01, deadline - time.monotonic()))
        return [self._end(i) for i in ranks]

    def _end(self, i: int) -> End:
        log = self.folder / f"{self._all.index(self.processes[i])}"
        texts = [log.with_suffix(suffix).read_text(errors="replace") for suffix in (".out", ".err")]
        return End(self.processes[i].returncode, *texts)

    def kill(self):
        """Kills what is left."""
        for process in self._all:
            process.kill()
            process.wait()
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def left(self) -> list[int]:
        """Processes whose command line names the work directory."""
        return processes_with("cmdline", str(self.workdir))

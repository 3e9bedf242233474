"""Processes of the backends. Frameworks never share a process, and one works at a time."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.child import ROOT
from benchmarks.peers.backends import BACKENDS
from benchmarks.peers.torch_settings import SETTINGS

IDLE_S = 1.0
"""Seconds for which the idle processes are observed."""


class Worker:
    """Backend in its own process."""

    def __init__(self, name: str, folder: Path, settings: Sequence[str] = ()):
        self.name, self.title, self.settings = name, BACKENDS[name].title, tuple(settings)
        # A framework that takes all of a GPU's memory at once would leave none to the others.
        environ = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONPATH": str(ROOT)}
        # On a CPU gmmae has a device a core, as `make train`. The others divide each operation among as many threads.
        environ["JAX_NUM_CPU_DEVICES"] = str(len(os.sched_getaffinity(0)))
        environ |= {key: value for setting in settings for key, value in SETTINGS[setting].environ.items()}
        self.error_file = folder / f"{name}.err"
        with self.error_file.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.peers.worker", name, str(folder), "--settings", *settings],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=environ,
            )
        self._answer()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Sends a command, and returns the answer with its seconds."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.close()
            raise SystemExit(f"{self.title} ended with {code}:\n{self.error_file.read_text()[-3000:]}")
        return json.loads(line)

    def cpu_s(self) -> float:
        """Returns the processor time so far in seconds."""
        field = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(field[11]) + int(field[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Ends the process. A worker ends when there are no more commands."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@contextmanager
def start_workers(
    names: list[str], folder: Path, settings: Mapping[str, Sequence[str]] | None = None
) -> Iterator[list[Worker]]:
    """Starts the backends one after the other, with the settings of each, and ends them all."""
    workers: list[Worker] = []
    try:
        for name in names:
            workers.append(Worker(name, folder, settings=(settings or {}).get(name, ())))
        yield workers
    finally:
        for worker in workers:
            worker.close()


def idle_shares(workers: list[Worker]) -> dict[str, float]:
    """Returns the share of a core that each idle backend uses. A spinning thread pool would slow the others."""
    before = [worker.cpu_s() for worker in workers]
    time.sleep(IDLE_S)
    return {worker.name: (worker.cpu_s() - start) / IDLE_S for worker, start in zip(workers, before, strict=True)}

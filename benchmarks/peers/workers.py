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

from benchmarks.child import ROOT, free_ports
from benchmarks.peers.backends import BACKENDS
from benchmarks.peers.torch_settings import SETTINGS

IDLE_S = 1.0
"""Seconds for which the idle processes are observed."""


class Worker:
    """Backend in one process, or in several that train together. `python` is that of its environment."""

    def __init__(self, name: str, folder: Path, python: str = sys.executable, settings: Sequence[str] = ()):
        self.name, self.title, self.settings = name, BACKENDS[name].title, tuple(settings)
        [port] = free_ports(1)
        count = BACKENDS[name].processes
        # A framework that takes all of a GPU's memory at once would leave none to the others.
        environ = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONPATH": str(ROOT)}
        # On a CPU gmmae has a device a core, as `make train`. The others divide each operation among as many threads.
        environ["JAX_NUM_CPU_DEVICES"] = str(len(os.sched_getaffinity(0)) if count == 1 else 1)
        if count > 1:
            environ["OMP_NUM_THREADS"] = "1"
        environ |= {key: value for setting in settings for key, value in SETTINGS[setting].environ.items()}
        self.processes, self.errors = [], []
        self.began = time.perf_counter()
        for rank in range(count):
            words = [name, str(folder), "--rank", str(rank), "--processes", str(count), "--port", str(port)]
            words += ["--settings", *settings]
            self.errors.append(folder / f"{name}.{rank}.err")
            with self.errors[-1].open("w") as errors:
                self.processes.append(
                    subprocess.Popen(
                        [python, "-m", "benchmarks.peers.worker", *words],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        text=True,
                        cwd=ROOT,
                        env=environ,
                    )
                )
        self._answers()
        self.start_s = time.perf_counter() - self.began

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Sends a command to all processes, and returns the first one's answer with the seconds of the slowest."""
        return self.ask_all(do, **arguments)[0]

    def ask_all(self, do: str, **arguments: Any) -> list[dict[str, Any]]:
        """Sends a command to all processes, and returns all answers."""
        for process in self.processes:
            assert process.stdin
            process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            process.stdin.flush()
        return self._answers()

    def _answers(self) -> list[dict[str, Any]]:
        answers = []
        for process, errors in zip(self.processes, self.errors, strict=True):
            assert process.stdout
            line = process.stdout.readline()
            if not line:
                code = process.wait()
                self.close()
                raise SystemExit(f"{self.title} ended with {code}:\n{errors.read_text()[-3000:]}")
            answers.append(json.loads(line))
        slowest = max(answer.get("seconds", 0.0) for answer in answers)
        return [answer | {"seconds": slowest} for answer in answers]

    def cpu_s(self) -> float:
        """Returns the processor time so far in seconds."""
        fields = [Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split() for process in self.processes]
        return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Ends the processes. A worker ends when there are no more commands."""
        for process in self.processes:
            assert process.stdin
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout
            process.stdout.close()


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

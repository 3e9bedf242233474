"""A run of two processes of two virtual devices each, as a person starts it: start, watch, signal, wait, compare."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from gmmae.config.toml import to_toml
from gmmae.models.settings import ModelConfig
from tests.small import small

ROOT = Path(__file__).parent.parent.parent
EPOCHS, EVERY = 30, 2
SILENCE_S, START_S = 4.0, 20.0
"""`distributed.heartbeat_timeout_s` and `distributed.start_timeout_s` of every run."""
PATIENCE_S = 240.0
"""For what has no bound of its own: that a moment comes, that an undisturbed run ends. Much, on a busy machine."""
CONFIG = small(
    parallel__devices="all",
    stop__max_epochs=EPOCHS,
    checkpoint__every_epochs=EVERY,
    # What follows makes a run cheap: most of its time is starting, tracing and drawing.
    data__ndim=2,
    model=ModelConfig(filters=(3,), kernels=(3,), latent_dim=8, components=2),
    log__figure_samples=1,
)


class Run:
    """One work directory and the commands on it.

    Args:
      folder: made for this run; everything of it is inside.
      compiled: JAX's cache of compiled programs.
      options: more of `train.py`'s.

    Attributes:
      workdir: in a folder of its own, `disk`, on which a small disk can be mounted.
      spoilt: epochs whose checkpoints have been damaged since the processes were last started.
    """

    def __init__(self, folder: Path, compiled: Path, options: Iterable[object] = ()):
        self.folder, self.compiled, self.options = folder, compiled, tuple(map(str, options))
        self.disk = folder / "disk"
        self.workdir = self.disk / "work"
        self.disk.mkdir(parents=True)
        self.spoilt: set[int] = set()
        self.config = folder / "config.toml"
        self.config.write_text(to_toml(CONFIG), encoding="utf-8")
        self.port = free_port()
        self.processes: dict[int, subprocess.Popen] = {}
        self.logs: dict[int, Path] = {}
        self.everyone: list[subprocess.Popen] = []

    def command(self, rank: int, port: int | None = None) -> list[str]:
        place = {
            "coordinator": f"127.0.0.1:{port or self.port}",
            "num-processes": 2,
            "process-id": rank,
            "start-timeout-s": START_S,
            "heartbeat-timeout-s": SILENCE_S,
        }
        words = [str(word) for key, value in place.items() for word in (f"--distributed.{key}", value)]
        return ["--config", str(self.config), "--workdir", str(self.workdir), *words, *self.options]

    def start(self, *ranks: int) -> None:
        """Starts those of these processes that do not run, always by the same command."""
        for rank in ranks:
            if rank not in self.processes or self.processes[rank].poll() is not None:
                self.processes[rank], self.logs[rank] = self.launch(self.command(rank))

    def launch(self, arguments: list[str]) -> tuple[subprocess.Popen, Path]:
        """A process of `train.py`, and the file without its ending that it writes to: `.out`, `.err`."""
        log = self.folder / f"process_{len(self.everyone)}"
        environment = os.environ | {
            "JAX_NUM_CPU_DEVICES": "2",
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self.compiled),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        with log.with_suffix(".out").open("wb") as out, log.with_suffix(".err").open("wb") as err:
            command = [sys.executable, "train.py", *arguments]
            self.everyone.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=err))
        return self.everyone[-1], log

    def starts_jax(self, rank: int) -> bool:
        """Whether a process imports JAX: its parent has its deadline then; one that is stopped before that stays stopped."""
        return starts_jax(self.processes[rank].pid)

    def send(self, number: signal.Signals, *ranks: int) -> None:
        """Sends it as a person or a launcher does, to the processes that were started."""
        for rank in ranks:
            os.kill(self.processes[rank].pid, number)

    def strike(self, number: signal.Signals, rank: int) -> None:
        """Sends it to the process that trains: a child of the one that was started."""
        for worker in children_of(self.processes[rank].pid):
            os.kill(worker, number)

    def send_job(self, number: signal.Signals) -> None:
        """Sends it as a scheduler does: to all processes that still run, and to those that they have started."""
        for pid in [*self.children(), *(process.pid for process in self.processes.values() if process.poll() is None)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def finish(self, timeout_s: float) -> list[int | None]:
        """The exit codes by rank; None for a process that has not ended in time."""
        deadline = time.monotonic() + timeout_s
        while any(process.poll() is None for process in self.processes.values()) and time.monotonic() < deadline:
            time.sleep(0.01)
        if all(process.poll() is not None for process in self.processes.values()):
            while processes_of(self.workdir) and time.monotonic() < deadline:  # whose parents were killed
                time.sleep(0.01)
        return [process.poll() for _, process in sorted(self.processes.items())]

    def end(self) -> None:
        """Kills what a failed check has left."""
        for pid in processes_of(self.workdir):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.everyone:
            process.kill()
            process.wait()

    def workers(self) -> list[int]:
        """Processes that extract cubes for this run's processes."""
        return [pid for pid in self.children() if b"gmmae.data.extraction.processes" in _command_line(pid)]

    def children(self) -> list[int]:
        """Processes that this run's processes have started, and those that these have."""
        trains = [pid for process in self.processes.values() for pid in children_of(process.pid)]
        return [*trains, *(pid for worker in trains for pid in children_of(worker))]

    def met(self) -> bool:
        """Whether both processes are connected to JAX's service, which process 0 has: each has a connection to it."""
        return self._sockets("01") >= 2

    def listens(self) -> bool:
        """Whether process 0 waits for process 1."""
        return self._sockets("0A") > 0

    def _sockets(self, state: str) -> int:
        """How many of the coordinator's port are in this state of Linux's tables."""
        tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
        lines = [line.split() for table in tables for line in table]
        return sum(line[1].endswith(f":{self.port:04X}") and line[3] == state for line in lines)

    def holds_workdir(self) -> bool:
        """Whether process 0 has locked the work directory: it has put its name beside the lock."""
        try:
            [worker] = children_of(self.processes[0].pid)
            return (self.workdir / ".lock.owner").read_text().startswith(f"process {worker} ")
        except (OSError, ValueError):
            return False

    def has_begun(self) -> bool:
        """Whether process 0 has said where it begins, which it does at the end of its start; or has ended."""
        return "stops at" in self.logs[0].with_suffix(".out").read_text() or self.processes[0].poll() is not None

    def epochs(self) -> int:
        """Rows in `history.csv`."""
        try:
            return max(0, (self.workdir / "history.csv").read_bytes().count(b"\n") - 1)
        except OSError:
            return 0

    def checkpoints(self) -> list[int]:
        """The epochs of the checkpoints that are whole, the oldest first, as far as their names say."""
        try:
            return sorted(int(name) for name in os.listdir(self.workdir / "checkpoints") if name.isdigit())
        except OSError:
            return []

    def newest_whole(self) -> int:
        """The epoch after which the run has to go on; 0 where there is no checkpoint to go on from."""
        return max(set(self.checkpoints()) - self.spoilt, default=0)

    def set_aside(self) -> set[int]:
        """The epochs of the checkpoints that could not be read."""
        return {int(path.name.partition(".")[0]) for path in (self.workdir / "checkpoints").glob("*.corrupt*")}

    def saving(self) -> bool:
        """Whether Orbax is at it: its temporary folder is there."""
        try:
            return any("orbax-checkpoint-tmp" in name for name in os.listdir(self.workdir / "checkpoints"))
        except OSError:
            return False

    def said(self, rank: int) -> list[str]:
        """What a process said for people: its own error line, or how it ended."""
        return said(self.logs[rank])

    def errors(self) -> str:
        """The ends of what the processes wrote to standard error."""
        texts = [log.with_suffix(".err").read_text()[-3000:] for _, log in sorted(self.logs.items())]
        return "\n----\n".join(texts)

    def wait_until(self, condition: Callable[[], bool], tick_s: float = 0.0005) -> None:
        """Waits until a condition holds of a run that goes on."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if any(process.poll() is not None for process in self.processes.values()):
                raise MissedError(f"a process had ended before the moment came: {self.said(0)} {self.errors()}")
            if time.monotonic() > deadline:
                raise MissedError("the moment did not come")
            time.sleep(tick_s)


def said(log: Path) -> list[str]:
    """The lines of a process's output that are its last words."""
    lines = (log.with_suffix(".out").read_text() + log.with_suffix(".err").read_text()).splitlines()
    return [line for line in lines if line.startswith(("error: ", "checkpoint written; "))]


class MissedError(Exception):
    """The moment for a fault has not been met: nothing can be said."""


def free_port() -> int:
    """A port that stays free between two runs: the system takes none of these for its own connections."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def processes_of(workdir: Path) -> list[int]:
    """Processes, other than this one, whose command line names a work directory."""
    return [pid for pid in _pids() if pid != os.getpid() and str(workdir).encode() in _command_line(pid)]


def gone(pid: int, within_s: float = 60.0) -> bool:
    """Whether a process ends in time; a zombie has ended."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that have not ended."""
    return [child for child in _pids() if _parent(child) == pid]


def starts_jax(pid: int) -> bool:
    """Whether the worker of a process has loaded JAX's library."""
    try:
        return any("libjax_common" in Path(f"/proc/{worker}/maps").read_text() for worker in children_of(pid))
    except OSError:
        return False


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""

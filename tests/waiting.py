"""Ports for other processes, waiting for them, and telling by their locks whether they live: only death lets go of one."""

import fcntl
import random
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

DEADLINE_S = 60.0  # only a failing test comes near it


def wait_until(condition: Callable[[], object], within_s: float = DEADLINE_S, tick_s: float = 0.01):
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(tick_s)


def locked(path: Path) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def free_port() -> int:
    """A port that stays free between two runs: the system takes none of these for its own connections."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port

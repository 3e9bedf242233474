"""A time at which this process is killed, even a stopped one, unless it is put off in time.

A stopped process (SIGSTOP, a debugger, a frozen terminal) can do nothing about itself, and others may not know it, or be on
another host. A child of it can. The child counts the seconds in which it runs itself, not those of a clock: where a whole job
is suspended (`scontrol suspend`, Ctrl-Z, a paused container) the child is too, and nobody is killed for it.

The child is this file, run as a program of the standard library alone.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys

TICKS = 10
"""In the time that is left; the child looks as often, and at least once a second."""

IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that may come to all processes of a job, or of a terminal, and mean the parent."""


class Deadline:
    """Set from the beginning, until `close`.

    Args:
      seconds: from now.
    """

    def __init__(self, seconds: float) -> None:
        command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(seconds)]
        nowhere = subprocess.DEVNULL
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, bufsize=0)
        assert self._child.stdin is not None
        self._pipe = self._child.stdin
        os.set_blocking(self._pipe.fileno(), False)

    def put_off(self, seconds: float) -> None:
        """Sets it to so many seconds from now."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # the child alone is stopped, or was killed
            self._pipe.write(f"{seconds}\n".encode())

    def close(self) -> None:
        """Takes it away."""
        self._child.kill()
        self._pipe.close()
        self._child.wait()


def _watch(parent: int, seconds: float) -> None:
    """The child's part: it ends with its parent, or ends it."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    left_s = seconds
    while left_s > 0:
        tick_s = min(1.0, seconds / TICKS)
        if not select.select([0], [], [], tick_s)[0]:
            left_s -= tick_s
        elif lines := os.read(0, 2**16).split():
            left_s = seconds = float(lines[-1])
        else:
            return  # the parent has ended
    if os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), float(sys.argv[2]))

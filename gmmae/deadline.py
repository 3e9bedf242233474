"""A time at which the kernel kills this process, even a stopped one, unless it is put off in time.

A stopped process (SIGSTOP, a debugger, a frozen terminal) can do nothing about itself, and others may not know it, or be on
another host. A POSIX timer whose signal is SIGKILL can. Linux; elsewhere nothing is done.
"""

import ctypes
import signal
import sys
from typing import Any

SIGEV_SIGNAL = 0
CLOCK_MONOTONIC = 1


class _Event(ctypes.Structure):
    """`struct sigevent`: the value is a union of an int and a pointer, and the whole takes 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class _Spec(ctypes.Structure):
    """`struct itimerspec`: no interval, and the time left in seconds and nanoseconds."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns"))


class Deadline:
    """None at first; `put_off` sets it."""

    def __init__(self) -> None:
        self._timer: ctypes.c_void_p | None = None
        self._libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
        if hasattr(self._libc, "timer_create"):  # glibc before 2.34 has it in another library
            timer, event = ctypes.c_void_p(), _Event(signal=signal.SIGKILL, notify=SIGEV_SIGNAL)
            if self._libc.timer_create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) == 0:
                self._timer = timer

    def put_off(self, seconds: float) -> None:
        """Sets it to so many seconds from now; 0 takes it away."""
        if self._timer is not None:
            spec = _Spec(value_s=int(seconds), value_ns=int(seconds % 1 * 1e9))
            self._libc.timer_settime(self._timer, 0, ctypes.byref(spec), None)

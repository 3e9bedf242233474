"""The processes of one run, which exchange messages through JAX's coordination service in process 0.

The service is a key-value store with barriers. JAX itself needs it, and every process is connected to it. JAX's heartbeats use
the clock and would abort processes that a scheduler suspends together. So they have a limit of a week, and each process writes
heartbeats of its own. Process 0 finds silent processes, and the others find out whether process 0 answers. All count only the
seconds in which they run. A process that ends writes its reason there, and the others end with it.
"""

import json
import math
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn, Protocol, TypeVar

import numpy as np
from jaxtyping import Int64

from gmmae.multihost import agreement
from gmmae.multihost.watchdog import ExitMessage, Watchdog
from gmmae.system.errors import LOST_PEER

T = TypeVar("T")

BEATS_PER_TIMEOUT = 10
"""Heartbeats in the time after which a silent process is lost; at least one a second."""
STOPPED_TIMEOUTS = 2
"""A process that is stopped for this multiple of that time is killed by its watchdog."""
BROKEN_BEATS, BROKEN_S = 4, 2.0
"""Heartbeats, and seconds, that a process must miss after a failed collective to be reported as the cause."""
STUCK_FACTOR = 10
"""An epoch is stuck when it takes this multiple of the longest epoch before, and `stall_timeout_s` too."""
WEEK_MS = 7 * 24 * 3600 * 1000


class Reason(NamedTuple):
    """The reason why all processes end, and their exit code."""

    text: str
    code: int = LOST_PEER
    resumable: bool = True


class Store(Protocol):
    """The part of JAX's client of the coordination service that is used here."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        """Writes a key."""

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        """Waits for a key and returns its value."""
        ...

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        """Returns the keys and values below a key."""
        ...

    def wait_at_barrier(self, barrier_id: str, timeout_in_ms: int) -> None:
        """Waits for all processes."""


class Group:
    """The processes that train together; every process has to call these in the same order. This is a group of one."""

    @property
    def primary(self) -> bool:
        """Whether this is process 0, which alone writes and prints."""
        return True

    def broadcast_from_root(self, value: T) -> T:
        """Returns the value of process 0.

        Args:
          value: any value that JSON has; those of other processes are ignored.
        """
        return value

    def assert_equal(self, values: Mapping[str, str]) -> None:
        """Compares the values of all processes, by name. Where they differ, all processes end with a message."""

    def all_gather(self, numbers: Sequence[int]) -> Int64[np.ndarray, "processes numbers"]:
        """Returns the numbers of all processes; it is called at the end of an epoch."""
        return np.array([numbers])

    def barrier(self) -> None:
        """Waits until all processes have come here, without the time limit of a collective operation."""


ALONE = Group()


class Peers(Group):
    """The group of this process, from the start of JAX until `close`.

    Args:
      client: JAX's client of the coordination service.
      process_id: of this process.
      processes: their number.
      parent: the watchdog of this process.
      silence_s: seconds after which a silent process is lost.
      stall_s: see `STUCK_FACTOR`; 0 has no limit.
      resume: the command that resumes the run.
    """

    def __init__(
        self, client: Store, process_id: int, processes: int, parent: Watchdog, silence_s: float, stall_s: float, resume: str
    ) -> None:
        self._client, self._me, self._processes, self._parent = client, process_id, processes, parent
        self._silence_s, self._stall_s, self._resume = silence_s, stall_s, resume
        self._interval_s = min(1.0, silence_s / BEATS_PER_TIMEOUT)
        self._calls = 0
        self._longest_s, self._epoch_began = 0.0, math.nan
        self._broken, self._closed = False, threading.Event()
        self._running_s = 0.0
        self._heard: dict[int, tuple[str, float]] = dict.fromkeys(range(processes), ("", 0.0))
        client.key_value_set(f"who/{process_id}", f"{socket.gethostname()}, pid {parent.pid}")
        # Read now, because later process 0 may not answer any more. Only process 0 names other processes.
        self._names = {i: client.blocking_key_value_get(f"who/{i}", WEEK_MS) for i in {0, process_id}}
        self._threads = [threading.Thread(target=part, daemon=True) for part in (self._beat, self._watch)]
        parent.on_parent_death = self._tell_of_parent
        stopped = f"{self._name(process_id)} has been stopped for {STOPPED_TIMEOUTS * silence_s:g} s, and is killed"
        parent.watch_each_other(STOPPED_TIMEOUTS * silence_s, self._words(Reason(stopped)).line)
        for thread in self._threads:
            thread.start()

    @property
    def primary(self) -> bool:
        """Whether this is process 0."""
        return self._me == 0

    @property
    def _broken_s(self) -> float:
        """Seconds of silence after which a process is missing, once a collective operation has failed."""
        return max(BROKEN_S, BROKEN_BEATS * self._interval_s)

    def broadcast_from_root(self, value: T) -> T:
        """Returns the value of process 0."""
        self._calls += 1
        key = f"first/{self._calls}"
        if self.primary:
            self._client.key_value_set(key, json.dumps(value))
            return value
        return json.loads(self._client.blocking_key_value_get(key, WEEK_MS))

    def assert_equal(self, values: Mapping[str, str]) -> None:
        """Compares the values of all processes."""
        self._calls += 1
        folder = f"same/{self._calls}"
        self._client.key_value_set(f"{folder}/{self._me}", json.dumps(values))
        self.barrier()
        if self.primary:
            of_processes = self._read(folder)
            try:
                agreement.assert_equal([json.loads(of_processes[i]) for i in range(self._processes)])
            except agreement.DisagreementError as error:
                self._end_all(Reason(str(error), error.exit_code, resumable=False))
        self.broadcast_from_root(None)

    def all_gather(self, numbers: Sequence[int]) -> Int64[np.ndarray, "processes numbers"]:
        """Returns the numbers of all processes, and sets the deadline of the next epoch."""
        from jax.experimental import multihost_utils

        gathered = multihost_utils.process_allgather(np.array([numbers], np.int32), tiled=True)
        self._limit_epoch()
        return np.asarray(gathered, np.int64)

    def barrier(self) -> None:
        """Waits for all processes."""
        self._calls += 1
        self._client.wait_at_barrier(f"wait/{self._calls}", WEEK_MS)

    def fail(self, reason: str, code: int) -> NoReturn:
        """Ends this process, and the others with its reason and exit code."""
        self._end_all(Reason(f"{self._name(self._me)} has ended: {reason}", code), ExitMessage("", code))

    def _end_all(self, reason: Reason, own: ExitMessage | None = None) -> NoReturn:
        """Ends all processes, this one with its own message if it has one."""
        own = own or self._words(reason)
        self._closed.set()  # otherwise this process would read it as another's end
        self._parent.set_exit_message(own)
        self._set("end/all", json.dumps(reason))
        self._leave(own)

    def _set(self, key: str, value: str = "") -> None:
        with suppress(Exception):  # another process was first, or process 0 is gone and JAX is about to abort this process
            self._client.key_value_set(key, value)

    def wait_for_loss(self) -> None:
        """Waits for a process to be found missing, because a collective operation fails at once when a process is killed."""
        self._broken = True
        self._set(f"broken/{self._me}")
        time.sleep(2 * self._broken_s)

    def message_of_lost_root(self) -> ExitMessage:
        """Returns the message for the case that JAX aborts this process, as it does when process 0 is gone."""
        return self._words(Reason(f"{self._name(0)} has ended without a word: it was killed, or has crashed"))

    def close(self) -> None:
        """Ends the group in agreement; no process is lost after this."""
        self._closed.set()
        self._parent.on_parent_death = lambda: None
        for thread in self._threads:
            thread.join(self._silence_s)
        self._parent.extend_deadline("epoch", math.inf, "")
        self._parent.watch_each_other(0.0)  # JAX's own end is long, and runs no thread of Python's

    def _leave(self, words: ExitMessage) -> NoReturn:
        """Ends this process, process 0 last, because JAX aborts processes that have not read the reason."""
        self._await_hearing(self._silence_s)
        self._parent.end(words)

    def _await_hearing(self, most_s: float) -> None:
        with suppress(Exception):  # as above
            self._set(f"heard/{self._me}")
            until = time.monotonic() + most_s
            while self.primary and len(self._read("heard")) < self._processes and time.monotonic() < until:
                time.sleep(self._interval_s / 10)

    def _beat(self) -> None:
        """Writes heartbeats, and reads reasons to end. A call waits as long as process 0 does not answer."""
        count = 0
        while not self._closed.wait(self._interval_s):
            count += 1
            try:
                self._client.key_value_set(f"beat/{self._me}", str(count), allow_overwrite=True)
                ends = self._read("end")
                beats = self._read("beat") if self.primary else {0: str(count)}
                self._broken = self._broken or (self.primary and bool(self._read("broken")))
            except Exception:  # process 0 does not answer: JAX is about to abort this one, or the watch to find it silent
                continue
            for process, beat in beats.items():
                if self._heard[process][0] != beat:
                    self._heard[process] = (beat, self._running_s)
            if ends and not self._closed.is_set():
                words = self._words(Reason(*json.loads(next(iter(ends.values())))))
                self._parent.set_exit_message(words)
                self._leave(words)

    def _watch(self) -> None:
        """Finds silent processes. Seconds in which this process is stopped do not count, as all may be stopped together."""
        before = time.monotonic()
        while not self._closed.wait(self._interval_s):
            now = time.monotonic()
            self._running_s += min(now - before, 2 * self._interval_s)
            before = now
            patience_s = min(self._broken_s, self._silence_s) if self._broken else self._silence_s
            watched = range(1, self._processes) if self.primary else range(1)
            silent = next((i for i in watched if self._running_s - self._heard[i][1] > patience_s), None)
            if silent is not None:
                how = "it was killed or stopped, or its host cannot be reached"
                seconds = self._running_s - self._heard[silent][1]
                reason = Reason(f"{self._name(silent)} has been silent for {seconds:.0f} s: {how}")
                if self.primary:
                    self._set(f"heard/{silent}")  # no process waits for it
                    self._end_all(reason)
                self._parent.end(self._words(reason))

    def _limit_epoch(self) -> None:
        """Sets the watchdog's deadline for the next epoch. The first epoch has none, because no epoch has been timed."""
        now = time.monotonic()
        epoch_s, self._epoch_began = now - self._epoch_began, now
        if math.isnan(epoch_s) or not self._stall_s:
            return
        self._longest_s = max(epoch_s, self._longest_s)
        limit_s = max(self._stall_s, STUCK_FACTOR * self._longest_s)
        why = f"no epoch has ended for {limit_s:.0f} s, the longest so far took {self._longest_s:.1f} s"
        stuck = "a collective operation, a device or a file system is stuck"
        reason = Reason(f"{why}: {stuck}, and {self._name(self._me)} is killed")
        self._parent.extend_deadline("epoch", limit_s, self._words(reason).line)

    def _tell_of_parent(self) -> None:
        """Tells the others that the watchdog was killed; this process is killed next."""
        self._set("end/all", json.dumps(Reason(f"{self._name(self._me)} was killed")))
        self._await_hearing(3 * self._interval_s)

    def _read(self, folder: str) -> dict[int, str]:
        """Returns the values of a folder of the store, by process."""
        entries = self._client.key_value_dir_get(f"{folder}/")
        return {int(name) if name.isdigit() else 0: value for key, value in entries for name in [key.rpartition("/")[2]]}

    def _name(self, process: int) -> str:
        if process not in self._names:
            with suppress(Exception):  # it was lost before it wrote its name
                self._names[process] = self._client.blocking_key_value_get(f"who/{process}", 1000)
        return f"process {process} ({self._names.get(process, 'of an unknown host')})"

    def _words(self, reason: Reason) -> ExitMessage:
        how = f"; to resume, start all processes again: {self._resume}" if reason.resumable else ""
        return ExitMessage(f"error: {reason.text}{how}\n", reason.code)

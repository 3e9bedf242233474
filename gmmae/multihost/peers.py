"""The processes of one run, and what they say to each other through JAX's coordination service, which process 0 has.

The service is a store of keys, with barriers, which JAX itself needs; every process is connected to it. Its own heartbeats go
by the clock and abort all processes that a scheduler has suspended together, so they are given a week, and each process leaves
a beat of its own there. Process 0 sees who is silent, the others see whether process 0 answers; all count only the seconds in
which they run. Who ends leaves the reason there, and the others end with it.
"""

import json
import math
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
from jaxtyping import Int64

from gmmae.multihost import agreement
from gmmae.multihost.watchdog import Parent, Words
from gmmae.system.errors import LOST_PEER

BEATS = 10
"""In the time after which a silent process is lost; at least one a second."""
LATE = 2
"""A process that has been stopped for so many times that long is killed by its parent."""
BROKEN_BEATS, BROKEN_S = 4, 2.0
"""Where a collective operation has failed, who is silent for so many beats, and so long, is why."""
STUCK = 10
"""An epoch that takes so many times as long as the longest before is stuck, if it takes `stall_timeout_s` too."""
WEEK_MS = 7 * 24 * 3600 * 1000


class Reason(NamedTuple):
    """Why all processes end, and with which exit code."""

    text: str
    code: int = LOST_PEER
    resumable: bool = True


class Group(Protocol):
    """The processes that train together. Every process has to call these in the same order."""

    @property
    def primary(self) -> bool: ...
    def first(self, word: Any) -> Any: ...
    def require_same(self, words: Mapping[str, str]) -> None: ...
    def agree(self, numbers: Sequence[int]) -> Int64[np.ndarray, "processes numbers"]: ...
    def wait(self) -> None: ...


class Alone:
    """A group of one."""

    primary = True

    def first(self, word: Any) -> Any:
        return word

    def require_same(self, words: Mapping[str, str]) -> None:
        pass

    def agree(self, numbers: Sequence[int]) -> Int64[np.ndarray, "processes numbers"]:
        return np.array([numbers])

    def wait(self) -> None:
        pass


ALONE = Alone()


class Peers:
    """The group of this process, from when JAX has been started until `close`.

    Args:
      client: JAX's, of the coordination service.
      process_id, processes: this one's, and how many there are.
      parent: of this process.
      silence_s: a process that has not been heard of for so long is lost.
      stall_s: see `STUCK`; 0: no epoch takes too long.
      resume: the command that goes on with the run.
    """

    def __init__(
        self, client: Any, process_id: int, processes: int, parent: Parent, silence_s: float, stall_s: float, resume: str
    ) -> None:
        self._client, self._me, self._processes, self._parent = client, process_id, processes, parent
        self._silence_s, self._stall_s, self._resume = silence_s, stall_s, resume
        self._interval_s = min(1.0, silence_s / BEATS)
        self._calls = 0
        self._longest_s, self._epoch_began = 0.0, math.nan
        self._broken, self._closed = False, threading.Event()
        self._running_s = 0.0
        self._heard: dict[int, tuple[str, float]] = dict.fromkeys(range(processes), ("", 0.0))
        client.key_value_set(f"who/{process_id}", f"{socket.gethostname()}, pid {parent.pid}")
        # Asked for now: later process 0 may not answer any more. Of the others it is process 0 alone that speaks.
        self._names = {i: client.blocking_key_value_get(f"who/{i}", WEEK_MS) for i in {0, process_id}}
        self._threads = [threading.Thread(target=part, daemon=True) for part in (self._beat, self._watch)]
        parent.orphaned = self._tell_of_parent
        stopped = f"{self._name(process_id)} has been stopped for {LATE * silence_s:g} s, and is killed"
        parent.watch_each_other(LATE * silence_s, self._words(Reason(stopped)).line)
        for thread in self._threads:
            thread.start()

    @property
    def primary(self) -> bool:
        """Whether this is process 0, which alone writes and prints."""
        return self._me == 0

    @property
    def _broken_s(self) -> float:
        """Silence after which a process is missing, once a collective operation has failed."""
        return max(BROKEN_S, BROKEN_BEATS * self._interval_s)

    def first(self, word: Any) -> Any:
        """What process 0 says.

        Args:
          word: what JSON can say; of the other processes it is not looked at.
        """
        self._calls += 1
        key = f"first/{self._calls}"
        if self.primary:
            self._client.key_value_set(key, json.dumps(word))
            return word
        return json.loads(self._client.blocking_key_value_get(key, WEEK_MS))

    def require_same(self, words: Mapping[str, str]) -> None:
        """Compares what the processes say; process 0 does it for all.

        Where they differ all processes end, with the message.
        """
        self._calls += 1
        folder = f"same/{self._calls}"
        self._client.key_value_set(f"{folder}/{self._me}", json.dumps(words))
        self.wait()
        if self.primary:
            said = self._read(folder)
            try:
                agreement.require_same([json.loads(said[i]) for i in range(self._processes)])
            except agreement.DisagreementError as error:
                self._end_all(Reason(str(error), error.exit_code, resumable=False))
        self.first(None)

    def agree(self, numbers: Sequence[int]) -> Int64[np.ndarray, "processes numbers"]:
        """The numbers of all processes; called at the end of an epoch."""
        from jax.experimental import multihost_utils

        said = multihost_utils.process_allgather(np.array([numbers], np.int32), tiled=True)
        self._limit_epoch()
        return np.asarray(said, np.int64)

    def wait(self) -> None:
        """Waits until all processes have come here, with all the patience that a collective operation does not have."""
        self._calls += 1
        self._client.wait_at_barrier(f"wait/{self._calls}", WEEK_MS)

    def fail(self, reason: str, code: int) -> NoReturn:
        """Ends this process, and the others with the reason and the same exit code."""
        self._end_all(Reason(f"{self._name(self._me)} has ended: {reason}", code), Words("", code))

    def _end_all(self, reason: Reason, own: Words | None = None) -> NoReturn:
        """Ends all processes, this one with its own words if it has any."""
        own = own or self._words(reason)
        self._closed.set()  # or this process would hear of it as of another's end
        self._parent.last_words(own)
        self._set("end/all", json.dumps(reason))
        self._leave(own)

    def _set(self, key: str, value: str = "") -> None:
        with suppress(Exception):  # somebody else was first, or process 0 is gone, and JAX is about to abort this process
            self._client.key_value_set(key, value)

    def may_be_a_loss(self) -> None:
        """Waits whether somebody is found missing: a collective operation fails at once when a process is killed."""
        self._broken = True
        self._set(f"broken/{self._me}")
        time.sleep(2 * self._broken_s)

    def words_without_first(self) -> Words:
        """What is to be said where JAX aborts this process: it does so, at once, when process 0 is gone."""
        return self._words(Reason(f"{self._name(0)} has ended without a word: it was killed, or has crashed"))

    def close(self) -> None:
        """Ends it in agreement: nobody is lost hereafter."""
        self._closed.set()
        self._parent.orphaned = lambda: None
        for thread in self._threads:
            thread.join(self._silence_s)
        self._parent.put_off("epoch", math.inf, "")
        self._parent.watch_each_other(0.0)  # JAX's own end is long, and runs no thread of Python's

    def _leave(self, words: Words) -> NoReturn:
        """Process 0 ends last: with it ends the service, and JAX would abort whoever has not heard the reason."""
        self._await_hearing(self._silence_s)
        self._parent.end(words)

    def _await_hearing(self, most_s: float) -> None:
        with suppress(Exception):  # as above
            self._set(f"heard/{self._me}")
            until = time.monotonic() + most_s
            while self.primary and len(self._read("heard")) < self._processes and time.monotonic() < until:
                time.sleep(self._interval_s / 10)

    def _beat(self) -> None:
        """Leaves beats, and looks for what ends the run. A call waits as long as process 0 does not answer."""
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
                self._parent.last_words(words)
                self._leave(words)

    def _watch(self) -> None:
        """Finds who is silent. The seconds in which this process is stopped do not count: all may be stopped together."""
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
                    self._set(f"heard/{silent}")  # nobody waits for it
                    self._end_all(reason)
                self._parent.end(self._words(reason))

    def _limit_epoch(self) -> None:
        """Lets the parent end this process if the next epoch is stuck; the first one, amid which nothing is known, is not."""
        now = time.monotonic()
        epoch_s, self._epoch_began = now - self._epoch_began, now
        if math.isnan(epoch_s) or not self._stall_s:
            return
        self._longest_s = max(epoch_s, self._longest_s)
        limit_s = max(self._stall_s, STUCK * self._longest_s)
        why = f"no epoch has ended for {limit_s:.0f} s, the longest so far took {self._longest_s:.1f} s"
        stuck = "a collective operation, a device or a file system is stuck"
        reason = Reason(f"{why}: {stuck}, and {self._name(self._me)} is killed")
        self._parent.put_off("epoch", limit_s, self._words(reason).line)

    def _tell_of_parent(self) -> None:
        """The parent was killed: this process is too, when the others have heard of it."""
        self._set("end/all", json.dumps(Reason(f"{self._name(self._me)} was killed")))
        self._await_hearing(3 * self._interval_s)

    def _read(self, folder: str) -> dict[int, str]:
        """The values of a folder of the store, by process."""
        found = self._client.key_value_dir_get(f"{folder}/")
        return {int(name) if name.isdigit() else 0: value for key, value in found for name in [key.rpartition("/")[2]]}

    def _name(self, process: int) -> str:
        if process not in self._names:
            with suppress(Exception):  # it was lost before it had said who it is
                self._names[process] = self._client.blocking_key_value_get(f"who/{process}", 1000)
        return f"process {process} ({self._names.get(process, 'of an unknown host')})"

    def _words(self, reason: Reason) -> Words:
        how = f"; to resume, start all processes again: {self._resume}" if reason.resumable else ""
        return Words(f"error: {reason.text}{how}\n", reason.code)

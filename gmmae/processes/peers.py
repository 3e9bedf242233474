"""The link between the processes of one run: they meet, exchange short words, and notice when one is lost.

Process 0 listens, every other process is connected to it, and both sides send a beat in short intervals. Whoever was killed is
noticed by its closed connection, whoever was stopped, or cut off, by its silence. JAX has heartbeats too, but it aborts the
survivors in C++, where no Python runs; this link speaks first. Nothing here knows JAX, so it is up before JAX is.
"""

import contextlib
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from gmmae.base.errors import LOST_PEER
from gmmae.processes.deadline import Deadline
from gmmae.processes.launchers import Place
from gmmae.processes.meeting import Connection, Identity, born, identity, meet

BEATS = 10
"""In the time after which a silent process is lost."""


LATE = 2
"""A process that has been stopped for so many times that long is killed, wherever it is."""


class PeerLost(Exception):
    """Another process is gone; the message says which one and how."""


class Group(Protocol):
    """The processes that train together."""

    @property
    def primary(self) -> bool: ...
    def gather(self, word: Any) -> list[Any]: ...


class Alone:
    """A group of one."""

    primary = True

    def gather(self, word: Any) -> list[Any]:
        return [word]


ALONE = Alone()


class Peers:
    """The link of this process, from when all have come together until `close`.

    Args:
      place: which process of how many this is.
      start_timeout_s: how long to wait until all are there.
      silence_s: a process that has not been heard of for so long is lost.
      on_lost: called, in a thread of the link, with a text that says who is lost and how, and the exit code for it.

    Raises:
      PeersError: some process is missing, or two of them contradict each other.
    """

    def __init__(self, place: Place, start_timeout_s: float, silence_s: float, on_lost: Callable[[str, int], None]):
        self.me = identity(place)
        self._silence_s, self._on_lost = silence_s, on_lost
        self._changed = threading.Condition()
        self.lost: str | None = None
        self._ended = False
        self._deadline = Deadline(start_timeout_s + LATE * silence_s)  # for this process itself being stopped
        try:
            self._peers, self._everyone = meet(place, self.me, start_timeout_s, silence_s)
        except BaseException:
            self._deadline.close()
            raise
        self._deadline.put_off(LATE * silence_s)
        self._thread = threading.Thread(target=self._watch, name="peers", daemon=True)
        self._thread.start()

    @property
    def primary(self) -> bool:
        """Whether this is process 0, which alone writes and prints."""
        return self.me.process_id == 0

    def gather(self, word: Any) -> list[Any]:
        """What each process says, in their order; every process has to call this as often as every other.

        Args:
          word: what JSON can say.

        Raises:
          PeerLost: one of them will not say anything any more.
        """
        if not self.primary:
            self._peers[0].send("word", word)
            return self._take(self._peers)[0]
        words = [word, *self._take(self._peers)]
        self._tell("word", words)
        return words

    def _take(self, peers: Iterable[Connection]) -> list[Any]:
        with self._changed:
            self._changed.wait_for(lambda: all(peer.words for peer in peers) or self.lost or any(p.ended for p in peers))
            if not all(peer.words for peer in peers):
                raise PeerLost(self.lost or "another process has ended before this one")
            return [peer.words.pop(0) for peer in peers]

    def await_loss(self, timeout_s: float) -> None:
        """Waits until a loss is known, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: self.lost, timeout_s)

    def fail(self, reason: str, code: int) -> None:
        """Tells the others that this process ends, why, and with which exit code: they end with the same."""
        self._ended = True
        self._tell("lost", [self.me.process_id, f"{self.me} has ended: {reason}", False, code])

    def close(self) -> None:
        """Ends the link in agreement: nobody is lost hereafter. Process 0 waits until the others have done so too."""
        self._ended = True
        self._tell("end")
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.socket.shutdown(socket.SHUT_WR)
        if self.primary:
            with self._changed:
                self._changed.wait_for(lambda: all(peer.ended for peer in self._peers) or self.lost, self._silence_s)

    def _tell(self, kind: str, value: Any = None) -> None:
        for peer in self._peers:
            peer.send(kind, value)

    def _watch(self) -> None:
        interval_s = min(1.0, self._silence_s / BEATS)
        with selectors.DefaultSelector() as selector:
            for peer in self._peers:
                selector.register(peer.socket, selectors.EVENT_READ, peer)
            self._keep_watch(selector, interval_s)
        self._deadline.close()
        for peer in self._peers:
            peer.socket.close()

    def _keep_watch(self, selector: selectors.BaseSelector, interval_s: float) -> None:
        # Seconds in which this thread ran. They stand still while this process is stopped: the others may be stopped with it
        # (`scontrol suspend`), and when all go on each has its time again to be heard.
        running_s, next_beat_s, before = 0.0, 0.0, time.monotonic()
        heard_s = dict.fromkeys(self._peers, 0.0)
        while selector.get_map() and not self.lost:
            ready = selector.select(max(0.0, next_beat_s - running_s))
            now = time.monotonic()
            running_s += min(now - before, 2 * interval_s)
            before = now
            # What lies there is read before silence is judged: this process itself may have been stopped for a while.
            for key, _ in ready:
                heard_s[key.data] = running_s
                if not self._listen(key.data):
                    selector.unregister(key.fileobj)
                    key.data.socket.close()
            if running_s >= next_beat_s:
                self._tell("beat")
                self._deadline.put_off(LATE * self._silence_s)
                next_beat_s = running_s + interval_s
            for peer in self._peers:
                if not peer.ended and running_s - heard_s[peer] > self._silence_s:
                    how = f"has been silent for {self._silence_s:g} s: it is stopped, or its host cannot be reached"
                    self._lose(peer, how, silent=True)

    def _listen(self, peer: Connection) -> bool:
        """Takes in what a peer says; False if it will not say more."""
        try:
            messages = peer.receive()
        except (OSError, ValueError):
            if not peer.ended:
                self._lose(peer, "has ended without a word: it was killed, or has crashed")
            return False
        with self._changed:
            for kind, value in messages:
                if kind == "word":
                    peer.words.append(value)
                elif kind == "end":
                    peer.ended = True
            self._changed.notify_all()
        for kind, value in messages:
            if kind == "lost":
                peer.ended = True
                self._give_up(*value)
        return True

    def _lose(self, peer: Connection, how: str, silent: bool = False) -> None:
        assert peer.identity is not None
        peer.ended = True
        self._give_up(peer.identity.process_id, f"{peer.identity} {how}", silent)

    def _give_up(self, process_id: int, text: str, silent: bool, code: int = LOST_PEER) -> None:
        if self._ended:
            return
        if self.primary:
            self._tell("lost", [process_id, text, silent, code])
        if silent:
            _end_for_good(self._everyone[process_id], self.me)
        with self._changed:
            self.lost = text
            self._changed.notify_all()
        self._on_lost(text, code)


def _end_for_good(lost: Identity, me: Identity) -> None:
    """Kills a silent process of the same machine: it would stay behind, and hold the work directory's lock."""
    if me.machine and lost.machine == me.machine and lost.pid != me.pid and lost.born == born(lost.pid):
        with contextlib.suppress(OSError):
            os.kill(lost.pid, signal.SIGKILL)

"""The link between the processes of one run: they meet, exchange short words, and notice when one is lost.

Process 0 listens, every other process is connected to it, and both sides send a beat in short intervals. Whoever was killed is
noticed by its closed connection, whoever was stopped, or cut off, by its silence. JAX has heartbeats too, but it aborts the
survivors in C++, where no Python runs; this link speaks first. Nothing here knows JAX, so it is up before JAX is.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from gmmae.errors import InputError
from gmmae.launchers import Place

RETRY_S = 0.1
BEATS = 10
"""In the time after which a silent process is lost."""
WORD_BYTES = 2**22
"""A longer line comes from something else than a process of this program."""


class PeersError(InputError):
    """The processes did not come together."""


class PeerLost(Exception):
    """Another process is gone; the message says which one and how."""


class Identity(NamedTuple):
    """Who a process is, for messages and for ending it where it is stopped."""

    process_id: int
    processes: int
    host: str
    pid: int
    born: str  # what tells it from a later process of the same number
    machine: str  # equal for processes that see each other's numbers

    def __str__(self) -> str:
        return f"process {self.process_id} ({self.host}, pid {self.pid})"


def identity(place: Place) -> Identity:
    """This process."""
    return Identity(place.process_id, place.processes, socket.gethostname(), os.getpid(), _born(os.getpid()), _machine())


def _born(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty where that cannot be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


class _Peer:
    """The other end of a connection."""

    def __init__(self, connection: socket.socket, timeout_s: float):
        connection.settimeout(timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.identity: Identity | None = None
        self.heard = time.monotonic()
        self.ended = False
        self.words: list[Any] = []
        self._rest = b""
        self._sending = threading.Lock()

    def send(self, kind: str, value: Any = None) -> None:
        """Sends a message; one that cannot be sent is left to the receiving side, which sees the connection end."""
        with self._sending, contextlib.suppress(OSError):
            self.connection.sendall(json.dumps([kind, value]).encode() + b"\n")

    def receive(self) -> list[tuple[str, Any]]:
        """The messages that have come, if one is complete; waits until something comes.

        Raises:
          OSError: the connection has ended.
          ValueError: what came is no message.
        """
        self._rest += self._read(2**16)
        *lines, self._rest = self._rest.split(b"\n")
        if len(self._rest) > WORD_BYTES:
            raise ValueError("a line without end")
        return [_message(line) for line in lines]

    def wait_for(self, kind: str) -> Any:
        """The value of the next message, which has to be of that kind; reads no further than that.

        Raises:
          PeersError: the other process has given up, and says why.
          OSError, ValueError: as `receive`.
        """
        line = b""
        while not line.endswith(b"\n") and len(line) < WORD_BYTES:
            line += self._read(1)
        came, value = _message(line)
        if came == "refused":
            raise PeersError(value)
        if came != kind:
            raise ValueError(f"{came} for {kind}")
        return value

    def _read(self, most: int) -> bytes:
        data = self.connection.recv(most)
        if not data:
            raise ConnectionError("the connection was closed")
        self.heard = time.monotonic()
        return data


def _message(line: bytes) -> tuple[str, Any]:
    match json.loads(line):
        case [str(kind), value]:
            return kind, value
        case other:
            raise ValueError(f"{other!r} is no message")


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
      on_lost: called, in a thread of the link, with a text that says who is lost and how.

    Raises:
      PeersError: some process is missing, or two of them contradict each other.
    """

    def __init__(self, place: Place, start_timeout_s: float, silence_s: float, on_lost: Callable[[str], None]):
        self.me = identity(place)
        self._silence_s, self._on_lost = silence_s, on_lost
        self._changed = threading.Condition()
        self.lost: str | None = None
        self._ended = False
        deadline = time.monotonic() + start_timeout_s
        meet = _gather_all if place.process_id == 0 else _reach_first
        self._peers, self._everyone = meet(place, self.me, deadline, start_timeout_s, silence_s)
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

    def _take(self, peers: Iterable[_Peer]) -> list[Any]:
        with self._changed:
            self._changed.wait_for(lambda: all(peer.words for peer in peers) or self.lost or any(p.ended for p in peers))
            if not all(peer.words for peer in peers):
                raise PeerLost(self.lost or "another process has ended before this one")
            return [peer.words.pop(0) for peer in peers]

    def await_loss(self, timeout_s: float) -> None:
        """Waits until a loss is known, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: self.lost, timeout_s)

    def fail(self, reason: str) -> None:
        """Tells the others that this process ends, and why: they end too."""
        self._ended = True
        self._tell("lost", [self.me.process_id, f"{self.me} has ended: {reason}", False])

    def close(self) -> None:
        """Ends the link in agreement: nobody is lost hereafter. Process 0 waits until the others have done so too."""
        self._ended = True
        self._tell("end")
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.connection.shutdown(socket.SHUT_WR)
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
                selector.register(peer.connection, selectors.EVENT_READ, peer)
            self._keep_watch(selector, interval_s)
        for peer in self._peers:
            peer.connection.close()

    def _keep_watch(self, selector: selectors.BaseSelector, interval_s: float) -> None:
        next_beat = 0.0
        while selector.get_map() and not self.lost:
            # What lies there is read before silence is judged: this process itself may have been stopped for a while.
            for key, _ in selector.select(max(0.0, next_beat - time.monotonic())):
                if not self._listen(key.data):
                    selector.unregister(key.fileobj)
                    key.data.connection.close()
            now = time.monotonic()
            if now >= next_beat:
                self._tell("beat")
                next_beat = now + interval_s
            for peer in self._peers:
                if not peer.ended and now - peer.heard > self._silence_s:
                    how = f"has been silent for {self._silence_s:g} s: it is stopped, or its host cannot be reached"
                    self._lose(peer, how, silent=True)

    def _listen(self, peer: _Peer) -> bool:
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

    def _lose(self, peer: _Peer, how: str, silent: bool = False) -> None:
        assert peer.identity is not None
        peer.ended = True
        self._give_up(peer.identity.process_id, f"{peer.identity} {how}", silent)

    def _give_up(self, process_id: int, text: str, silent: bool) -> None:
        if self._ended:
            return
        if self.primary:
            self._tell("lost", [process_id, text, silent])
        if silent:
            _end_for_good(self._everyone[process_id], self.me)
        with self._changed:
            self.lost = text
            self._changed.notify_all()
        self._on_lost(text)


def _end_for_good(lost: Identity, me: Identity) -> None:
    """Kills a silent process of the same machine: it would stay behind, and hold the work directory's lock."""
    if me.machine and lost.machine == me.machine and lost.pid != me.pid and lost.born == _born(lost.pid):
        with contextlib.suppress(OSError):
            os.kill(lost.pid, signal.SIGKILL)


def _gather_all(
    place: Place, me: Identity, deadline: float, start_timeout_s: float, silence_s: float
) -> tuple[list[_Peer], list[Identity]]:
    """Process 0's part of coming together: listens until every other process has come."""
    came: dict[int, _Peer] = {}
    peer: _Peer | None = None
    try:
        server = _listening(place)
    except OSError as error:
        raise PeersError(
            f"distributed.coordinator must be an address where process 0 can listen; got {place.host}:{place.port} "
            f"({error.strerror or error}): give another port"
        ) from error
    with server:
        try:
            while len(came) < place.processes - 1:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                peer = _Peer(server.accept()[0], silence_s)
                who = _introduced(peer)
                if who is None:
                    continue
                _check(who, me, came)
                peer.identity = who
                came[who.process_id] = peer
        except TimeoutError:
            missing = ", ".join(str(i) for i in range(1, place.processes) if i not in came)
            text = (
                f"all {place.processes} processes must start within distributed.start_timeout_s, {start_timeout_s:g} s; got "
                f"no connection from process {missing} at {place.host}:{place.port}"
            )
            _refuse(came.values(), text)
            raise PeersError(text) from None
        except PeersError as error:
            _refuse([*came.values(), *([peer] if peer else [])], str(error))
            raise
    peers = [came[i] for i in range(1, place.processes)]
    everyone = [me, *(peer.identity for peer in peers if peer.identity)]
    for peer in peers:
        peer.heard = time.monotonic()
        peer.send("everyone", everyone)
    return peers, everyone


def _listening(place: Place) -> socket.socket:
    """A socket on all interfaces, or on the loopback one alone where that is what the address says."""
    if place.host == "localhost" or place.host.startswith("127."):
        return socket.create_server((place.host, place.port))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", place.port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", place.port))


def _introduced(peer: _Peer) -> Identity | None:
    """Who has connected; None if it is no process of this program."""
    try:
        return Identity(*peer.wait_for("hello"))
    except (OSError, ValueError, TypeError, PeersError):
        peer.connection.close()
        return None


def _check(who: Identity, me: Identity, came: dict[int, _Peer]) -> None:
    if who.processes != me.processes:
        raise PeersError(
            f"distributed.num_processes must be the same for all processes; got {me.processes} for process 0 and "
            f"{who.processes} for {who}"
        )
    if who.process_id in came:
        raise PeersError(
            f"distributed.process_id must differ between processes; got {who.process_id} from {came[who.process_id].identity} "
            f"and from {who}"
        )


def _refuse(peers: Iterable[_Peer], text: str) -> None:
    for peer in peers:
        peer.send("refused", text)
        peer.connection.close()


def _reach_first(
    place: Place, me: Identity, deadline: float, start_timeout_s: float, silence_s: float
) -> tuple[list[_Peer], list[Identity]]:
    """Another process's part: reaches process 0, and waits until that one has them all."""
    problem: Exception | None = None
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            connection = socket.create_connection((place.host, place.port), timeout=left_s)
        except OSError as error:
            problem = error
            time.sleep(RETRY_S)
            continue
        peer = _Peer(connection, left_s + silence_s)
        try:
            peer.send("hello", me)
            everyone = [Identity(*who) for who in peer.wait_for("everyone")]
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError | ValueError):
                raise
            problem = error
            time.sleep(RETRY_S)
        else:
            peer.identity = everyone[0]
            connection.settimeout(silence_s)
            return [peer], everyone
    raise PeersError(
        f"distributed.coordinator must be where process 0 listens within distributed.start_timeout_s, {start_timeout_s:g} s; "
        f"got {place.host}:{place.port} ({getattr(problem, 'strerror', None) or problem})"
    )

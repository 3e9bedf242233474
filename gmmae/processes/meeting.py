"""How the processes of one run come together: process 0 listens, every other one reaches it and says who it is."""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from gmmae.base.errors import InputError
from gmmae.processes.launchers import Place

RETRY_S = 0.1
WORD_BYTES = 2**22
"""A longer line comes from something else than a process of this program."""


class PeersError(InputError):
    """The processes did not come together."""


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
    return Identity(place.process_id, place.processes, socket.gethostname(), os.getpid(), born(os.getpid()), _machine())


def born(pid: int) -> str:
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


class Connection:
    """Messages to and from another process."""

    def __init__(self, connected: socket.socket, timeout_s: float):
        connected.settimeout(timeout_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connected
        self.identity: Identity | None = None
        self.ended = False
        self.words: list[Any] = []
        self._rest = b""
        self._sending = threading.Lock()

    def send(self, kind: str, value: Any = None) -> None:
        """Sends a message; one that cannot be sent is left to the receiving side, which sees the connection end."""
        with self._sending, contextlib.suppress(OSError):
            self.socket.sendall(json.dumps([kind, value]).encode() + b"\n")

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
        data = self.socket.recv(most)
        if not data:
            raise ConnectionError("the connection was closed")
        return data


def _message(line: bytes) -> tuple[str, Any]:
    match json.loads(line):
        case [str(kind), value]:
            return kind, value
        case other:
            raise ValueError(f"{other!r} is no message")


def meet(place: Place, me: Identity, start_timeout_s: float, silence_s: float) -> tuple[list[Connection], list[Identity]]:
    """Waits until all processes are there.

    Args:
      place, me: of this process.
      start_timeout_s: how long to wait.
      silence_s: after which a read or a write on a connection fails.

    Returns:
      The connections, in process 0 to all others in their order, in the others to process 0; and who everyone is.

    Raises:
      PeersError: some process is missing, or two of them contradict each other.
    """
    part = _gather_all if place.process_id == 0 else _reach_first
    return part(place, me, time.monotonic() + start_timeout_s, start_timeout_s, silence_s)


def _gather_all(
    place: Place, me: Identity, deadline: float, start_timeout_s: float, silence_s: float
) -> tuple[list[Connection], list[Identity]]:
    """Process 0's part of coming together: listens until every other process has come."""
    came: dict[int, Connection] = {}
    peer: Connection | None = None
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
                peer = Connection(server.accept()[0], silence_s)
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
        peer.send("everyone", everyone)
    return peers, everyone


def _listening(place: Place) -> socket.socket:
    """A socket on all interfaces, or on the loopback one alone where that is what the address says."""
    if place.host == "localhost" or place.host.startswith("127."):
        return socket.create_server((place.host, place.port))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", place.port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", place.port))


def _introduced(peer: Connection) -> Identity | None:
    """Who has connected; None if it is no process of this program."""
    try:
        return Identity(*peer.wait_for("hello"))
    except (OSError, ValueError, TypeError, PeersError):
        peer.socket.close()
        return None


def _check(who: Identity, me: Identity, came: dict[int, Connection]) -> None:
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


def _refuse(peers: Iterable[Connection], text: str) -> None:
    for peer in peers:
        peer.send("refused", text)
        peer.socket.close()


def _reach_first(
    place: Place, me: Identity, deadline: float, start_timeout_s: float, silence_s: float
) -> tuple[list[Connection], list[Identity]]:
    """Another process's part: reaches process 0, and waits until that one has them all."""
    problem: Exception | None = None
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            connection = socket.create_connection((place.host, place.port), timeout=left_s)
        except OSError as error:
            problem = error
            time.sleep(RETRY_S)
            continue
        peer = Connection(connection, left_s + silence_s)
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

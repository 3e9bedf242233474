"""The link between processes, with threads in their place; whole processes are in test_distributed.py."""

import contextlib
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from gmmae.processes import peers
from gmmae.processes.launchers import Place
from gmmae.processes.meeting import PeersError, identity
from gmmae.processes.peers import PeerLost, Peers

SILENCE_S = 1.0


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Node:
    """One end of the link, and what it is told of losses."""

    def __init__(self, place: Place, start_timeout_s: float = 10.0):
        self.lost: list[str] = []
        self.codes: list[int] = []
        self.link = Peers(place, start_timeout_s, SILENCE_S, self.note)

    def note(self, text: str, code: int) -> None:
        self.lost.append(text)
        self.codes.append(code)

    def wait_for_loss(self) -> str:
        self.link.await_loss(5 * SILENCE_S)
        time.sleep(0.05)  # it is told after it is known
        [text] = self.lost
        return text


def places(port: int, count: int) -> list[Place]:
    return [Place(i, count, "127.0.0.1", port) for i in range(count)]


def together(nodes, call):
    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(call, nodes))


def joined(port: int, count: int) -> list[Node]:
    return together(places(port, count), Node)


def close(nodes: list[Node]) -> None:
    together(nodes[::-1], lambda node: node.link.close())


def test_everyone_hears_what_each_one_says_and_a_quiet_link_lives(port):
    nodes = joined(port, 3)
    for word in ("a", None, {"k": [1.5, "é\n"]}):
        heard = together(nodes, lambda node, word=word: node.link.gather([node.link.me.process_id, word]))
        assert heard == [[[0, word], [1, word], [2, word]]] * 3
    time.sleep(2 * SILENCE_S)
    assert together(nodes, lambda node: node.link.gather("still here")) == [["still here"] * 3] * 3
    close(nodes)
    time.sleep(2 * SILENCE_S)
    assert [node.lost for node in nodes] == [[], [], []]


def cut(node: Node) -> None:
    """Its connections end, as when the process is killed; its thread, which that would have ended too, is told to be quiet."""
    node.link._ended = True
    for peer in node.link._peers:
        with contextlib.suppress(OSError):
            peer.socket.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("gone", [0, 2])
def test_an_ended_process_is_named_to_all_others_at_once(port, gone):
    nodes = joined(port, 3)
    start = time.monotonic()
    cut(nodes[gone])
    for node in nodes:
        if node is not nodes[gone]:
            assert f"process {gone} (" in node.wait_for_loss()
            assert "has ended without a word" in node.lost[0]
            assert node.codes == [75]
    assert time.monotonic() - start < SILENCE_S
    with pytest.raises(PeerLost, match="has ended without a word"):
        nodes[1].link.gather("anyone?")


def test_a_failure_is_told_with_its_reason_and_its_exit_code(port):
    """All then end with that code, so that a launcher, which has the highest of them, has it too."""
    nodes = joined(port, 3)
    nodes[1].link.fail("data.root must exist", 2)
    for node in (nodes[0], nodes[2]):
        assert node.wait_for_loss().endswith("has ended: data.root must exist")
        assert node.codes == [2]
    assert nodes[1].lost == []


def test_silence_is_a_loss(port):
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(Node, places(port, 2)[0])
        with connection(port) as mute:
            mute.sendall(hello(1, 2))
            start = time.monotonic()
            text = first.result().wait_for_loss()
            assert "process 1 (" in text
            assert "has been silent for 1 s: it is stopped, or its host cannot be reached" in text
            assert SILENCE_S <= time.monotonic() - start < 2 * SILENCE_S


def test_time_in_which_this_process_was_stopped_is_no_silence(port, monkeypatch):
    """As after `scontrol suspend`: by the clock a minute has gone by when the thread goes on."""
    nodes = joined(port, 2)
    clock, ahead_s = time.monotonic, 0.0
    monkeypatch.setattr(peers, "time", SimpleNamespace(monotonic=lambda: clock() + ahead_s))
    ahead_s = 60.0
    time.sleep(2 * SILENCE_S)
    assert together(nodes, lambda node: node.link.gather("still here")) == [["still here"] * 2] * 2
    assert [node.lost for node in nodes] == [[], []]
    close(nodes)


def connection(port: int) -> socket.socket:
    deadline = time.monotonic() + 5
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def hello(process_id: int, processes: int) -> bytes:
    who = identity(Place(process_id, processes, "", 0))
    return json.dumps(["hello", who]).encode() + b"\n"


def test_strangers_at_the_port_do_no_harm(port):
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(Node, places(port, 2)[0])
        for noise in (b"GET / HTTP/1.1\r\n\r\n", b'["hello", [1]]\n', b"5\n", b"\xff\n"):
            with connection(port) as stranger:
                stranger.sendall(noise)
        second = pool.submit(Node, places(port, 2)[1])
        nodes = [first.result(), second.result()]
    assert together(nodes, lambda node: node.link.gather(1)) == [[1, 1]] * 2
    close(nodes)


def test_process_0_alone_names_who_is_missing_and_tells_those_who_came(port):
    alone = [Place(i, 3, "127.0.0.1", port) for i in (0, 2)]
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(Node, place, 1.0) for place in alone]
        for call in calls:
            with pytest.raises(
                PeersError, match=r"all 3 processes must start within .*, 1 s; got no connection from process 1 at 127"
            ):
                call.result()


def test_nobody_listens(port):
    start = time.monotonic()
    with pytest.raises(
        PeersError, match=r"where process 0 listens within .*, 1 s; got 127\.0\.0\.1:\d+ \(Connection refused\)"
    ):
        Node(places(port, 2)[1], 1.0)
    assert time.monotonic() - start < 2


def test_an_address_that_is_taken(port):
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(PeersError, match=r"can listen; got .* \(Address already in use"),
    ):
        Node(places(port, 2)[0], 1.0)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            Place(1, 3, "127.0.0.1", 0),
            "num_processes must be the same for all processes; got 4 for process 0 and 3 for process 1",
        ),
        (Place(2, 4, "127.0.0.1", 0), "process_id must differ between processes; got 2 from process 2 .* and from process 2"),
    ],
    ids=["count", "id"],
)
def test_contradictions_end_all(port, second, message):
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(Node, Place(0, 4, "127.0.0.1", port))
        other = pool.submit(Node, Place(2, 4, "127.0.0.1", port))
        time.sleep(0.3)
        calls = [first, other, pool.submit(Node, second._replace(port=port))]
        for call in calls:
            with pytest.raises(PeersError, match=message):
                call.result()


def test_nothing_is_left_running(port):
    before = threading.active_count()
    close(joined(port, 3))
    deadline = time.monotonic() + 5
    while threading.active_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.02)

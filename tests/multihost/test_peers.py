"""What processes say to each other: threads in their place, a store in place of JAX's. Whole ones: test_distributed.py."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from gmmae.multihost import peers
from gmmae.multihost.peers import Peers
from gmmae.multihost.watchdog import ExitMessage, Watchdog

SILENCE_S = 2.0
RESUME = "python train.py"


class Service:
    """JAX's coordination service, as far as it is used; `stopped` makes calls wait, as a stopped process 0 does."""

    def __init__(self, processes: int) -> None:
        self._processes, self._changed = processes, threading.Condition()
        self.values: dict[str, str] = {}
        self._barriers: dict[str, threading.Barrier] = {}
        self.goes = threading.Event()
        self.goes.set()

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        self.goes.wait()
        with self._changed:
            if key in self.values and not allow_overwrite:
                raise RuntimeError(f"ALREADY_EXISTS: {key}")
            self.values[key] = value
            self._changed.notify_all()

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self.values, min(timeout_in_ms / 1000, 20.0))
            return self.values[key]

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        self.goes.wait()
        with self._changed:
            return [(name, value) for name, value in self.values.items() if name.startswith(key)]

    def wait_at_barrier(self, barrier_id: str, timeout_in_ms: int) -> None:
        with self._changed:
            barrier = self._barriers.setdefault(barrier_id, threading.Barrier(self._processes))
        barrier.wait(20.0)


class EndedError(Exception):
    """The process has ended."""


class Kept(Watchdog):
    """Keeps what it is told; after an end nothing comes."""

    def __init__(self) -> None:
        super().__init__()
        self.words: ExitMessage | None = None
        self.left: list[ExitMessage] = []
        self.ended = threading.Event()
        self.deadlines: dict[str, float] = {}

    def extend_deadline(self, deadline: str, seconds: float, line: str) -> None:
        self.deadlines[deadline] = seconds

    def set_exit_message(self, words: ExitMessage) -> None:
        self.words = words
        self.left.append(words)

    def end(self, words: ExitMessage):
        self.set_exit_message(words)
        self.ended.set()
        if threading.current_thread().daemon:  # one of the link's own, for which there is nobody to raise to
            threading.Event().wait()
        raise EndedError


class Node:
    def __init__(self, service: Service, i: int, count: int) -> None:
        self.parent = Kept()
        self.peers = Peers(service, i, count, self.parent, SILENCE_S, 600.0, f"{RESUME} {i}")

    def quiet(self) -> None:
        """It says nothing more, as when it is killed."""
        self.peers._closed.set()

    def said(self) -> ExitMessage:
        assert self.parent.ended.wait(5 * SILENCE_S)
        assert self.parent.words
        return self.parent.words


def together(nodes, call):
    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(call, nodes))


@pytest.fixture
def service() -> Service:
    return Service(3)


@pytest.fixture
def nodes(service) -> Iterator[list[Node]]:
    made = together(range(3), lambda i: Node(service, i, 3))
    yield made
    service.goes.set()
    for node in made:
        node.quiet()


def test_all_hear_the_first_and_a_quiet_run_lives(nodes):
    for word in ("a", None, {"k": [1.5, "é\n"]}):
        assert (
            together(nodes, lambda node, word=word: node.peers.broadcast_from_root([node.peers.primary, word]))
            == [[True, word]] * 3
        )
    time.sleep(1.5 * SILENCE_S)
    together(nodes, lambda node: node.peers.barrier())
    together(nodes, lambda node: node.peers.assert_equal({"a": "1"}))
    assert [node.parent.words for node in nodes] == [None] * 3
    together(nodes, lambda node: node.peers.close())
    assert all(node.parent.deadlines == {"alive": float("inf"), "epoch": float("inf")} for node in nodes)


def test_who_ends_all_does_not_hear_of_it_as_from_another(nodes):
    """It waits until the others have heard; what it had to say it has said before."""
    nodes[1].quiet()
    nodes[2].quiet()
    with pytest.raises(EndedError):
        nodes[0].peers.fail("workdir must be a folder", 2)
    assert set(nodes[0].parent.left) == {ExitMessage("", 2)}


@pytest.mark.parametrize("lost", [1, 2])
def test_a_silent_process_is_named_to_all_others(nodes, lost):
    nodes[lost].quiet()
    for node in nodes:
        if node is not nodes[lost]:
            line, code = node.said()
            assert code == 75
            assert f"error: process {lost} (" in line
            assert "has been silent for 2 s: it was killed or stopped, or its host cannot be reached" in line
            assert line.endswith(f"; to resume, start all processes again: {RESUME} {node.peers._me}\n")


def test_a_service_that_does_not_answer_is_process_0(nodes, service):
    service.goes.clear()
    line, code = nodes[1].said()
    assert "error: process 0 (" in line
    assert "has been silent for 2 s" in line
    assert code == 75


def test_who_is_missing_when_a_collective_operation_fails_is_found_sooner(nodes, monkeypatch):
    monkeypatch.setattr(peers, "BROKEN_S", 0.5)
    start = time.monotonic()
    nodes[2].quiet()
    nodes[1].peers.wait_for_loss()
    assert "error: process 2 (" in nodes[0].said().line
    assert time.monotonic() - start < SILENCE_S


def test_a_failure_is_told_with_its_reason_and_its_exit_code(nodes):
    """All then end with that code, so that a launcher, which has the highest of them, has it too."""
    with pytest.raises(EndedError):
        nodes[1].peers.fail("data.root must exist", 2)
    assert nodes[1].said() == ("", 2)
    for node in (nodes[0], nodes[2]):
        line, code = node.said()
        assert "error: process 1 (" in line
        assert "has ended: data.root must exist; to resume" in line
        assert code == 2


def test_the_first_process_ends_when_the_others_have_heard_why(nodes, service):
    """The service ends with process 0, and JAX aborts every connected process."""
    with pytest.raises(EndedError):
        nodes[0].peers.fail("the disk is full", 74)
    assert {key for key in service.values if key.startswith("heard/")} == {"heard/0", "heard/1", "heard/2"}
    assert [node.said().code for node in nodes] == [74, 74, 74]


def test_others_are_told_that_a_parent_was_killed(nodes):
    nodes[1].parent.on_parent_death()
    assert "error: process 1 (" in nodes[2].said().line
    assert "was killed" in nodes[2].said().line


def test_time_in_which_this_process_was_stopped_is_no_silence(nodes, monkeypatch):
    """The clock is a minute later when the threads go on, as after `scontrol suspend`."""
    clock, ahead_s = time.monotonic, 0.0
    monkeypatch.setattr(peers, "time", SimpleNamespace(monotonic=lambda: clock() + ahead_s, sleep=time.sleep))
    ahead_s = 60.0
    time.sleep(1.5 * SILENCE_S)
    assert [node.parent.words for node in nodes] == [None] * 3


def test_an_epoch_may_take_ten_times_as_long_as_the_longest_before(nodes, monkeypatch):
    now = 0.0
    monkeypatch.setattr(peers, "time", SimpleNamespace(monotonic=lambda: now, sleep=time.sleep))
    limits = []
    for now in (10.0, 30.0, 150.0, 160.0):  # noqa: B007 the clock reads it
        nodes[1].peers._limit_epoch()
        limits.append(nodes[1].parent.deadlines.get("epoch"))
    assert limits == [None, 600.0, 1200.0, 1200.0]

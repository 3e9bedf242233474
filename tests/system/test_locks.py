"""One process at a time, whatever the file system does with locks."""

import errno
import fcntl
import os
import threading
from functools import partial

import pytest

from gmmae.system import locks


class BusyError(Exception):
    pass


def refuse(holder):
    raise BusyError(holder)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(locks, "BEAT_S", 0.02)
    monkeypatch.setattr(locks, "SILENCE_S", 0.5)
    monkeypatch.setattr(locks, "LOOK_EVERY_S", 0.02)


@pytest.fixture
def held(tmp_path):
    return partial(locks.held, tmp_path / "lock")


def failing(number):
    def fails(file, operation):
        raise OSError(number, os.strerror(number))

    return fails


@pytest.fixture(params=[None, errno.ENOLCK])
def no_flock(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(fcntl, "flock", failing(request.param))


@pytest.fixture
def flock_of_this_host_only(monkeypatch):
    """Gives every process the lock, as NFS's `nolock` or Lustre's `localflock` do on another host."""
    monkeypatch.setattr(fcntl, "flock", lambda file, operation: None)


@pytest.mark.usefixtures("no_flock")
def test_a_second_one_is_told_who_holds_it(tmp_path, held):
    with held(refuse):
        with pytest.raises(BusyError, match=rf"^process {os.getpid()} on "), held(refuse):
            pass
        assert (tmp_path / "lock.owner").exists()
    assert not (tmp_path / "lock.owner").exists()
    with held(refuse):
        pass


@pytest.mark.usefixtures("no_flock")
def test_one_that_waits_enters_when_the_first_one_leaves(held):
    events, waits = [], threading.Event()

    def busy(holder):
        waits.set()

    def second():
        with held(busy):
            events.append("second in")

    thread = threading.Thread(target=second)
    with held(refuse):
        thread.start()
        assert waits.wait(20)
        events.append("first out")
    thread.join(20)
    assert events == ["first out", "second in"]


@pytest.mark.parametrize("look", [True, False])
@pytest.mark.usefixtures("flock_of_this_host_only")
def test_a_run_on_another_host_is_seen_though_its_lock_is_not(held, monkeypatch, look):
    with held(refuse):
        monkeypatch.setattr(locks, "this_boot", lambda: "another kernel")
        with pytest.raises(BusyError, match=rf"^process {os.getpid()} on "), held(refuse, look):
            pass


@pytest.mark.parametrize(("kernel", "look"), [("another", True), ("another", False), (locks.this_boot(), True)])
def test_what_a_dead_process_left_is_taken_over_at_once_where_flock_or_its_age_says_so(
    tmp_path, held, monkeypatch, kernel, look
):
    if kernel == locks.this_boot():
        monkeypatch.setattr(locks, "_silent", lambda owner: pytest.fail("there is nothing to wait for"))
    (tmp_path / "lock.owner").write_text(f"process 1 on gone\n{kernel}")
    os.utime(tmp_path / "lock.owner", (0, 0))
    with held(refuse, look):
        assert str(os.getpid()) in (tmp_path / "lock.owner").read_text()


def test_one_that_was_taken_for_dead_does_not_remove_its_successors_name(tmp_path, held):
    with held(refuse):
        (tmp_path / "lock.owner").write_text("process 1 on elsewhere\nanother kernel")
    assert (tmp_path / "lock.owner").exists()


def test_other_errors_of_the_file_system_are_not_hidden(held, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"), held(refuse):
        pass


def test_the_lock_is_taken_on_a_file_that_is_open_for_writing(held, monkeypatch):
    # Otherwise NFS answers EBADF.
    modes = []
    monkeypatch.setattr(fcntl, "flock", lambda file, operation: modes.append(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE))
    with held(refuse):
        pass
    assert modes == [os.O_WRONLY]

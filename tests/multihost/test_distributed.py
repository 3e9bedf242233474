"""Runs of two real processes of two virtual devices each, started without a launcher: what they compute, and how they end."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from gmmae.config.schema import Config
from gmmae.config.toml import to_toml
from gmmae.training.loop import run
from gmmae.training.records import Epoch
from gmmae.training.workdir import WorkDir
from tests.faults.runs import children_of, gone
from tests.small import RATES, Recorder, fingerprint, losses, small
from tests.volume_sources import from_source
from tests.waiting import free_port, wait_until

ROOT = Path(__file__).parent.parent.parent
SILENCE_S = 4.0
START_S = 60.0
"""More than a start takes on a busy machine."""


class Pair:
    """Two processes of one run; all that is left of them is killed in the end."""

    def __init__(self, folder: Path, compiled: Path):
        self.folder, self.compiled = folder, compiled
        self.started: list[subprocess.Popen[str]] = []

    def start(self, config: Config | Sequence[Config], workdir: Path, ids=(0, 1), **options: object) -> list[subprocess.Popen]:
        """Starts processes with one configuration, or with one each."""
        common = {"coordinator": f"127.0.0.1:{free_port()}", "num-processes": 2, "heartbeat-timeout-s": SILENCE_S}
        new = []
        for i in ids:
            file = self.folder / f"{len(self.started)}.toml"
            file.write_text(to_toml(config if isinstance(config, Config) else config[i]))
            given = common | {"start-timeout-s": START_S, "process-id": i} | options
            words = [str(word) for key, value in given.items() for word in (f"--distributed.{key}", value)]
            new.append(self.launch("--config", file, "--workdir", workdir, *words))
        return new

    def launch(self, *arguments: object) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "train.py", *map(str, arguments)],
            cwd=ROOT,
            env={
                **os.environ,
                "JAX_NUM_CPU_DEVICES": "2",
                "JAX_COMPILATION_CACHE_DIR": str(self.compiled),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def pair(tmp_path, compiled) -> Iterator[Pair]:
    made = Pair(tmp_path, compiled)
    yield made
    made.end()


def finish(process: subprocess.Popen, timeout_s: float = 2 * START_S) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    out, error = process.communicate(timeout=timeout_s)
    return process.returncode, out, error


def rows(workdir: Path) -> list[Epoch]:
    return WorkDir(workdir).read_rows()


def alone(config: Config, workdir: Path) -> list[Epoch]:
    """The same run in this process, on 4 devices."""
    display = Recorder()
    run(config, workdir, display)
    return display.rows


@pytest.mark.slow
def test_two_processes_are_one_run(tmp_path, pair):
    config = small(parallel__devices=4, stop__max_epochs=5, log__tensorboard=True)
    (code, out, error), silent = map(finish, pair.start(config, tmp_path / "two"))
    assert (code, error) == (0, "")
    assert silent == (0, "", "")
    assert "devices          4 × cpu" in out
    one, two = losses(alone(config, tmp_path / "one")), losses(rows(tmp_path / "two"))
    # The same mean of 4 gradients, added up in another order: measured 1e-7.
    np.testing.assert_allclose(two, one, rtol=1e-5)
    assert len(two) == len({loss for _, _, loss in two}) == 5
    record = json.loads((tmp_path / "two" / "record.json").read_text())
    assert (record["devices"], record["processes"], record["device_batch"], record["stop_reason"]) == (4, 2, 2, "max_epochs")
    assert len(list((tmp_path / "two" / "tb").iterdir())) == 1
    assert "max_epochs after 5 epochs" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epochs", "changes"),
    [
        (20, {}),
        *((4, {"optim__name": name, "optim__learning_rate": rate}) for name, rate in RATES.items() if name != "adam"),
        (5, {"scaling": "growing", "optim__batch_doubling_epochs": (2,)}),
    ],
    ids=["adam", *(name for name in RATES if name != "adam"), "growing"],
)
def test_two_processes_have_the_bits_of_one_device_with_the_exact_reduction(tmp_path, pair, epochs, changes):
    exact = {"parallel__deterministic": True, "parallel__deterministic_shards": 8, "stop__max_epochs": epochs} | changes
    config = small(parallel__devices=1, parallel__simulate_devices=4, **exact)
    found = alone(config, tmp_path / "one")
    assert len({row.val_loss for row in found}) == epochs
    assert len({row.batch for row in found}) == 1 + ("scaling" in changes)
    ended = list(map(finish, pair.start(small(parallel__devices=4, **exact), tmp_path / "two")))
    assert [(code, error) for code, _, error in ended] == [(0, ""), (0, "")]
    assert fingerprint(config, tmp_path / "two") == fingerprint(config, tmp_path / "one")


@pytest.mark.slow
def test_two_processes_read_only_what_their_devices_need_of_a_source_and_have_the_bits_of_arrays(tmp_path, pair):
    exact = {"parallel__deterministic": True, "parallel__deterministic_shards": 8, "stop__max_epochs": 4}
    config = small(parallel__devices=1, parallel__simulate_devices=4, **exact)
    found = alone(config, tmp_path / "one")
    assert len({row.val_loss for row in found}) == 4
    reads = tmp_path / "reads"
    reads.mkdir()
    together = from_source(tmp_path / "volumes.py", small(parallel__devices=4, **exact), reads=str(reads))
    ended = list(map(finish, pair.start(together, tmp_path / "two")))
    assert [(code, error) for code, _, error in ended] == [(0, ""), (0, "")]
    assert losses(rows(tmp_path / "two")) == losses(found)
    assert fingerprint(config, tmp_path / "two") == fingerprint(config, tmp_path / "one")
    of_processes = [len(path.read_text().splitlines()) for path in reads.iterdir()]
    assert len(of_processes) == 2
    # Before training each reads the first sample, ten for the fingerprint, and all 22 for the contract unless the other process
    # has checked it already. In 8 shards the last step, of 6 samples, has two padded slots, for which process 1 reads the first
    # sample of the step: once, if at all. Were every sample read by both, there would be 4 × 22 more.
    assert 4 * 22 <= sum(of_processes) - 2 * 11 <= 4 * (22 + 1) + 2 * 22


def endless(**changes) -> Config:
    return small(parallel__devices="all", stop__max_epochs=100_000, checkpoint__every_epochs=1, **changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "number", "code_of_all", "reason"), [(0, signal.SIGTERM, 143, "sigterm"), (1, signal.SIGHUP, 129, "sighup")]
)
def test_a_signal_to_one_saves_and_ends_all_after_the_same_epoch_and_resumes(tmp_path, pair, one, number, code_of_all, reason):
    workdir = tmp_path / "run"
    processes = pair.start(endless(), workdir)
    wait_until(lambda: len(rows(workdir)) >= 2, 2 * START_S)
    processes[one].send_signal(number)
    (code, out, error), other = map(finish, processes)
    assert (code, error) == (code_of_all, "")
    assert other == (code_of_all, "", "")
    done = len(rows(workdir))
    assert f"{reason} after {done} epochs" in out
    assert "checkpoint written; to resume: python train.py --config" in out
    assert (workdir / "checkpoints" / str(done)).is_dir()
    if one == 0:  # strong scaling: another number of devices goes on with the same run
        config = small(parallel__devices=1, stop__max_epochs=done + 2, checkpoint__every_epochs=1)
        assert [row.epoch for row in alone(config, workdir)] == [done + 1, done + 2]
        whole = alone(config, tmp_path / "whole")
        # As in test_parallel.py, over some more epochs.
        np.testing.assert_allclose(losses(rows(workdir)), losses(whole), rtol=1e-4)


def our_line(error: str) -> str:
    """The only one of ours on standard error; JAX and Gloo may say in many what they think of another's end."""
    [line] = [line for line in error.splitlines() if line.startswith("error: ")]
    return line


def worker_of(process: subprocess.Popen) -> int:
    """The process that trains; the one that was started waits for it."""
    [worker] = children_of(process.pid)
    return worker


def killed(process: subprocess.Popen) -> None:
    os.kill(worker_of(process), signal.SIGKILL)


def parent_killed(process: subprocess.Popen) -> None:
    process.kill()


def stopped(process: subprocess.Popen) -> None:
    os.kill(worker_of(process), signal.SIGSTOP)


SILENT = r"has been silent for \d s: it was killed or stopped, or its host cannot be reached"
FAULTS: dict[str, tuple[int, Callable[[subprocess.Popen], None], float, str, int]] = {
    "0 killed": (0, killed, SILENCE_S, "has ended without a word: it was killed, or has crashed", -signal.SIGKILL),
    "1 killed": (1, killed, SILENCE_S, SILENT, -signal.SIGKILL),
    "parent of 1 killed": (1, parent_killed, SILENCE_S, "was killed", -signal.SIGKILL),
    "0 stopped": (0, stopped, 2 * SILENCE_S, SILENT, 75),
}
"""The process, what is done to it, within how long the other ends, what that one says, and how the struck one ends.

`python -m tests.faults` has all of them.
"""


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "fault", "bound_s", "how", "code_of_lost"), FAULTS.values(), ids=FAULTS.keys())
def test_a_lost_process_ends_the_other_one_in_time_and_nothing_is_left(tmp_path, pair, lost, fault, bound_s, how, code_of_lost):
    workdir = tmp_path / "run"
    processes = pair.start(endless(), workdir)
    wait_until(lambda: len(rows(workdir)) >= 2, 2 * START_S)
    worker = worker_of(processes[lost])
    fault(processes[lost])
    start = time.monotonic()
    code, _, error = finish(processes[1 - lost], 30)
    assert time.monotonic() - start < bound_s
    assert code == 75
    assert re.fullmatch(
        rf"error: process {lost} \(.*, pid {processes[lost].pid}\) {how}; to resume, start all processes again: "
        rf"python train\.py --config .*--distributed\.process-id {1 - lost}\b.*",
        our_line(error),
    )
    # A stopped process is killed by its parent: it would hold the work directory. A worker without a parent ends by itself.
    assert processes[lost].wait(10) == code_of_lost
    assert gone(worker, 10)
    done = len(rows(workdir))
    config = small(parallel__devices=4, stop__max_epochs=done + 1, checkpoint__every_epochs=1)
    assert alone(config, workdir)[-1].epoch == done + 1
    np.testing.assert_array_equal([row.epoch for row in rows(workdir)], range(1, done + 2))


@pytest.mark.slow
def test_a_process_that_does_not_come_is_an_error_of_one_line(tmp_path, pair):
    [first] = pair.start(small(), tmp_path / "run", ids=[0], **{"start-timeout-s": 1})
    code, out, error = finish(first)
    assert (code, out) == (2, "")
    assert re.fullmatch(
        r"error: all 2 processes must start within .*, 1 s, and reach process 0 at 127\.0\.0\.1:\d+; got fewer: .*\n", error
    )


def test_processes_that_differ_all_say_so(tmp_path, pair):
    configs = [small(parallel__devices="all", optim__batch_size=8 + i) for i in (0, 1)]
    processes = pair.start(configs, tmp_path / "run")
    for code, out, error in map(finish, processes):
        assert (code, out) == (2, "")
        assert error == (
            "error: all processes must have the same configuration, versions, code and data; got optim.batch_size 8 on "
            "process 0 and 9 on process 1\n"
        )


def test_an_error_of_one_ends_the_other_with_its_words(tmp_path, pair):
    """The first process alone looks at the work directory."""
    place = tmp_path / "file"
    place.write_text("")
    (code, _, error), (other_code, _, other_error) = map(finish, pair.start(small(parallel__devices="all"), place))
    assert (code, other_code) == (2, 2)  # the one code that says what was wrong: nobody is to start them again
    assert our_line(error).startswith("error: workdir must be a folder that can be written")
    assert re.match(
        r"error: process 0 \(.*\) has ended: workdir must be a folder that can be written; .*; to resume", our_line(other_error)
    )


def listening(*pids: int) -> list[tuple[str, int]]:
    """The addresses and ports at which processes listen, by Linux's tables; an IPv4 address by either table."""
    sockets = set()
    for pid in pids:
        for place in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(place))
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    places = [line[1].split(":") for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]
    return [(socket.inet_ntoa(bytes.fromhex(address[-8:])[::-1]), int(port, 16)) for address, port in places]


def strangers(address: str, port: int) -> Iterator[socket.socket]:
    """A hundred who say nothing, and a hundred who say what nobody understands."""
    random = np.random.default_rng(port)
    for i in range(200):
        stranger = socket.create_connection((address, port))
        if i % 2:
            with contextlib.suppress(OSError):  # it has been shut out already
                stranger.sendall(random.bytes(1 + 7 * i))
        yield stranger


@pytest.mark.slow
def test_strangers_at_every_port_change_no_bit_and_the_service_listens_on_the_loopback_interface_alone(tmp_path, pair):
    config = small(parallel__devices=4, stop__max_epochs=200, checkpoint__every_epochs=200)
    assert [code for code, _, _ in map(finish, pair.start(config, tmp_path / "quiet"))] == [0, 0]
    workdir = tmp_path / "run"
    processes = pair.start(config, workdir)
    wait_until(lambda: len(rows(workdir)) >= 2, 2 * START_S)
    addresses = {address for address, _ in listening(worker_of(processes[0]))}
    assert "127.0.0.1" in addresses
    assert "0.0.0.0" not in addresses  # all interfaces
    ports = listening(*map(worker_of, processes))
    came = [stranger for address, port in ports for stranger in strangers(address, port)]
    assert len(ports) == 3
    assert len(rows(workdir)) < 200
    assert [code for code, _, _ in map(finish, processes)] == [0, 0]
    for stranger in came:
        stranger.close()
    assert fingerprint(config, workdir) == fingerprint(config, tmp_path / "quiet")


def test_some_of_the_devices_are_refused(tmp_path, pair):
    ended = map(finish, pair.start(small(parallel__devices=2), tmp_path / "run"))
    for code, _, error in ended:
        assert code == 2
        assert "parallel.devices must be all or the 4 devices of the 2 processes; got 2" in error

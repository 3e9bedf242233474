"""Runs of two real processes of two virtual devices each, started without a launcher: what they compute, and how they end.

`tests/faults` has the losses of processes, and the ends that all share.
"""

import contextlib
import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gmmae.config.schema import changed
from gmmae.multihost import distributed
from tests.launched import START_S, Launch
from tests.multihost.test_launchers import HAND
from tests.small import CHEAP, EXACT, fingerprint, finish, losses, small
from tests.volume_sources import from_source

pytestmark = pytest.mark.usefixtures("optimised")


@pytest.fixture
def pair(tmp_path):
    made = Launch(tmp_path / "logs", tmp_path / "two")
    yield made
    made.kill()


def alone(config, workdir):
    """The same run in this process, on 4 devices."""
    return finish(config, workdir)[1].rows


@pytest.mark.slow
@pytest.mark.parametrize("scaling", ["strong", "local"])
def test_two_processes_are_one_run(tmp_path, pair, scaling):
    # Smooth, so that rounding does not grow: beyond a ReLU's kink 1e-4 was seen on one processor.
    changes = CHEAP | {"stop__max_epochs": 5, "log__tensorboard": True}
    config = small(scaling=scaling, optim__local_steps=2, parallel__devices=4, **changes)
    pair.start(config)
    first, silent = pair.finish()
    assert (first.code, first.error) == (0, "")
    assert silent == (0, "", "")
    assert "devices          4 × cpu" in first.out
    one, two = losses(alone(config, tmp_path / "one")), losses(pair.rows())
    # The same mean of 4 gradients, added up in another order: measured 1e-7.
    np.testing.assert_allclose(two, one, rtol=1e-5)
    assert len(two) == len({loss for _, _, loss in two}) == 5
    record = json.loads((pair.workdir / "record.json").read_text())
    assert (record["devices"], record["processes"], record["device_batch"], record["stop_reason"]) == (4, 2, 2, "max_epochs")
    assert len(list(pair.workdir.glob("events*"))) == 1
    assert "max_epochs after 5 epochs" in first.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epochs", "changes"),
    [(20, {}), (5, {"scaling": "growing", "optim__batch_doubling_epochs": (2,), **CHEAP})],
    # an optimiser gets the sum, see test_exact.py
)
def test_two_processes_have_the_bits_of_one_device_with_the_exact_reduction(tmp_path, pair, epochs, changes):
    exact = EXACT | {"stop__max_epochs": epochs} | changes
    config = small(parallel__devices=1, parallel__simulate_devices=4, **exact)
    found = alone(config, tmp_path / "one")
    assert len({row.val_loss for row in found}) == epochs
    assert len({row.batch for row in found}) == 1 + ("scaling" in changes)
    pair.start(small(parallel__devices=4, **exact))
    assert [(end.code, end.error) for end in pair.finish()] == [(0, ""), (0, "")]
    assert fingerprint(config, pair.workdir) == fingerprint(config, tmp_path / "one")


@pytest.mark.slow
def test_two_processes_read_only_what_their_devices_need_of_a_source_and_have_the_bits_of_arrays(tmp_path, pair):
    exact = EXACT | CHEAP | {"stop__max_epochs": 4}
    config = small(parallel__devices=1, parallel__simulate_devices=4, **exact)
    assert len({row.val_loss for row in alone(config, tmp_path / "one")}) == 4
    reads = tmp_path / "reads"
    reads.mkdir()
    pair.start(from_source(tmp_path / "volumes.py", small(parallel__devices=4, **exact), reads=str(reads)))
    ended = pair.finish()
    assert [end.code for end in ended] == [0, 0]
    assert {end.error.partition(" of sources have no hash: ")[0] for end in ended} == {"12 samples"}
    assert {end.error.count("\n") for end in ended} == {1}
    assert fingerprint(config, pair.workdir) == fingerprint(config, tmp_path / "one")
    of_processes = [len(path.read_text().splitlines()) for path in reads.iterdir()]
    assert len(of_processes) == 2
    # Before training each reads the first sample, ten for the fingerprint, and all 22 for the contract unless the other process
    # has checked it already. In 8 shards the last step, of 6 samples, has two padded slots, for which process 1 reads the first
    # sample of the step: once, if at all. Were every sample read by both, there would be 4 × 22 more.
    assert 4 * 22 <= sum(of_processes) - 2 * 11 <= 4 * (22 + 1) + 2 * 22


@pytest.mark.slow
def test_one_process_goes_on_with_what_two_have_begun(tmp_path, pair):
    cheap = CHEAP | {"checkpoint__every_epochs": 1}
    pair.start(small(parallel__devices="all", stop__max_epochs=100_000, **cheap))
    pair.wait_for_epochs(2)
    pair.processes[0].terminate()
    first, other = pair.finish()
    done = len(pair.rows())
    assert (first.code, first.error, other) == (143, "", (143, "", ""))
    assert f"sigterm after {done} epochs" in first.out
    assert "checkpoint written; to resume: python train.py --config" in first.out
    config = small(parallel__devices=1, stop__max_epochs=done + 2, **cheap)
    assert [row.epoch for row in alone(config, pair.workdir)] == [done + 1, done + 2]
    whole = alone(config, tmp_path / "whole")
    # Sums in another order: 1e-7 a step, carried on through some epochs of Adam.
    np.testing.assert_allclose(losses(pair.rows()), losses(whole), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_nobody_joins_says_so_in_one_line(pair, rank):
    pair.start([small(), small()], ids=[rank], **{"start-timeout-s": 1})
    [(code, out, error)] = pair.finish()
    assert (code, out) == (2, "")
    assert error.startswith("error: all 2 processes must start within distributed.start_timeout_s, 1 s, ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        (
            [small(parallel__devices="all", optim__batch_size=size) for size in (8, 9)],
            "configuration, versions, code and data; got optim.batch_size 8 on process 0 and 9 on process 1",
        ),
        (
            small(parallel__devices=2),
            "parallel.devices must be all or the 4 devices of the 2 processes; got 2",
        ),
    ],
)
def test_processes_that_differ_or_leave_devices_out_all_say_so(pair, configs, message):
    pair.start(configs)
    for code, out, error in pair.finish():
        assert (code, out) == (2, "")
        assert message in error
        assert error.count("\n") == 1


def test_processes_compare_what_they_compute_when_they_meet_and_with_what(monkeypatch):
    compared = {}
    group = SimpleNamespace(primary=True, assert_equal=compared.update, leave=lambda: None)
    monkeypatch.setattr(distributed, "_meet", lambda *_: group)
    with distributed.join_processes(changed(small(), **{f"distributed__{key}": value for key, value in HAND.items()})):
        assert {"seed", "stop.target", "checkpoint.every_epochs", "log.every_epochs", "jax", "the sources of gmmae"} <= set(
            compared
        )
    assert not {"parallel.fetch_threads", "distributed.process_id"} & set(compared)


def test_an_error_of_one_ends_the_other_with_its_words(pair):
    """The first process alone looks at the work directory."""
    pair.workdir.write_text("")
    pair.start(small(parallel__devices="all"))
    first, other = pair.finish()
    assert (first.code, other.code) == (2, 2)  # the one code that says what was wrong: nobody is to start them again
    assert first.error.startswith("error: workdir must be a folder that can be written")
    assert other.error.startswith("error: process 0 has ended: workdir must be a folder that can be written")


def listening(*pids):
    """The addresses and ports at which processes listen, by Linux's tables; an IPv4 address by either table."""
    sockets = set()
    for pid in pids:
        for place in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(place))
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    places = [line[1].split(":") for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]
    return [(socket.inet_ntoa(bytes.fromhex(address[-8:])[::-1]), int(port, 16)) for address, port in places]


def strangers(address, port):
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
    quiet = Launch(tmp_path / "logs of quiet", tmp_path / "quiet")
    quiet.start(config)
    assert [end.code for end in quiet.finish(4 * START_S)] == [0, 0]
    pair.start(config)
    pair.wait_for_epochs(2)
    pids = [process.pid for process in pair.processes]
    addresses = {address for address, _ in listening(pids[0])}
    assert "127.0.0.1" in addresses
    assert "0.0.0.0" not in addresses  # all interfaces
    ports = listening(*pids)
    came = [stranger for address, port in ports for stranger in strangers(address, port)]
    assert len(ports) == 3
    assert len(pair.rows()) < 200
    assert [end.code for end in pair.finish(4 * START_S)] == [0, 0]
    for stranger in came:
        stranger.close()
    assert fingerprint(config, pair.workdir) == fingerprint(config, quiet.workdir)

"""`gmmae measure-cluster` as a user meets it: a file that a plan reads, or one line and no file."""

import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gmmae.scaling import cost
from gmmae.scaling.cost import Cluster
from gmmae.system.errors import InputError
from gmmae.training import collective_times
from tests.commands import refusal, run_gmmae
from tests.interrupting import full_disk, moments, tree

QUICK = ("--blocks", 1, "--sizes", 256, 1_048_576)


MADE_UP = Cluster("", "", 4, 2e-5, 1e9, 5e-4, 1e8, collective="ring")
"""The links by which the tests' clock goes. The programs run, but nobody waits for times that a busy machine changes."""
DISPATCH_S, STEP_S = 1e-4, 1e-6


def made_up_seconds(compiled, turns, vectors):
    compiled(turns, vectors)
    devices, size = vectors.shape
    return DISPATCH_S * (not turns) + int(turns) * (STEP_S + (cost.all_reduce_s(MADE_UP, devices, 4 * size) if size > 1 else 0))


@pytest.fixture(autouse=True)
def made_up_clock(monkeypatch):
    monkeypatch.setattr(collective_times, "MIN_BLOCK_S", 1e-3)
    monkeypatch.setattr(collective_times, "_seconds", made_up_seconds)


def measure(out, *options):
    return run_gmmae("measure-cluster", "--out", out, *QUICK, *options)


@pytest.mark.parametrize("devices", [(2,), (2, 4)])
def test_the_links_of_virtual_devices_are_written_as_a_plan_reads_them(devices, tmp_path, capsys):
    out = tmp_path / "mine.toml"
    assert measure(out, "--devices", *devices, "--devices-per-node", 4, "--name", "Mine") == 0
    cluster = cost.read_cluster(out)
    assert (cluster.name, cluster.device, cluster.devices_per_node) == ("Mine", "cpu", 4)
    assert (cluster.alpha_inter_s, cluster.beta_inter_bytes_per_s) == (None, None)
    assert cluster.alpha_intra_s == pytest.approx(MADE_UP.alpha_intra_s, rel=1e-3)  # four digits are written
    assert cluster.beta_intra_bytes_per_s == pytest.approx(MADE_UP.beta_intra_bytes_per_s, rel=1e-3)
    printed = capsys.readouterr().out
    assert f"gmmae plan --clusters {out} --devices 1 2 4\n" in printed
    assert "a plan by this file has at most 4 devices" in printed
    for n in devices:
        assert f"overhead on {n} devices: 100 µs for a dispatch, 1 µs for an empty step inside a compiled loop" in printed
    assert "the fit is off by 0 % at most" in printed
    assert "warning" not in printed
    head = out.read_text().partition("\nname = ")[0]
    assert all(line.startswith("#") or not line for line in head.splitlines())
    for fact in ("8 × cpu", "jax 0", "1048576", "relative error of the fit is 0 %", "say nothing of a GPU"):
        assert fact in head
    assert len(re.findall(r"^# +\d +(256|1048576) ", head, re.MULTILINE)) == 2 * len(devices)


def test_links_between_nodes_are_measured_where_nodes_are_smaller(tmp_path):
    assert measure(tmp_path / "mine.toml", "--devices", 2, 8, "--devices-per-node", 4) == 0
    cluster = cost.read_cluster(tmp_path / "mine.toml")
    for devices in (2, 4, 8, 32):
        assert cost.all_reduce_s(cluster, devices, 2e6) == pytest.approx(cost.all_reduce_s(MADE_UP, devices, 2e6), rel=1e-3)


def test_times_that_do_not_follow_the_model_are_warned_of(tmp_path, capsys, monkeypatch):
    def uneven(compiled, turns, vectors):
        return made_up_seconds(compiled, turns, vectors) * (5 if vectors.shape == (2, 1024) else 1)

    monkeypatch.setattr(collective_times, "_seconds", uneven)
    assert measure(tmp_path / "mine.toml", "--devices", 2, "--sizes", 256, 4096, 1_048_576) == 0
    assert "warning: these times do not follow the model" in capsys.readouterr().out


def test_one_device_has_an_overhead_and_no_file(tmp_path, capsys):
    assert measure(tmp_path / "mine.toml", "--devices", 1) == 2
    out, error = capsys.readouterr()
    assert "overhead on 1 device: " in out
    assert error == "error: a link needs 2 devices or more; got 1: nothing was written, use more devices or processes\n"
    assert tree(tmp_path) == {}


def test_a_file_that_exists_is_kept_unless_its_replacement_is_forced(tmp_path, capsys):
    out = tmp_path / "mine.toml"
    out.write_text("precious")
    assert "--out must be a file that is new or empty; got" in refusal(capsys, "measure-cluster", "--out", out, *QUICK)
    assert out.read_text() == "precious"
    assert measure(out, "--devices", 2, "--force") == 0
    assert cost.read_cluster(out).device == "cpu"
    assert measure(out, "--devices", 2, "--force", "--name", "Another") == 0
    assert cost.read_cluster(out).name == "Another"


@pytest.mark.parametrize("name", ['8 × "fast"', "tab\tand line\nend", "\\"])
def test_any_name_is_read_back(name, tmp_path):
    assert measure(tmp_path / "mine.toml", "--devices", 2, "--name", name) == 0
    assert cost.read_cluster(tmp_path / "mine.toml").name == name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sizes", 1024), "--sizes must be two or more different multiples of 4, up to 1073741824; got (1024,)"),
        (("--sizes", 1024, 1023), "--sizes must be two or more different multiples of 4"),
        (("--sizes", 1024, -4), "--sizes must be two or more different multiples of 4"),
        (("--devices", 0), "--devices must be none or one or more different numbers of at least 1; got (0,)"),
        (("--devices", 2, 9), "--devices must be at most the 8 × cpu that JAX sees; got 9: set JAX_NUM_CPU_DEVICES=9"),
        (("--blocks", 0), "--blocks must be 1 to 1000; got 0"),
        (("--devices-per-node", 0), "--devices-per-node must be "),
        (("--name", ""), "--name must be none or not empty"),
        (("--devices", 8, "--devices-per-node", 4), "must also be timed on 2 to 4 devices of a node; got none"),
        (("--distributed.process-id", 1), "distributed.coordinator, num_processes and process_id must all be given"),
    ],
)
def test_bad_options_are_one_line_each(options, message, tmp_path, capsys):
    assert message in refusal(capsys, "measure-cluster", "--out", tmp_path / "mine.toml", *QUICK[:2], *options)
    assert tree(tmp_path) == {}


def test_the_file_must_be_named(capsys):
    assert "--out" in refusal(capsys, "measure-cluster")


def test_a_folder_that_is_missing_is_one_line(tmp_path, capsys):
    error = refusal(capsys, "measure-cluster", "--out", tmp_path / "none" / "mine.toml", "--devices", 2, *QUICK)
    assert "--out must be a file that can be written" in error


def test_an_interrupt_leaves_nothing_and_the_same_command_begins_again(tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(collective_times.np, "median", interrupted)
        assert measure(tmp_path / "mine.toml", "--devices", 2) == 130
    assert "nothing was written; the same command begins again" in capsys.readouterr().err
    with moments(tmp_path, 1):
        assert measure(tmp_path / "mine.toml", "--devices", 2) == 130
    assert tree(tmp_path) == {}
    assert measure(tmp_path / "mine.toml", "--devices", 2) == 0


def test_an_interrupted_replacement_leaves_the_earlier_file(tmp_path, monkeypatch):
    out = tmp_path / "mine.toml"
    assert measure(out, "--devices", 2) == 0
    before = tree(tmp_path)

    def end(code):
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", end)  # as after a StorageError
    with moments(tmp_path, 1, full_disk), pytest.raises(SystemExit, match="74"):
        measure(out, "--devices", 2, "--force", "--name", "Another")
    assert tree(tmp_path) == before


def test_a_wrong_sum_is_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(collective_times, "pmean", lambda function, batch, weights: function(batch, weights) + 1)
    error = refusal(capsys, "measure-cluster", "--out", tmp_path / "mine.toml", "--devices", 2, *QUICK)
    assert "an all-reduce of 0 to 1 must give their mean, 0.5, on every device; got 1" in error


def test_a_plan_beyond_a_node_needs_the_link_between_nodes(tmp_path, capsys):
    """It is refused before anything is measured."""
    assert measure(tmp_path / "mine.toml", "--devices", 2, "--devices-per-node", 2, "--name", "Pair") == 0
    capsys.readouterr()
    error = refusal(capsys, "plan", "--clusters", tmp_path / "mine.toml", "--workdir", tmp_path / "plan")
    assert error == (
        "error: devices must be at most the 2 of a node of Pair, whose link between nodes is unknown; got 32: use fewer, or "
        "give alpha_inter_s and beta_inter_bytes_per_s in the cluster's file\n"
    )
    assert not (tmp_path / "plan").exists()
    with pytest.raises(InputError, match="link between nodes is unknown"):
        cost.all_reduce_s(cost.read_cluster(tmp_path / "mine.toml"), 3, 100.0)


REAL = "import sys; from gmmae.cli import main; sys.exit(main.main())"
WITH_THE_MADE_UP_CLOCK = f"""
from gmmae.cli import main
from gmmae.training import collective_times
from tests.cli.test_measure_cluster import made_up_seconds
from tests.commands import UNWATCHED

main.COMMANDS.update(UNWATCHED)
collective_times.MIN_BLOCK_S, collective_times._seconds = 1e-3, made_up_seconds
{REAL}
"""


def start(folder: Path, process: int, port: int, *options: object, call: str = REAL) -> subprocess.Popen[str]:
    words = [
        "--out",
        folder / f"{process}.toml",
        "--blocks",
        1,
        "--sizes",
        256,
        2**24,
        "--distributed.coordinator",
        f"127.0.0.1:{port}",
    ]
    words += ["--distributed.num-processes", 2, "--distributed.process-id", process, *options]
    return subprocess.Popen(
        [sys.executable, "-c", call, "measure-cluster", *map(str, words)],
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def test_two_processes_are_timed_together_and_one_writes(tmp_path):
    """Each process is called a node, so that both kinds of links are there."""
    port = free_port()
    call = WITH_THE_MADE_UP_CLOCK
    processes = [start(tmp_path, i, port, "--devices-per-node", 2, call=call) for i in (0, 1)]
    (out, error), silent = [process.communicate(timeout=120) for process in processes]
    assert error == ""
    assert silent == ("", "")
    assert "4 × cpu in 2 processes" in out
    assert [path.name for path in tmp_path.iterdir()] == ["0.toml"]
    cluster = cost.read_cluster(tmp_path / "0.toml")
    assert cluster.devices_per_node == 2
    links = (cluster.alpha_intra_s, cluster.beta_intra_bytes_per_s, cluster.alpha_inter_s, cluster.beta_inter_bytes_per_s)
    # By the clock all four devices are of one node.
    assert links == pytest.approx(2 * (MADE_UP.alpha_intra_s, MADE_UP.beta_intra_bytes_per_s), rel=1e-3)
    assert tomllib.loads((tmp_path / "0.toml").read_text())["name"] == "4 × cpu in 2 processes"


@pytest.mark.slow
def test_ctrl_c_ends_both_processes_in_a_line_and_leaves_nothing(tmp_path):
    port = free_port()
    processes = [start(tmp_path, i, port, "--blocks", 1000) for i in (0, 1)]
    assert processes[0].stdout is not None
    while "4 × cpu" not in (line := processes[0].stdout.readline()):
        assert line, "the process has ended"
    processes[0].send_signal(signal.SIGINT)
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [130, 130]
    assert errors[0] == "interrupted; nothing was written\n"
    assert re.match(r"error: process 0 \(.*\) has ended: it was interrupted", errors[1])
    assert tree(tmp_path) == {}


def test_processes_with_other_options_all_say_so(tmp_path):
    port = free_port()
    processes = [start(tmp_path, i, port, "--blocks", i + 1) for i in (0, 1)]
    for process in processes:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 2
        assert "got blocks 1 on process 0 and 2 on process 1" in error
    assert tree(tmp_path) == {}

"""`gmmae measure-cluster` as a user meets it: a file that a plan reads, or one line and no file."""

import os
import subprocess
import sys

import jax
import pytest

from gmmae.cli import measure_cluster
from gmmae.scaling import cost
from gmmae.scaling.cost import Cluster, StepTimes
from gmmae.system.errors import InputError
from gmmae.training.parallel import Devices
from tests.commands import refusal, run_gmmae
from tests.interrupting import moments, tree
from tests.waiting import free_port

MADE_UP = Cluster("", "", 4, 2e-5, 1e9, 5e-4, 1e8, collective="ring")
"""The links by which all-reduces take their time in most tests."""


@pytest.fixture
def made_up(monkeypatch):
    monkeypatch.setattr(
        measure_cluster,
        "all_reduces",
        lambda devices, sizes: StepTimes(
            sizes, tuple(cost.all_reduce_s(MADE_UP, devices.count, float(size)) for size in sizes)
        ),
    )


def measure(out, *options):
    return run_gmmae("measure-cluster", "--out", out, *options)


def test_the_links_inside_and_between_nodes_are_written_as_a_plan_reads_them(made_up, tmp_path, capsys):
    out = tmp_path / "mine.toml"
    assert measure(out, "--devices-per-node", 4, "--name", "Mine") == 0
    cluster = cost.read_cluster(out)
    assert (cluster.name, cluster.device, cluster.devices_per_node) == ("Mine", "cpu", 4)
    for devices in (2, 4, 8, 32):
        assert cost.all_reduce_s(cluster, devices, 2e6) == pytest.approx(cost.all_reduce_s(MADE_UP, devices, 2e6), rel=1e-3)
    assert capsys.readouterr().out == f"{out.read_text()}\n{out}\n"
    head = [line for line in out.read_text().splitlines() if line.startswith("#")]
    assert "8 × cpu" in head[0]
    assert "4 devices, 1024 bytes: " in head[1]
    assert len(head) == 1 + 2 * 4


def test_nodes_of_one_device_have_the_link_between_nodes_only(made_up, tmp_path):
    assert measure(tmp_path / "mine.toml", "--devices-per-node", 1) == 0
    cluster = cost.read_cluster(tmp_path / "mine.toml")
    assert cost.all_reduce_s(cluster, 8, 2e6) == pytest.approx(cost.all_reduce_s(MADE_UP, 8, 2e6), rel=1e-3)


def test_the_devices_of_a_host_are_one_node_and_are_really_timed(tmp_path):
    assert measure(tmp_path / "mine.toml", "--sizes", 256, 1_048_576) == 0
    cluster = cost.read_cluster(tmp_path / "mine.toml")
    assert (cluster.name, cluster.devices_per_node) == ("8 × cpu", 8)
    assert (cluster.alpha_inter_s, cluster.beta_inter_bytes_per_s) == (None, None)
    assert 1e-6 < cost.all_reduce_s(cluster, 8, 1e6) < 10


def test_one_device_has_no_link_and_no_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(measure_cluster, "choose", lambda _: Devices(tuple(jax.devices()[:1])))
    error = refusal(capsys, "measure-cluster", "--out", tmp_path / "mine.toml")
    assert error == "error: a link needs 2 devices or more; got 1: nothing was written, use more devices or processes\n"
    assert tree(tmp_path) == {}


def test_times_that_do_not_grow_with_the_size_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(measure_cluster, "all_reduces", lambda _, sizes: StepTimes(sizes, tuple(1 / size for size in sizes)))
    error = refusal(capsys, "measure-cluster", "--out", tmp_path / "mine.toml")
    assert "all-reduces must take longer the larger they are; got 977 µs for 1024, " in error
    assert tree(tmp_path) == {}


def test_a_file_that_exists_is_kept_unless_its_replacement_is_forced(made_up, tmp_path, capsys):
    out = tmp_path / "mine.toml"
    out.write_text("precious")
    assert "--out must be a file that is new or empty; got" in refusal(capsys, "measure-cluster", "--out", out)
    assert out.read_text() == "precious"
    assert measure(out, "--force", "--name", "Another") == 0
    assert cost.read_cluster(out).name == "Another"


@pytest.mark.parametrize("name", ['8 × "fast"', "tab\tand line\nend", "\\"])
def test_any_name_is_read_back(made_up, name, tmp_path):
    assert measure(tmp_path / "mine.toml", "--name", name) == 0
    assert cost.read_cluster(tmp_path / "mine.toml").name == name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sizes", 1024), "two or more different multiples of 4, up to 1073741824; got (1024,)"),
        (("--sizes", 1024, 1023), "two or more different multiples of 4"),
        (("--sizes", 1024, -4), "two or more different multiples of 4"),
        (("--devices-per-node", 0), "--devices-per-node must be "),
        (("--name", ""), "--name must be text, not empty, or none"),
        (("--distributed.process-id", 1), "distributed.coordinator, num_processes and process_id must all be given"),
    ],
)
def test_bad_options_are_one_line_each(options, message, tmp_path, capsys):
    assert message in refusal(capsys, "measure-cluster", "--out", tmp_path / "mine.toml", *options)
    assert tree(tmp_path) == {}


def test_a_folder_that_is_missing_is_one_line(made_up, tmp_path, capsys):
    error = refusal(capsys, "measure-cluster", "--out", tmp_path / "none" / "mine.toml")
    assert "--out must be a file that can be written" in error


def test_an_interrupt_leaves_nothing_and_the_same_command_begins_again(made_up, tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(measure_cluster, "affine", interrupted)
        assert measure(tmp_path / "mine.toml") == 130
    assert "nothing was written; the same command begins again" in capsys.readouterr().err
    with moments(tmp_path, 1):
        assert measure(tmp_path / "mine.toml") == 130
    assert tree(tmp_path) == {}
    assert measure(tmp_path / "mine.toml") == 0


def test_a_plan_beyond_a_node_needs_the_link_between_nodes(made_up, tmp_path, capsys):
    """It is refused before anything is measured."""
    assert measure(tmp_path / "mine.toml", "--name", "Node") == 0
    capsys.readouterr()
    error = refusal(capsys, "plan", "--clusters", tmp_path / "mine.toml", "--workdir", tmp_path / "plan")
    assert error == (
        "error: devices must be at most the 8 of a node of Node, whose link between nodes is unknown; got 32: use fewer, or "
        "give alpha_inter_s and beta_inter_bytes_per_s in the cluster's file\n"
    )
    assert not (tmp_path / "plan").exists()
    with pytest.raises(InputError, match="link between nodes is unknown"):
        cost.all_reduce_s(cost.read_cluster(tmp_path / "mine.toml"), 9, 100.0)


def start(folder, process, port, *options):
    words = ["--out", folder / f"{process}.toml", "--sizes", 256, 2**22, "--distributed.coordinator", f"127.0.0.1:{port}"]
    words += ["--distributed.num-processes", 2, "--distributed.process-id", process, *options]
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from gmmae.cli import main; sys.exit(main.main())",
            "measure-cluster",
            *map(str, words),
        ],
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_are_timed_together_and_one_writes(tmp_path):
    """Each process is called a node, so that both kinds of links are there."""
    port = free_port()
    processes = [start(tmp_path, i, port, "--devices-per-node", 2) for i in (0, 1)]
    (out, error), silent = [process.communicate(timeout=120) for process in processes]
    assert error == ""
    assert silent == ("", "")
    assert "4 × cpu in 2 processes" in out
    assert [path.name for path in tmp_path.iterdir()] == ["0.toml"]
    cluster = cost.read_cluster(tmp_path / "0.toml")
    assert cluster.devices_per_node == 2
    assert cluster.beta_inter_bytes_per_s is not None


def test_processes_with_other_options_all_say_so(tmp_path):
    port = free_port()
    processes = [start(tmp_path, i, port, "--devices-per-node", i + 1) for i in (0, 1)]
    for process in processes:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 2
        assert "got devices_per_node 1 on process 0 and 2 on process 1" in error
    assert tree(tmp_path) == {}

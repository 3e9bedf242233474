"""`gmmae measure-cluster` as a user meets it: a file that a plan reads, or one line and no file."""

import os
import subprocess
import sys

import jax
import pytest

from gmmae.cli import measure_cluster
from gmmae.scaling import cost
from gmmae.scaling.cost import Cluster, StepTimes
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


def test_nodes_of_one_device_have_the_link_between_nodes_only_and_any_name_is_read_back(made_up, tmp_path):
    out = tmp_path / "mine.toml"
    for name in ('8 × "fast"', "tab\tand line\nend", "\\"):
        assert measure(out, "--devices-per-node", 1, "--name", name, "--force") == 0
        cluster = cost.read_cluster(out)
        assert cluster.name == name
        assert cost.all_reduce_s(cluster, 8, 2e6) == pytest.approx(cost.all_reduce_s(MADE_UP, 8, 2e6), rel=1e-3)


def test_the_devices_of_a_host_are_one_node_and_are_really_timed(tmp_path, capsys):
    out = tmp_path / "mine.toml"
    assert measure(out, "--sizes", 256, 1_048_576) == 0
    cluster = cost.read_cluster(out)
    assert (cluster.name, cluster.devices_per_node) == ("8 × cpu", 8)
    assert (cluster.alpha_inter_s, cluster.beta_inter_bytes_per_s) == (None, None)
    assert 1e-6 < cost.all_reduce_s(cluster, 8, 1e6) < 10
    # A plan beyond a node needs the link between nodes. It is refused before anything is measured.
    error = refusal(capsys, "plan", "--clusters", out, "--workdir", tmp_path / "plan")
    assert "devices must be at most the 8 of a node of 8 × cpu, whose link between nodes is unknown; got 32" in error
    assert not (tmp_path / "plan").exists()


def test_one_device_and_larger_messages_that_take_less_time_are_one_line_and_no_file(made_up, tmp_path, capsys, monkeypatch):
    call = ("measure-cluster", "--out", tmp_path / "mine.toml")
    with monkeypatch.context() as patch:
        patch.setattr(measure_cluster, "choose", lambda _: Devices(tuple(jax.devices()[:1])))
        said = refusal(capsys, *call)
    assert "a link needs 2 devices or more; got 1: nothing was written, use more devices or processes" in said
    monkeypatch.setattr(measure_cluster, "all_reduces", lambda _, sizes: StepTimes(sizes, tuple(1 / size for size in sizes)))
    assert "must take longer the larger they are; got 977 µs for 1024, " in refusal(capsys, *call)
    assert tree(tmp_path) == {}


def test_a_file_that_exists_is_kept_unless_its_replacement_is_forced_and_an_interrupt_leaves_none(made_up, tmp_path, capsys):
    out = tmp_path / "mine.toml"
    with moments(tmp_path, 1):
        assert measure(out) == 130
    assert "nothing was written; the same command begins again" in capsys.readouterr().err
    assert tree(tmp_path) == {}
    out.write_text("precious")
    assert "--out must be a file that is new or empty; got" in refusal(capsys, "measure-cluster", "--out", out)
    assert out.read_text() == "precious"
    assert measure(out, "--force", "--name", "Another") == 0
    assert cost.read_cluster(out).name == "Another"


def together(folder, *nodes):
    """Exit codes, output and error of a process for each number of devices per node, timed together."""
    words = f"measure-cluster --sizes 256 4194304 --distributed.coordinator 127.0.0.1:{free_port()}"
    words += " --distributed.num-processes 2 --distributed.process-id"
    call = [sys.executable, "-c", "import sys; from gmmae.cli import main; sys.exit(main.main())", *words.split()]
    started = [
        subprocess.Popen(
            [*call, str(i), "--out", folder / f"{i}.toml", "--devices-per-node", str(node)],
            env=os.environ | {"JAX_NUM_CPU_DEVICES": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i, node in enumerate(nodes)
    ]
    said = [process.communicate(timeout=120) for process in started]
    return [(process.returncode, *each) for process, each in zip(started, said, strict=True)]


def test_two_processes_are_timed_together_and_one_writes(tmp_path):
    """Each process is called a node, so that both kinds of links are there."""
    (code, out, error), silent = together(tmp_path, 2, 2)
    assert (code, error, silent) == (0, "", (0, "", ""))
    assert "4 × cpu in 2 processes" in out
    assert [path.name for path in tmp_path.iterdir()] == ["0.toml"]
    cluster = cost.read_cluster(tmp_path / "0.toml")
    assert cluster.devices_per_node == 2
    assert cluster.beta_inter_bytes_per_s is not None


def test_processes_with_other_options_all_say_so(tmp_path):
    for code, _, error in together(tmp_path, 1, 2):
        assert code == 2
        assert "got devices_per_node 1 on process 0 and 2 on process 1" in error
    assert tree(tmp_path) == {}

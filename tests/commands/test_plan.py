"""`gmmae plan` as a user meets it: the answer first, everything in plan.json, one line for bad input."""

import json

import pytest

from gmmae.commands import cli
from tests.workloads.test_guide import EXAMPLE


def plan(capsys, *arguments):
    code = cli.guarded(cli.COMMANDS["plan"], list(map(str, arguments)), "gmmae plan")
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--devices", "0"), "--devices must be one or more different numbers of at least 1; got (0,)"),
        (("--clusters", "nowhere"), "--clusters must be a TOML file or one of"),
        (("--budget-epochs", "-1"), "--budget-epochs must be at least 0; got -1"),
        (("--stop.target", "0"), "stop.target must be given"),
    ],
)
def test_bad_input_is_one_line(arguments, line, tmp_path, capsys):
    code, _, err = plan(capsys, "--config", "quickstart", "--workdir", tmp_path / "plan", *arguments)
    assert code == 2
    assert err.startswith(f"error: {line}")
    assert err.count("\n") == 1


def test_a_cluster_without_a_number_is_told(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text('name = "mine"\ndevice = "x"\ndevices_per_node = 1\n')
    code, _, err = plan(capsys, "--clusters", tmp_path / "mine.toml", "--workdir", tmp_path / "plan")
    assert (code, err) == (2, f"error: {tmp_path}/mine.toml: alpha_intra_s must be given; it is missing\n")


@pytest.mark.slow
def test_a_user_s_own_workload_is_planned(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(EXAMPLE)
    options = ("--stop.metric", "accuracy", "--stop.goal", "above", "--stop.target", "0.9", "--devices", "1", "2", "4")
    code, out, _ = plan(capsys, "--workload", tmp_path / "mine.py", *options, "--workdir", tmp_path / "plan")
    assert code == 0
    answer = next(line for line in out.splitlines() if line.startswith("On "))
    assert "of H200, NVLink, 400 Gb/s" in answer
    assert "80 %" in answer
    found = json.loads((tmp_path / "plan" / "plan.json").read_text())
    cells = found["clusters"]["H200, NVLink, 400 Gb/s"]["cells"]
    assert {cell["devices"] for cell in cells} == {1, 2, 4}
    assert all(cell["seconds_low"] <= cell["seconds"] <= cell["seconds_high"] for cell in cells)
    page = (tmp_path / "plan" / "index.html").read_text()
    assert answer.split(":")[0] in page
    assert "(figures/map.png)" in (tmp_path / "plan" / "README.md").read_text()

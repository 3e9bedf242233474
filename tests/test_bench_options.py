"""The command lines of the benchmarks: each bad option ends with one line, before anything is measured."""

import importlib
import re
import sys

import pytest

from benchmarks import child, options
from gmmae.config.toml import to_toml
from tests.small import small

COUNT = "must be a whole number of at least 1; got"
UNCOUNTED = "operations are counted for workload = 'nodules' only; got 'segmentation': choose "
LINES = {
    "__main__ --settings auto flush": "argument --settings: auto and none must stand alone; got auto flush",
    "__main__ --turns -1": f"argument --turns: {COUNT} '-1'",
    "breakdown --config unet_quick": UNCOUNTED,
    "cost memory --virtual -1": "argument --virtual: must be a whole number of at least 0; got '-1'",
    "device_programs --target k80": "argument --target: invalid choice: 'k80' ",
    "gpu_report --sections song": "argument --sections: invalid choice: 'song' ",
    "limits --batches 0": f"argument --batches: {COUNT} '0'",
    "sweep_overhead --only song": "argument --only: invalid choice: 'song' ",
}
"""Command lines of modules, and the beginnings of their error lines."""


@pytest.mark.parametrize("line", LINES)
def test_a_bad_option_is_one_line(line, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", line.split())
    with pytest.raises(SystemExit) as ended:
        options.guarded(importlib.import_module(f"benchmarks.{sys.argv[0]}").main)
    output = capsys.readouterr()
    assert ended.value.code == 2
    assert re.fullmatch(rf"error: {re.escape(LINES[line])}.*\n", output.err)
    assert "Traceback" not in output.out
    assert not list(tmp_path.iterdir())


def test_a_problem_that_the_references_do_not_have_is_one_line_of_its_process(tmp_path, capfd):
    (tmp_path / "wide.toml").write_text(to_toml(small(optim__clip_norm=1.0)))
    with pytest.raises(SystemExit) as ended:
        child.ask("benchmarks.peers.gmmae_backend", f'{{"name": "{tmp_path / "wide.toml"}"}}', str(tmp_path))
    assert ended.value.code == 2
    need = "the reference implementations need optim.clip_norm = none; got 1.0: choose another configuration"
    assert capfd.readouterr().err == f"error: {need}\n"

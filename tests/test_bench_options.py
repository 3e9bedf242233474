"""The command lines of the benchmarks: each bad option ends with one line, before anything is measured."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from benchmarks import options
from gmmae.config.toml import to_toml
from tests.small import small

FOLDER = Path(options.__file__).parent
COUNT = "must be a whole number of at least 1; got"
UNCOUNTED = "operations are counted for workload = 'nodules' only; got 'segmentation': choose "
UNKNOWN = "--config must be a TOML file or one of "
LINES = {
    "__main__ --epochs -1": "argument --epochs: must be a whole number of at least 0; got '-1'",
    "__main__ --settings auto flush": "argument --settings: auto and none must stand alone; got auto flush",
    "__main__ --turns -1": f"argument --turns: {COUNT} '-1'",
    "__main__ --rounds 1.5": f"argument --rounds: {COUNT} '1.5'",
    "__main__ --parts song": "argument --parts: invalid choice: 'song' ",
    "__main__ --config nothing": UNKNOWN,
    "__main__ --target-config nothing": UNKNOWN,
    f"__main__ --out {__file__}": f"argument --out: must be a folder; got '{__file__}'",
    "breakdown --config unet_quick": UNCOUNTED,
    "convolution --batches 4 0": f"argument --batches: {COUNT} '0'",
    "cost growth --config unet_quick": UNCOUNTED,
    "cost memory --virtual -1": "argument --virtual: must be a whole number of at least 0; got '-1'",
    "device_programs --devices 0": f"argument --devices: {COUNT} '0'",
    "device_programs --hosts two": f"argument --hosts: {COUNT} 'two'",
    "device_programs --target k80": "argument --target: invalid choice: 'k80' ",
    "device_programs --config nothing": UNKNOWN,
    "device_programs --data.samples -1": "data.samples must be ",
    "exactness --devices 3": "argument --devices: must be a power of two; got '3'",
    "exactness --devices 8 --shards 4": "devices must be at most the shards, 4; got 8",
    "exactness --cost --devices 16": "devices must be at most the shards, 8; got 16",
    "gpu_report --sections song": "argument --sections: invalid choice: 'song' ",
    f"gpu_report --out {FOLDER}": f"argument --out: must be a file in a folder; got '{FOLDER}'",
    f"gpu_report --out {__file__}/a/b.md": f"argument --out: must be a file in a folder; got '{__file__}/a/b.md'",
    "kernel --mixtures 0": f"argument --mixtures: {COUNT} '0'",
    "limits --batches 0": f"argument --batches: {COUNT} '0'",
    "limits --config unet_quick": UNCOUNTED,
    "many_processes --processes 0": f"argument --processes: {COUNT} '0'",
    "many_processes --processes --state nothing": UNKNOWN,
    "sweep_overhead --only song": "argument --only: invalid choice: 'song' ",
    "sweep_overhead --turns 0": f"argument --turns: {COUNT} '0'",
    f"sweep_overhead --out {FOLDER}": f"argument --out: must be a file in a folder; got '{FOLDER}'",
    "strong_scaling --epochs 1": "argument --epochs: must be a whole number of at least 2; got '1'",
    "strong_scaling --config nothing": UNKNOWN,
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


def test_every_benchmark_reads_its_numbers_by_a_rule_and_says_errors_in_a_line():
    for path in FOLDER.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert path.name == "options.py" or not re.search(r"type=(int|float|Path)\b|argparse\.ArgumentParser", text), path
        assert "Parser(" not in text or path.name == "options.py" or "    guarded(main)\n" in text, path


@pytest.mark.parametrize("content", ["{", "[1]", "\x00"])
def test_results_of_something_else_are_not_overwritten(tmp_path, content):
    module = importlib.import_module("benchmarks.__main__")
    path = tmp_path / "machine.json"
    assert module.sections(path) == {}
    path.write_text(content, encoding="utf-8")
    with pytest.raises(module.InputError, match=r"machine\.json must hold what an earlier .* wrote; got something else: "):
        module.sections(path)


def test_a_problem_that_the_references_do_not_have_is_one_line_of_its_process(tmp_path, capfd):
    (tmp_path / "wide.toml").write_text(to_toml(small(optim__clip_norm=1.0)), encoding="utf-8")
    module = importlib.import_module("benchmarks.child")
    with pytest.raises(SystemExit) as ended:
        module.ask("benchmarks.peers.gmmae_backend", f'{{"name": "{tmp_path / "wide.toml"}"}}', str(tmp_path))
    assert ended.value.code == 2
    need = "the reference implementations need optim.clip_norm = none; got 1.0: choose another configuration"
    assert capfd.readouterr().err == f"error: {need}\n"

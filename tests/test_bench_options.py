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
LINES = {
    ("__main__", "--epochs", "0"): f"argument --epochs: {COUNT} '0'",
    ("__main__", "--rounds", "1.5"): f"argument --rounds: {COUNT} '1.5'",
    ("__main__", "--parts", "song"): "argument --parts: invalid choice: 'song' ",
    ("__main__", "--config", "nothing"): "--config must be a TOML file or one of ",
    ("__main__", "--out", __file__): f"argument --out: must be a folder; got '{__file__}'",
    ("axis_aligned", "--samples", "0"): f"argument --samples: {COUNT} '0'",
    ("breakdown", "--config", "unet_quick"): "operations are counted for workload = 'nodules' only; got 'segmentation': ",
    ("convolution", "--batches", "4", "0"): f"argument --batches: {COUNT} '0'",
    ("cost", "growth", "--config", "unet_quick"): "operations are counted for workload = 'nodules' only; got 'segmentation': ",
    ("cost", "memory", "--virtual", "-1"): "argument --virtual: must be a whole number of at least 0; got '-1'",
    ("device_programs", "--hosts", "two"): f"argument --hosts: {COUNT} 'two'",
    ("device_programs", "--target", "k80"): "argument --target: invalid choice: 'k80' ",
    ("device_programs", "--data.samples", "-1"): "data.samples must be ",
    ("exactness", "--devices", "3"): "argument --devices: must be a power of two; got '3'",
    ("exactness", "--cost", "--devices", "16"): "devices, groups and shards together must be at most the shards, 8; got 16",
    ("gpu_report", "--sections", "song"): "argument --sections: invalid choice: 'song' ",
    ("gpu_report", "--out", str(FOLDER)): f"argument --out: must be a file in a folder; got '{FOLDER}'",
    ("kernel", "--mixtures", "0"): f"argument --mixtures: {COUNT} '0'",
    ("limits", "--config", "unet_quick"): "operations are counted for workload = 'nodules' only; got 'segmentation': choose ",
    ("many_processes", "--processes", "0"): f"argument --processes: {COUNT} '0'",
    ("many_processes", "--processes", "--state", "nothing"): "--config must be a TOML file or one of ",
    ("prepare", "--scans", "0"): f"argument --scans: {COUNT} '0'",
    ("seeds", "--config", "nothing"): "--config must be a TOML file or one of ",
    ("strong_scaling", "--epochs", "1"): "argument --epochs: must be a whole number of at least 2; got '1'",
}


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_a_bad_option_is_one_line(words, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(words))
    with pytest.raises(SystemExit) as ended:
        options.guarded(importlib.import_module(f"benchmarks.{words[0]}").main)
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert re.fullmatch(rf"error: {re.escape(LINES[words])}.*\n", printed.err)
    assert "Traceback" not in printed.out
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
    error = capfd.readouterr().err
    assert "optim.clip_norm = none; got 1.0" in error
    assert error.count("\n") == 1

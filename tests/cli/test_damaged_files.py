"""Damaged files of earlier commands give one line that names the file."""

import json
from dataclasses import replace

import pytest

from gmmae.config.toml import to_toml
from gmmae.sweep.grid import RunKey
from tests import sweeps
from tests.commands import refusal
from tests.small import small

DEEP = "[" * 100_000
DAMAGED = {"no text": "", "a list": "[]", "a number": "3", "null": "null", "an empty object": "{}", "deep": DEEP}


@pytest.fixture
def run(tmp_path):
    """Makes the part of a run that is read before its checkpoint."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(to_toml(small()))
    return folder


@pytest.fixture
def sweep(tmp_path):
    """Makes a sweep of one run."""
    config = replace(sweeps.GRID, scaling=("strong",), devices=(1,), seeds=(0,))
    sweeps.reach(config, tmp_path, RunKey("strong", 1, 0), 10)
    sweeps.add_step_times(tmp_path, 1, sweeps.STEPS, sweeps.PASSES)
    (tmp_path / "sweep.toml").write_text(to_toml(config), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_the_record_of_a_run(run, tmp_path, capsys, text):
    (run / "record.json").write_text(text)
    assert "record.json must be a record of this program" in refusal(capsys, "export", run, "--out", tmp_path / "model.zip")


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
@pytest.mark.parametrize("name", ["runs/strong-n1-seed0/record.json", "step_times/step-times-n1.json", "plan.json"])
def test_a_file_of_a_sweep(sweep, capsys, name, text):
    (sweep / name).write_text(text)
    assert f"{sweep / name} must be " in refusal(capsys, "report", sweep)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"epochs": "ten"}, "epochs = 'ten'"),
        ({"clocks": None}, "clocks = None"),
        ({"clocks": {"train_s": float("nan"), "eval_s": 1.0}}, "clocks = {'train_s': nan, 'eval_s': 1.0}"),
    ],
    ids=str,
)
def test_a_value_of_a_runs_record(sweep, capsys, change, what):
    path = sweep / "runs" / "strong-n1-seed0" / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert f"{path} must be a record of this program; got {what}" in refusal(capsys, "report", sweep)


def test_places_that_are_none_are_one_line(run, tmp_path, capsys):
    (tmp_path / "data").symlink_to(tmp_path / "data")
    (tmp_path / "nodules.py").symlink_to(tmp_path / "nodules.py")
    for words, message in {
        ("evaluate", run, "--data.source", "cubes", "--data.root", tmp_path / "data"): "got ",
        ("judge", tmp_path / "data", tmp_path / "other", "--out", tmp_path / "out"): "data",
        ("train", "--workload", tmp_path / "nodules.py"): "workload file not found",
        ("evaluate", tmp_path / "a\nb"): r"a\nb, which has no config.toml",
        ("sweep", "--seeds", 2**32, "--dry-run"): "different numbers of 0 to 4294967295; got (4294967296,)",
    }.items():
        assert message in refusal(capsys, *words)
    (run / "config.toml").write_text(to_toml(small()).replace('root = "none"', 'root = "a\\u0000b"'))
    assert "config.toml: data.root must be text" in refusal(capsys, "evaluate", run)

"""The example of docs/workload.md, as printed, with everything that a workload gets."""

import csv
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from gmmae.cli.arguments import parse_train
from gmmae.config.schema import changed
from gmmae.training.loop import run
from gmmae.training.records import from_json, read_history
from tests.small import Recorder, fingerprint, losses

ROOT = Path(__file__).parent.parent.parent
EXAMPLE, SOURCE, CUBE_ROOT = (
    dedent(block.partition("```")[0])
    for block in (ROOT / "docs" / "workload.md").read_text(encoding="utf-8").split("```python\n")[1:]
)
SWEEP = """
scaling = ["strong", "cube-root"]
devices = [1, 2]

[run]
workload = "{}"
images = 320

[run.optim]
learning_rate = 0.003

[run.stop]
monitor = "accuracy"
mode = "max"
target = 0.9
max_epochs = 12

[timing]
steps = 2
blocks = 2
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    path = tmp_path_factory.mktemp("workload") / "mine.py"
    path.write_text(EXAMPLE)
    return path


@pytest.fixture
def config(mine):
    arguments = ["--workload", str(mine), "--images", "96", "--stop.max-epochs", "3", "--log.no-tensorboard"]
    return parse_train([*arguments, "--parallel.devices", "1"], "train.py")[0]


def finish(config, root):
    display = Recorder()
    return run(config, root, display), display.rows


def test_a_target_of_its_metric_from_above(config, tmp_path):
    aimed = changed(config, images=640, stop__monitor="accuracy", stop__mode="max", stop__target=0.9, stop__max_epochs=40)
    record, rows = finish(aimed, tmp_path)
    assert record.stop_reason == "target_reached"
    assert rows[-1].metrics["accuracy"] >= 0.9 > max(row.metrics["accuracy"] for row in rows[:-1])
    assert (record.best_epoch, record.best_value) == (len(rows), rows[-1].metrics["accuracy"])
    assert from_json((tmp_path / "record.json").read_text()) == record
    with (tmp_path / "history.csv").open() as file:
        assert [float(row["val_accuracy"]) for row in csv.DictReader(file)] == [row.metrics["accuracy"] for row in rows]


def test_the_source_of_memory_mapped_files_learns_its_line(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(300, 4, 4)).astype(np.float32)
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "values.npy", images.sum((1, 2)) + 0.5)
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    files = [word for name in ("images", "values") for word in (f"--{name}", str(tmp_path / f"{name}.npy"))]
    words = [
        "--workload",
        str(path),
        *files,
        "--optim.learning-rate",
        "0.05",
        "--stop.target",
        "0.01",
        "--stop.max-epochs",
        "40",
    ]
    record, rows = finish(
        parse_train([*words, "--log.no-tensorboard", "--parallel.devices", "1"], "train.py")[0], tmp_path / "run"
    )
    assert record.stop_reason == "target_reached"
    assert (record.train_samples, record.validation_samples) == (270, 30)
    assert rows[0].val_loss > 1


@pytest.mark.slow
@pytest.mark.parametrize("scaling", ["strong", "weak"])
def test_the_same_bits_on_1_2_and_8_devices(config, tmp_path, scaling):
    exact = changed(
        config, scaling=scaling, parallel__simulate_devices=2, parallel__deterministic=True, parallel__deterministic_shards=8
    )
    fingerprints = set()
    for n in (1, 2, 8):
        finish(changed(exact, parallel__devices=n), tmp_path / str(n))
        fingerprints.add(fingerprint(exact, tmp_path / str(n)))
    assert len(fingerprints) == 1


@pytest.mark.slow
def test_stopped_and_resumed_is_the_run_that_nobody_stopped(config, tmp_path):
    finish(changed(config, stop__max_epochs=2), tmp_path / "in two")
    _, rest = finish(config, tmp_path / "in two")
    assert [row.epoch for row in rest] == [3]
    _, rows = finish(config, tmp_path / "whole")
    assert losses(read_history(tmp_path / "in two" / "history.csv")) == losses(rows)


@pytest.mark.slow
def test_a_sweep_with_its_report_and_an_arm_of_the_files_own(mine, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(EXAMPLE + CUBE_ROOT)
    config = tmp_path / "images.toml"
    config.write_text(SWEEP.format(own))
    command = [sys.executable, str(ROOT / "sweep.py"), "--config", str(config), "--workdir", str(tmp_path / "sweep")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = (tmp_path / "sweep" / "report" / "report.md").read_text()
    assert "Cube-root rule" in report
    assert "Time to the target validation accuracy" in report
    with (tmp_path / "sweep" / "report" / "runs.csv").open() as file:
        runs = list(csv.DictReader(file))
    assert [(run["scaling"], run["devices"], run["outcome"]) for run in runs] == [
        (scaling, n, "target_reached") for n in ("1", "2") for scaling in ("strong", "cube-root")
    ]
    assert all(float(run["best_accuracy"]) >= 0.9 for run in runs)
    assert runs[3]["learning_rate"].startswith("0.00377")  # 2^(1/3) · 0.003

"""The example of docs/workload.md, as printed, with everything that a workload gets."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from gmmae.cli.arguments import parse_train
from gmmae.config.schema import changed
from gmmae.training.loop import run
from tests.commands import rows as csv_rows
from tests.small import Recorder

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


@pytest.fixture
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("workload") / "mine.py"
    path.write_text(EXAMPLE)
    arguments = ["--workload", str(path), "--images", "96", "--stop.max-epochs", "3", "--log.no-tensorboard"]
    return parse_train([*arguments, "--parallel.devices", "1"], "train.py")[0]


def finish(config, root):
    display = Recorder()
    return run(config, root, display), display.rows


def test_a_target_of_its_metric_from_above(config, tmp_path):
    aimed = changed(config, images=640, stop__monitor="accuracy", stop__mode="max", stop__target=0.9, stop__max_epochs=40)
    record, rows = finish(aimed, tmp_path)
    found = [row.metrics["accuracy"] for row in rows]
    assert record.stop_reason == "target_reached"
    assert (record.best_epoch, record.best_value) == (len(rows), found[-1])
    assert found[-1] >= 0.9 > max(found[:-1])
    assert [float(row["val_accuracy"]) for row in csv_rows(tmp_path / "history.csv")] == found


def test_the_source_of_memory_mapped_files_learns_its_line(tmp_path):
    images = np.random.default_rng(0).normal(size=(300, 4, 4)).astype(np.float32)
    path, files = tmp_path / "mine.py", {"images": images, "values": images.sum((1, 2)) + 0.5}
    path.write_text(SOURCE)
    words = f"--workload {path} --optim.learning-rate 0.05 --stop.target 0.01 --stop.max-epochs 40 --log.no-tensorboard"
    for name, array in files.items():
        np.save(tmp_path / f"{name}.npy", array)
        words += f" --{name} {tmp_path / name}.npy"
    config = parse_train([*words.split(), "--parallel.devices", "1"], "train.py")[0]
    record, rows = finish(config, tmp_path / "run")
    assert (record.stop_reason, record.train_samples, record.validation_samples) == ("target_reached", 270, 30)
    assert rows[0].val_loss > 1


@pytest.mark.slow
def test_a_sweep_with_its_report_and_an_arm_of_the_files_own(tmp_path):
    own, config = tmp_path / "own.py", tmp_path / "images.toml"
    own.write_text(EXAMPLE + CUBE_ROOT)
    config.write_text(SWEEP.format(own))
    command = [sys.executable, str(ROOT / "sweep.py"), "--config", str(config), "--workdir", str(tmp_path / "sweep")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = tmp_path / "sweep" / "report"
    text = (report / "report.md").read_text()
    assert "Cube-root rule" in text
    assert "Time to the target validation accuracy" in text
    runs = csv_rows(report / "runs.csv")
    assert [(run["scaling"], run["devices"], run["outcome"]) for run in runs] == [
        (scaling, n, "target_reached") for n in ("1", "2") for scaling in ("strong", "cube-root")
    ]
    assert all(float(run["best_accuracy"]) >= 0.9 for run in runs)
    assert runs[3]["learning_rate"].startswith("0.00377")  # 2^(1/3) · 0.003

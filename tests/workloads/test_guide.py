"""The example of docs/workload.md, as printed, with everything that a workload gets."""

from textwrap import dedent

import numpy as np
import pytest

from gmmae.cli.arguments import parse_train
from tests.commands import rows as csv_rows
from tests.launched import ROOT, python
from tests.small import finish

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


def trained(tmp_path, text, words):
    """Trains the workload of a text with more options; returns the record and the rows."""
    (tmp_path / "mine.py").write_text(text)
    words = f"--workload {tmp_path}/mine.py --stop.max-epochs 40 --log.no-tensorboard --parallel.devices 1 {words}"
    record, display = finish(parse_train(words.split(), "train.py")[0], tmp_path / "run")
    return record, display.rows


def test_a_target_of_its_metric_from_above(tmp_path):
    record, rows = trained(tmp_path, EXAMPLE, "--images 640 --stop.monitor accuracy --stop.mode max --stop.target 0.9")
    found = [row.metrics["accuracy"] for row in rows]
    assert record.stop_reason == "target_reached"
    assert (record.best_epoch, record.best_value) == (len(rows), found[-1])
    assert found[-1] >= 0.9 > max(found[:-1])
    assert [float(row["val_accuracy"]) for row in csv_rows(tmp_path / "run" / "history.csv")] == found


def test_the_source_of_memory_mapped_files_learns_its_line(tmp_path):
    images = np.random.default_rng(0).normal(size=(300, 4, 4)).astype(np.float32)
    words = "--optim.learning-rate 0.05 --stop.target 0.01"
    for name, array in {"images": images, "values": images.sum((1, 2)) + 0.5}.items():
        np.save(tmp_path / f"{name}.npy", array)
        words += f" --{name} {tmp_path / name}.npy"
    record, rows = trained(tmp_path, SOURCE, words)
    assert (record.stop_reason, record.train_samples, record.validation_samples) == ("target_reached", 270, 30)
    assert rows[0].val_loss > 1


@pytest.mark.slow
def test_a_sweep_with_its_report_and_a_strategy_of_the_files_own(tmp_path):
    own, config = tmp_path / "own.py", tmp_path / "images.toml"
    own.write_text(EXAMPLE + CUBE_ROOT)
    config.write_text(SWEEP.format(own))
    done = python(ROOT / "sweep.py", "--config", config, "--workdir", tmp_path / "sweep", cwd=tmp_path)
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

"""The table of when arms are as good as one device."""

import pytest

from gmmae.base.records import Epoch, write_history
from studies import scaling


def history(path, values):
    rows = [Epoch(i + 1, 10 * (i + 1), 0, 0.1, 1.0, 1.0, 0, 0, 0, 0, 0, metrics={"dice": v}) for i, v in enumerate(values)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_history(path, rows, ["dice"])


def test_the_first_epoch_that_is_as_good_as_one_device_counts(tmp_path):
    history(tmp_path / "runs/strong-n1-seed0/history.csv", [0.5, 0.79, 0.8])
    history(tmp_path / "runs/weak-n8-seed0/history.csv", [0.1, 0.2, 0.785])
    history(tmp_path / "runs/linear-warmup-n8-seed0/history.csv", [0.1, 0.2])
    scaling.main(["--runs", str(tmp_path), "--out", str(tmp_path / "out")])
    head, *rows = (tmp_path / "out/reached.csv").read_text().splitlines()
    assert head == "arm,devices,seed,epochs,target,epoch,steps,best_dice,last_dice"
    assert rows == [
        "linear-warmup,8,0,2,0.784,,,0.2,0.2",
        "strong,1,0,3,0.784,2,20,0.8,0.8",
        "weak,8,0,3,0.784,3,30,0.785,0.785",
    ]
    assert (tmp_path / "out/losses_weak.png").stat().st_size > 10_000


def test_a_folder_without_runs_is_one_line(tmp_path):
    with pytest.raises(SystemExit, match="--runs must hold"):
        scaling.main(["--runs", str(tmp_path), "--out", str(tmp_path)])

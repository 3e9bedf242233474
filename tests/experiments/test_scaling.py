"""The table of the epochs at which strategies reach 98 % of the one-device Dice."""

import pytest

from experiments import scaling
from gmmae.training.records import Epoch, write_history


def history(path, values, losses=None):
    pairs = enumerate(zip(values, losses or [1.0] * len(values), strict=True))
    rows = [Epoch(i + 1, 10 * (i + 1), 0, 0.1, 1.0, loss, 0, 0, 0, 0, 0, metrics={"dice": v}) for i, (v, loss) in pairs]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_history(path, rows, ["dice"])


def test_the_first_epoch_that_is_as_good_as_one_device_counts(tmp_path):
    history(tmp_path / "runs/strong-n1-seed0/history.csv", [0.5, 0.79, 0.8])
    history(tmp_path / "runs/weak-n8-seed0/history.csv", [0.1, 0.2, 0.785])
    history(tmp_path / "runs/linear-warmup-n8-seed0/history.csv", [0.1, 0.2])
    scaling.main(["--runs", str(tmp_path), "--out", str(tmp_path / "out")])
    head, *rows = (tmp_path / "out/reached.csv").read_text().splitlines()
    assert head == "scaling,devices,seed,epochs,target,epoch,steps,best_dice,last_dice"
    assert rows == [
        "linear-warmup,8,0,2,0.784,,,0.2,0.2",
        "strong,1,0,3,0.784,2,20,0.8,0.8",
        "weak,8,0,3,0.784,3,30,0.785,0.785",
    ]
    assert (tmp_path / "out/losses_weak.png").stat().st_size > 10_000


def test_of_several_seeds_medians_are_drawn(tmp_path, monkeypatch):
    for seed, ends in enumerate(([0.5, 0.2], [0.6, 0.3], [0.9, 0.7, 0.1])):
        for run in (f"strong-n1-seed{seed}", f"weak-n8-seed{seed}"):
            history(tmp_path / f"runs/{run}/history.csv", [0.5] * len(ends), ends)
    drawn = []
    monkeypatch.setattr(scaling, "losses_by_devices", lambda courses, **_: drawn.extend(courses))
    monkeypatch.setattr(scaling.canvas, "save", lambda figure, path: path)
    scaling.figure(scaling.histories(tmp_path), "weak", tmp_path / "losses.png")
    assert [course.label for course in drawn] == ["n = 1", "n = 8"]
    assert drawn[1].time_s.tolist() == [1, 2]
    assert drawn[1].val_loss.tolist() == [0.6, 0.3]


def test_a_folder_without_runs_is_one_line(tmp_path):
    with pytest.raises(SystemExit, match="--runs must hold"):
        scaling.main(["--runs", str(tmp_path), "--out", str(tmp_path)])

"""Validations inside epochs: their rows, and the target that one of them reaches. Their bits are in test_same_bits.py."""

import itertools
import json

import pytest

from gmmae.config.toml import to_toml
from gmmae.sweep.grid import SweepConfig, TimingConfig
from gmmae.training.records import epoch_ends, read_history
from tests.commands import rows, run_gmmae
from tests.small import finish, small
from tests.training.test_same_bits import INSIDE, SWINGS


def swings(**changes):
    return small(**INSIDE | changes)


@pytest.fixture
def validated(whole):
    """A run with a validation after each step."""
    return whole(**INSIDE)


@pytest.fixture
def inside(validated):
    """The lowest loss, which no epoch ends with, and a target between it and the validation before it."""
    history = read_history(validated.workdir / "history.csv")
    place = min(range(len(history)), key=lambda i: history[i].value("loss"))
    before, lowest = (row.value("loss") for row in history[place - 1 : place + 1])
    assert lowest < min(row.val_loss for row in validated.display.rows)
    assert history[place].epoch > 1
    return history[place], lowest + (before - lowest) / 4


def test_the_history_has_a_row_for_each_validation(validated):
    history = read_history(validated.workdir / "history.csv")
    samples = [22 * epoch + share for epoch in range(4) for share in (8, 16, 22)]
    assert [(row.steps, row.epoch, row.samples) for row in history] == [
        (step, 1 + (step - 1) // 3, samples[step - 1]) for step in range(1, 13)
    ]
    assert epoch_ends(history) == history[2::3] == validated.display.rows
    assert len({row.val_loss for row in history}) == 12
    assert all(before.total_s < after.total_s for before, after in itertools.pairwise(history))


def test_a_target_inside_an_epoch_stops_the_run_at_its_end(tmp_path, inside, capsys):
    lowest, target = inside
    (tmp_path / "run.toml").write_text(to_toml(swings(stop__max_epochs=9)))
    words = ["--config", tmp_path / "run.toml", "--workdir", tmp_path / "run", "--stop.target", repr(target)]
    assert run_gmmae("train", *words) == 0
    assert f"validation loss ≤ {target:g}, also seen after every step, or 9 epochs" in capsys.readouterr().out
    kept = (tmp_path / "run" / "record.json").read_text()
    record = json.loads(kept)
    assert (record["stop_reason"], record["epochs"], record["target_epoch"]) == ("target_reached", lowest.epoch, lowest.epoch)
    assert record["target_step"] == pytest.approx(lowest.steps - 0.25)
    assert record["final_val_loss"] > target
    last = read_history(tmp_path / "run" / "history.csv")[-1]
    assert record["time_to_target_s"] == last.train_s + last.eval_s
    assert run_gmmae("train", *words, "--stop.validate-every-steps", "none") == 0
    assert f"holds a finished run: target_reached after {lowest.epoch} epochs" in capsys.readouterr().out
    assert (tmp_path / "run" / "record.json").read_text() == kept


@pytest.mark.slow
def test_a_target_that_is_given_later_is_found_inside_an_earlier_epoch(tmp_path, inside):
    lowest, _ = inside
    finish(swings(stop__max_epochs=lowest.epoch + 1), tmp_path)
    record, display = finish(swings(stop__target=lowest.value("loss"), stop__max_epochs=9), tmp_path)
    assert (record.stop_reason, record.target_epoch, record.target_step) == ("target_reached", lowest.epoch, lowest.steps)
    assert display.lines == [
        f"validation loss {lowest.value('loss'):g} reached inside epoch {lowest.epoch} of {lowest.epoch + 1} earlier ones"
    ]


@pytest.mark.slow
def test_a_sweep_passes_the_option_on_and_its_table_has_the_step(tmp_path, inside):
    lowest, target = inside
    run = small(**SWINGS, stop__target=target, parallel__devices="all")
    grid = {"scaling": ("strong", "weak"), "devices": (1, 2), "timing": TimingConfig(warmup_steps=1, steps=1, blocks=2)}
    (tmp_path / "sweep.toml").write_text(to_toml(SweepConfig(**grid, run=run)))
    words = ["--config", tmp_path / "sweep.toml", "--workdir", tmp_path / "sweep", "--run.stop.validate-every-steps", "1"]
    assert run_gmmae("sweep", *words) == 0
    runs = {(row["scaling"], row["devices"]): row for row in rows(tmp_path / "sweep" / "report" / "runs.csv")}
    assert float(runs["strong", "1"]["target_step"]) == pytest.approx(lowest.steps - 0.25, abs=0.05)
    assert (runs["weak", "2"]["outcome"], runs["weak", "2"]["target_step"]) == ("max_epochs", "")

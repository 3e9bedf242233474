"""Validations inside epochs: the bits of training, their rows, the target, and what a resumption keeps."""

import csv
import itertools
import json
import math

import pytest

from gmmae.config.schema import StopConfig
from gmmae.config.toml import to_toml
from gmmae.sweep.grid import SweepConfig, TimingConfig
from gmmae.training import compilation, loop
from gmmae.training.records import Epoch, epoch_ends, read_history
from gmmae.training.stopping import StopMonitor, crossing
from tests.commands import refusal, run_gmmae
from tests.small import Recorder, fail, fingerprint, finish, interrupt, losses, small

# 22 training samples: an epoch has 3 steps of 8. The loss swings at this learning rate.
SWINGS = {"optim__learning_rate": 0.02, "stop__max_epochs": 4}
EVERY_STEP = {**SWINGS, "stop__validate_every_steps": 1}
EXACT = {"parallel__deterministic": True, "parallel__deterministic_shards": 8}


def swings(**changes):
    return small(**EVERY_STEP | changes)


def table(workdir):
    """What does not depend on the clock."""
    return [
        tuple(value for key, value in row._asdict().items() if key[-2:] != "_s")
        for row in read_history(workdir / "history.csv")
    ]


def places(workdir):
    return [(steps, epoch) for epoch, steps, *_ in table(workdir)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run without validations inside its epochs."""
    workdir = tmp_path_factory.mktemp("plain")
    return workdir, *finish(small(**SWINGS), workdir)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same run with a validation after each step."""
    workdir = tmp_path_factory.mktemp("whole")
    return workdir, *finish(swings(), workdir)


@pytest.fixture(scope="module")
def inside(whole):
    """The lowest loss, which no epoch ends with, and the validation before it."""
    rows = read_history(whole[0] / "history.csv")
    place = min(range(len(rows)), key=lambda i: rows[i].value("loss"))
    before, lowest = rows[place - 1], rows[place]
    assert lowest.value("loss") < min(row.val_loss for row in whole[2].rows)
    assert lowest.epoch > 1
    return before, lowest


def test_no_bit_of_training_or_of_the_history_changes(plain, whole):
    assert losses(whole[2].rows) == losses(plain[2].rows)
    assert fingerprint(swings(), whole[0]) == fingerprint(swings(), plain[0])
    assert whole[1].run_id == plain[1].run_id
    ends = [row for row in table(whole[0]) if row[4] is not None]
    assert ends == table(plain[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"parallel__devices": 2, "data__augment": True},
        {"optim__batch_size": 11},
        {"optim__batch_size": 2, "stop__max_epochs": 2, "optim__name": "lamb"},
        {"precision": "float64"},
        {**EXACT, "parallel__devices": 1},
        {**EXACT, "parallel__devices": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("steps", [1, 2])
def test_no_bit_changes_on_several_devices_or_with_the_exact_reduction(tmp_path, steps, changes):
    prints = set()
    for name, every in (("plain", None), ("inside", steps)):
        config = small(**SWINGS | {"stop__max_epochs": 3} | changes, stop__validate_every_steps=every)
        finish(config, tmp_path / name)
        prints.add(fingerprint(config, tmp_path / name))
    assert len(prints) == 1


def test_the_history_has_a_row_for_each_validation(whole):
    rows = read_history(whole[0] / "history.csv")
    samples = [22 * epoch + share for epoch in range(4) for share in (8, 16, 22)]
    assert [(row.steps, row.epoch, row.samples) for row in rows] == [
        (step, 1 + (step - 1) // 3, samples[step - 1]) for step in range(1, 13)
    ]
    assert epoch_ends(rows) == rows[2::3] == whole[2].rows
    assert len({row.val_loss for row in rows}) == 12
    assert all(before.total_s < after.total_s for before, after in itertools.pairwise(rows))


@pytest.mark.parametrize(("steps", "expected"), [(2, [2, 3, 5, 6]), (3, [3, 6]), (50, [3, 6])])
def test_the_last_part_of_an_epoch_may_be_shorter(tmp_path, whole, steps, expected):
    finish(swings(stop__validate_every_steps=steps, stop__max_epochs=2), tmp_path)
    assert [step for step, _ in places(tmp_path)] == expected
    assert table(tmp_path) == [row for row in table(whole[0]) if row[1] in expected]


def test_a_target_inside_an_epoch_stops_the_run_at_its_end(tmp_path, inside, capsys):
    before, lowest = inside
    (tmp_path / "run.toml").write_text(to_toml(swings(stop__max_epochs=9)))
    target = lowest.value("loss") + (before.value("loss") - lowest.value("loss")) / 4
    words = ["--config", tmp_path / "run.toml", "--workdir", tmp_path / "run", "--stop.target", repr(target)]
    assert run_gmmae("train", *words) == 0
    printed = capsys.readouterr().out
    assert f"validation loss ≤ {target:g}, also seen after every step, or 9 epochs" in printed
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert (record["stop_reason"], record["epochs"], record["target_epoch"]) == ("target_reached", lowest.epoch, lowest.epoch)
    assert record["target_step"] == pytest.approx(lowest.steps - 0.25)
    assert record["final_val_loss"] > target
    last = read_history(tmp_path / "run" / "history.csv")[-1]
    assert record["time_to_target_s"] == last.train_s + last.eval_s
    kept = (tmp_path / "run" / "record.json").read_bytes()
    assert run_gmmae("train", *words, "--stop.validate-every-steps", "none") == 0
    assert f"holds a finished run: target_reached after {lowest.epoch} epochs" in capsys.readouterr().out
    assert (tmp_path / "run" / "record.json").read_bytes() == kept


def test_a_target_at_the_end_of_an_epoch_has_its_step_without_the_option(tmp_path, plain):
    rows = plain[2].rows
    record, _ = finish(small(**SWINGS, stop__target=(rows[0].val_loss + rows[1].val_loss) / 2), tmp_path)
    assert (record.target_epoch, record.target_step) == (2, pytest.approx(4.5))


@pytest.mark.parametrize("end", ["interrupted", pytest.param("killed", marks=pytest.mark.slow)])
def test_a_resumed_run_has_the_validations_of_one_without_an_interruption(tmp_path, whole, end):
    """A killed run goes on from epoch 2, and the history has rows of epoch 3 that no checkpoint has."""
    if end == "interrupted":
        loop.run(swings(), tmp_path, Recorder(1, interrupt))
    else:
        with pytest.raises(MemoryError):
            loop.run(swings(), tmp_path, Recorder(3, fail))
        assert places(tmp_path)[-1] == (9, 3)
        with (tmp_path / "history.csv").open("a") as file:
            file.write("4,10,74,0.02,,0.0")
    finish(swings(), tmp_path)
    assert table(tmp_path) == table(whole[0])
    assert fingerprint(swings(), tmp_path) == fingerprint(swings(), whole[0])


def test_a_run_may_go_on_with_another_number_of_steps_or_none(tmp_path, plain):
    finish(small(**SWINGS | {"stop__max_epochs": 1}), tmp_path)
    for every, epochs in ((2, 2), (1, 3), (None, 4)):
        finish(swings(stop__validate_every_steps=every, stop__max_epochs=epochs), tmp_path)
    assert [step for step, _ in places(tmp_path)] == [3, 5, 6, 7, 8, 9, 12]
    assert fingerprint(swings(), tmp_path) == fingerprint(swings(), plain[0])


@pytest.mark.slow
def test_a_target_that_is_given_later_is_found_inside_an_earlier_epoch(tmp_path, inside):
    _, lowest = inside
    finish(swings(stop__max_epochs=lowest.epoch + 1), tmp_path)
    record, display = finish(swings(stop__target=lowest.value("loss"), stop__max_epochs=9), tmp_path)
    assert (record.stop_reason, record.target_epoch, record.target_step) == ("target_reached", lowest.epoch, lowest.steps)
    assert display.lines == [
        f"validation loss {lowest.value('loss'):g} reached inside epoch {lowest.epoch} of {lowest.epoch + 1} earlier ones"
    ]


@pytest.mark.slow
def test_a_batch_that_grows_is_validated_inside_the_epochs_of_each_batch(tmp_path):
    """Batches of 8, 16 and 22 have 3, 2 and 1 steps an epoch."""
    growing = {"scaling": "growing", "optim__batch_doubling_epochs": (1, 2), "parallel__simulate_devices": 8}
    prints = set()
    for name, every in (("plain", None), ("inside", 1)):
        config = small(**growing, stop__max_epochs=3, stop__validate_every_steps=every)
        finish(config, tmp_path / name)
        prints.add(fingerprint(config, tmp_path / name))
    assert places(tmp_path / "inside") == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3)]
    assert len(prints) == 1


def test_only_one_program_for_training_is_compiled(tmp_path, monkeypatch):
    compiled, of_devices = [], compilation.Devices.compile
    monkeypatch.setattr(
        compilation.Devices, "compile", lambda *of, **options: compiled.append(of[1]) or of_devices(*of, **options)
    )
    finish(swings(stop__validate_every_steps=2, stop__max_epochs=2), tmp_path)
    assert len(compiled) == 2, "one program for training and one for validation"


def test_tensorboard_has_each_validation_once_also_after_a_kill(tmp_path, whole):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(MemoryError):
        loop.run(swings(log__tensorboard=True), tmp_path, Recorder(3, fail))
    finish(swings(log__tensorboard=True), tmp_path)
    events = EventAccumulator(str(tmp_path / "tb")).Reload().Scalars("steps/loss")
    rows = read_history(whole[0] / "history.csv")
    assert [event.step for event in events] == [row.steps for row in rows]
    assert [event.value for event in events] == pytest.approx([row.value("loss") for row in rows])


@pytest.mark.slow
def test_a_sweep_passes_the_option_on_and_its_table_has_the_step(tmp_path, inside):
    before, lowest = inside
    target = lowest.value("loss") + (before.value("loss") - lowest.value("loss")) / 4
    run = small(**SWINGS, stop__target=target, parallel__devices="all")
    grid = {"scaling": ("strong", "weak"), "devices": (1, 2), "timing": TimingConfig(warmup_steps=1, steps=1, blocks=2)}
    (tmp_path / "sweep.toml").write_text(to_toml(SweepConfig(**grid, run=run)))
    words = ["--config", tmp_path / "sweep.toml", "--workdir", tmp_path / "sweep", "--run.stop.validate-every-steps", "1"]
    assert run_gmmae("sweep", *words) == 0
    with (tmp_path / "sweep" / "report" / "runs.csv").open() as file:
        rows = {(row["scaling"], row["devices"]): row for row in csv.DictReader(file)}
    assert float(rows["strong", "1"]["target_step"]) == pytest.approx(lowest.steps - 0.25, abs=0.05)
    assert (rows["weak", "2"]["outcome"], rows["weak", "2"]["target_step"]) == ("max_epochs", "")
    assert places(tmp_path / "sweep" / "runs" / rows["strong", "1"]["path"])[0] == (1, 1)
    assert run_gmmae("sweep", *words[:-1], "0") == 2


@pytest.mark.parametrize("number", ["0", "-1"])
def test_no_steps_are_refused(tmp_path, capsys, number):
    error = refusal(capsys, "train", "--workdir", tmp_path / "run", f"--stop.validate-every-steps={number}")
    assert f"stop.validate_every_steps must be a whole number, at least 1, or none; got {number}" in error
    assert not (tmp_path / "run").exists()


def monitor(stop, ends, inside=()):
    """A monitor after epochs of 10 steps that end with these losses."""
    losses = [(10 * epoch, 1.0, loss) for epoch, loss in enumerate(ends, 1)] + [(step, None, loss) for step, loss in inside]
    return StopMonitor(
        stop, [Epoch(-(-step // 10), step, step, 0.1, train, loss, 0, 0, 0, 0, 0, 8) for step, train, loss in sorted(losses)]
    )


@pytest.mark.parametrize(
    ("ends", "inside", "reason", "epoch", "step"),
    [
        ([5.0, 4.0], [(15, 1.0)], "target_reached", 2, 13.75),
        ([5.0, 4.0], [(15, 3.0)], None, None, None),
        ([5.0, 1.0], [(15, 3.0)], "target_reached", 2, 17.5),
        ([5.0, math.nan], [(15, 1.0)], "target_reached", 2, 13.75),  # it diverges after the target
        ([5.0, 4.0], [(15, math.nan), (18, 2.0)], "target_reached", 2, 18.0),
        ([5.0, 4.0], [(5, 2.0)], "target_reached", 1, 5.0),  # nothing is known before the first validation
    ],
)
def test_the_first_validation_at_the_target_counts(ends, inside, reason, epoch, step):
    found = monitor(StopConfig(target=2.0), ends, inside)
    assert found.reason() == reason
    assert getattr(found.target_epoch(), "epoch", None) == epoch
    assert found.target_step() == step


def test_patience_looks_at_the_ends_of_epochs_only():
    stop = StopConfig(patience_epochs=2)
    assert monitor(stop, [5.0, 5.0, 5.0], [(15, 1.0), (25, 9.0)]).reason() == "stalled"


def test_a_crossing_lies_between_two_validations():
    assert crossing((0, 18, 36), (math.inf, 3.0, 1.0), 2.0) == 27.0
    assert crossing((0, 18), (math.inf, 3.0), 4.0) == 18.0
    assert crossing((0, 18, 36), (math.nan, 3.0, math.nan), 2.0) == math.inf

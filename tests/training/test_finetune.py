"""`init_from`: the first validation is that of the other run's best parameters; a resume goes on from its own checkpoint."""

import json
from shutil import copytree, ignore_patterns, rmtree

import pytest

from gmmae.multihost.distributed import Group
from gmmae.sweep.runs import SweepDir
from gmmae.system.errors import InputError
from gmmae.training import fingerprint as fingerprint_of_data
from gmmae.training.loop import run
from gmmae.training.trained import load
from tests.small import Recorder, fingerprint, finish, small


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A run of other data, another optimiser and another precision, whose best epoch is not the last."""
    folder = tmp_path_factory.mktemp("other")
    config = small(data__seed=3, optim__clip_norm=1.0, precision="float64", stop__max_epochs=5, optim__learning_rate=0.02)
    return folder, finish(config, folder)[0]


class Listener(Group):
    """A group of one that keeps what it would compare."""

    def __init__(self):
        self.words = {}

    def assert_equal(self, values):
        self.words |= values


def test_the_best_of_the_kept_epochs_is_named(tmp_path, capsys):
    config = small(checkpoint__at_end=False, checkpoint__every_epochs=2, checkpoint__min_interval_s=0.0, stop__max_epochs=3)
    assert finish(config, tmp_path)[0].best_epoch == 3
    model = load(tmp_path)
    assert "was 3, and no checkpoint has its parameters: these are of epoch 2" in capsys.readouterr().err
    assert model.record.best_epoch == 2
    assert model.losses(model.workload.load().validation).mean() == pytest.approx(model.record.best_val_loss)


def test_a_run_begins_with_the_best_parameters_of_another(other, tmp_path):
    folder, record = other
    assert record.best_epoch == record.epochs - 1
    group, display = Listener(), Recorder()
    # A rate at which the first epoch changes next to nothing: its validation is that of the parameters it began with.
    few = {"optim__learning_rate": 1e-9, "stop__max_epochs": 1, "optim__name": "momentum"}
    tuned = run(small(data__seed=3, init_from=str(folder), **few), tmp_path / "tuned", display, group)
    assert tuned.best_val_loss == pytest.approx(record.best_val_loss, rel=1e-4)  # float32 here
    assert display.facts["parameters"].endswith(f"at first the best of {folder}, of its epoch {record.best_epoch}")
    origin = tuned.init_from
    assert origin == {"run": str(folder), "run_id": record.run_id, "epoch": record.best_epoch, "sha256": origin["sha256"]}
    assert group.words["the parameters of init_from"] == origin["sha256"]
    drawn, _ = finish(small(data__seed=3, optim__learning_rate=1e-9, stop__max_epochs=1), tmp_path / "drawn")
    assert drawn.best_val_loss > 1.1 * record.best_val_loss
    assert drawn.init_from == {}


def test_runs_of_a_sweep_begin_with_the_same_parameters(other, tmp_path):
    copytree(other[0], begun := tmp_path / "begun")
    config, sweep = small(init_from=str(begun), data__seed=3), SweepDir(tmp_path)
    sweep.require_same(config, data := fingerprint_of_data.load(config))
    record = json.loads((begun / "record.json").read_text())
    (begun / "record.json").write_text(json.dumps(record | {"best_epoch": record["best_epoch"] + 1}))
    with pytest.raises(InputError, match=r"where parameters of init_from was .epoch 4 of run \w+., now .epoch 5 of run"):
        sweep.require_same(config, data)


def test_a_resumed_run_goes_on_from_its_own_checkpoint_though_the_other_run_is_gone(other, tmp_path):
    gone = tmp_path / "gone"
    copytree(other[0], gone)
    config = small(init_from=str(gone), stop__max_epochs=4)
    finish(config, tmp_path / "whole")
    first, _ = finish(small(init_from=str(gone), stop__max_epochs=2), tmp_path / "parts")
    rmtree(gone)
    second, _ = finish(config, tmp_path / "parts")
    assert second.init_from == first.init_from != {}
    assert fingerprint(config, tmp_path / "parts") == fingerprint(config, tmp_path / "whole")


@pytest.mark.parametrize(
    ("gone", "changes", "message"),
    [
        (None, {"model__latent_dim": 9}, "init_from must be a run whose .*; got .* where model.latent_dim was 8, now 9$"),
        ("record.json", {}, "init_from must be the work directory of a run; got .*, which has no record"),
        ("folder", {}, "init_from must be the work directory of a run; got .*, which has no record"),
        ("checkpoints", {}, "init_from must hold a checkpoint"),
    ],
)
def test_what_gives_no_parameters_is_refused_before_anything_is_written(other, tmp_path, gone, changes, message):
    folder = tmp_path / "other"
    if gone == "folder":
        folder.touch()  # an exported model is a file
    else:
        copytree(other[0], folder, ignore=ignore_patterns(gone or ""))
    with pytest.raises(InputError, match=message):
        finish(small(init_from=str(folder), data__seed=3, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()

"""What the comparison of frameworks counts and shows; that the references take the last batch as it is said."""

import json
import subprocess

import numpy as np
import pytest

from benchmarks.child import ROOT
from benchmarks.peers import gmmae_backend, problem
from benchmarks.peers.backends import BACKENDS, Place
from experiments import environments, frameworks, last_batches, needs
from gmmae.config.toml import to_toml
from tests.small import small


def row(framework, scaling, turn, epoch_s, reached=1, epochs=20, loss="0.5"):
    _, processes, batch = next(arm for arm in frameworks.ARMS if arm.name == scaling)
    values = {"framework": framework, "scaling": scaling, "processes": processes, "batch": batch, "wall_s": 30}
    values |= {"turn": turn, "reached": reached, "epochs": epochs, "train_s": epoch_s * epochs, "epoch_s": epoch_s}
    return {key: str(value) for key, value in {**values, f"loss_{frameworks.CHECKED}": loss}.items()}


def test_every_framework_runs_on_two_processes_both_ways_and_ours_is_first():
    found = frameworks.runs()
    assert found[0].framework == "gmmae"
    for scaling in ("strong", "weak"):
        assert [run.framework for run in found if run.scaling.name == scaling] == list(frameworks.FRAMEWORKS)
    assert all(BACKENDS[run.peer].processes == run.scaling.processes for run in found)
    assert "Horovod with PyTorch" not in [run.framework for run in found if run.scaling.processes == 1]
    assert {run.peer for run in frameworks.runs(["horovod"])} == {"horovod"}


def test_the_job_divides_and_its_checked_step_is_in_the_first_epoch():
    config = gmmae_backend.configuration(frameworks.CONFIG)
    samples = config.settings.data.samples - config.settings.data.validation
    assert config.optim.batch_size == frameworks.BATCH
    assert frameworks.ARMS == (("one", 1, 16), ("strong", 2, 16), ("weak", 2, 32))
    assert all(samples % scaling.batch == 0 == scaling.batch % scaling.processes for scaling in frameworks.ARMS)
    assert min(samples // scaling.batch for scaling in frameworks.ARMS) == frameworks.CHECKED


def test_a_framework_is_compared_with_ours_of_the_same_turn_and_arm():
    rows = [row("gmmae", "strong", 0, 1.0), row("gmmae", "strong", 1, 2.0), row("PyTorch", "strong", 1, 6.0, loss="0.501")]
    head, _, line = frameworks.summary(rows)
    found = dict(zip(head, line, strict=True))
    assert found["processes, batch"] == "2, 16 (strong)"
    assert found["an epoch, times gmmae's"] == "3.00"
    assert found["loss of step 12 off gmmae's"] == "2e-03"


def test_a_run_that_missed_gives_no_time_to_the_target():
    rows = [row("PyTorch", "weak", 0, 1.0, reached=0, epochs=100), row("PyTorch", "weak", 1, 2.0)]
    head, line = frameworks.summary(rows)
    found = dict(zip(head, line, strict=True))
    assert (found["reached"], found["epochs"], found["training and validation, s"]) == ("1 of 2", "20", "40.0")
    assert found["an epoch, times gmmae's"] == "–"


def test_runs_that_the_file_has_are_not_made_again(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(frameworks, "problem", lambda folder, batch: folder)
    monkeypatch.setattr(frameworks, "run", lambda peer, folder, python: made.append(peer) or {"reached": 1})
    file, pythons = tmp_path / "frameworks.csv", environments.pythons(["ours", "ours-2"], tmp_path)
    assert len(frameworks.measure(file, 1, ["ours", "ours-2"], pythons)) == 3
    assert len(frameworks.measure(file, 2, ["ours"], pythons)) == 4
    assert made == ["ours", "ours-2", "ours-2", "ours"]


def test_a_framework_without_an_environment_is_left_out(tmp_path):
    assert environments.python_of("torch", tmp_path) is None
    assert environments.python_of("ours-2", tmp_path)
    pythons = environments.pythons(["torch", "horovod"], tmp_path)
    assert frameworks.measure(tmp_path / "frameworks.csv", 1, ["torch", "horovod"], pythons) == []


def test_the_last_step_is_that_of_the_processes_that_had_it():
    wanted = {"a": np.array([2.0])}
    had, had_not = {"steps": [[0, 1], [4]], "gradient": {"a": np.array([1.0])}}, {"steps": [[2, 3]], "gradient": wanted}
    assert last_batches.error([had, had_not], wanted) == 0.5
    full = {"steps": [[*range(16)]], "gradient": wanted}
    assert last_batches.error([full], wanted) == last_batches.NONE


def test_errors_of_both_parameters_are_in_one_line():
    about = {"framework": "gmmae", "recipe": "`train.py` as it is", "twice": "0", "left_out": "0"}
    rows = [{**about, "samples": "61", "at": at, "error": error} for at, error in (("start", "1e-15"), ("trained", "0.25"))]
    _, line = last_batches.summary(rows)
    assert line == ("gmmae", "`train.py` as it is", "61", "13", "0", "0", "1e-15", "25 %")


@pytest.mark.slow
def test_ours_ends_an_epoch_with_the_mean_of_what_is_left(tmp_path):
    (tmp_path / "small.toml").write_text(to_toml(small()), encoding="utf-8")
    source = {"name": str(tmp_path / "small.toml"), "samples": 21, "validation": 6, "precision": "float64"}
    problem.write(tmp_path, gmmae_backend.problem_of(**source))
    known = problem.read(tmp_path)
    moved = {name: value + 0.01 for name, value in known.params.items()}  # not those that the configuration begins with
    peer = gmmae_backend.start(known._replace(params=moved), Place())
    gradient, steps = peer.last("weights")
    assert [len(step) for step in steps] == [8, 8, 5]
    wanted = peer.gradient_of(gmmae_backend.unflat(moved), np.asarray(steps[-1]))
    assert last_batches.relative_error(gradient, wanted) < 1e-6  # weights are float32
    others = peer.gradient_of(gmmae_backend.unflat(moved), np.asarray(steps[0]))
    assert last_batches.relative_error(gradient, others) > 1e-3


@pytest.mark.parametrize("program", needs.PROGRAMS)
def test_programs_mark_what_several_processes_need(program):
    found = needs.lines_of(program.module)
    assert all((count > 0) == bool(program.module) for count in found.values())


def test_an_unknown_mark_is_refused():
    with pytest.raises(ValueError, match=r"a mark must be one of start, .*; got moon"):
        needs.marked("x = 1  # [moon]\n")


def test_what_is_counted_and_how_far_two_processes_are_off_are_shown():
    counted = {"start": "1", "divide": "2", "mean": "3", "validate": "4"}
    _, line = needs.summary([{"framework": "PyTorch DDP", **counted, "loss_1": "2.0", "loss_2": "2.002"}])
    assert line[:5] == ("PyTorch DDP", "1", "2", "3", "4")
    assert line[-1] == "1e-03"


def test_horovod_is_built_only_where_torch_is():
    done = subprocess.run([ROOT / "experiments" / "horovod.sh"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "takes the Python of an environment that has torch; got 'nothing': install torch there first" in done.stderr


def test_processes_that_fail_show_what_they_said():
    with pytest.raises(SystemExit, match=r"(?s)ended with 1:.*no such thing"):
        needs.output([["python3", "-c", "raise SystemExit('no such thing')"]])
    assert json.loads(needs.output([["python3", "-c", "print(3)"]])) == 3

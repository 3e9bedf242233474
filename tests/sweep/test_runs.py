import dataclasses
import itertools

import pytest

from gmmae.sweep import slurm
from gmmae.sweep.grid import RunKey, SweepConfig
from gmmae.sweep.runs import Attempt, Failure, RunRecord, SweepDir, on_devices
from gmmae.sweep.workers import Signals
from gmmae.system.errors import InputError
from gmmae.training.records import Record
from tests.commands import one_line
from tests.sweeps import GRID, add, run_record

CELL = RunKey("weak", 2, 0)
RECORD = run_record(GRID, RunKey("strong", 1, 0), "target_reached", 3, 0.0009)


def cell_record(record: Record | None = RECORD, outcome="target_reached", message=""):
    return RunRecord(CELL, outcome, "strong-n1-seed0", record, message)


@pytest.mark.parametrize("text", ["", "[]", '{"outcome": "crashed"}', '{"outcome": 3, "message": ""}'])
def test_a_broken_failure_is_named_with_the_way_out(tmp_path, text):
    config, folder = SweepConfig(scaling=("weak",), devices=(2,)), SweepDir(tmp_path)
    folder.write(folder.failure("weak-n2-seed0"), Failure("crashed", 'exit code 1: "what"\n[it] was'))
    [found] = folder.read_all(config)
    assert (found.key, found.outcome, found.message) == (CELL, "crashed", 'exit code 1: "what"\n[it] was')
    folder.failure("weak-n2-seed0").write_text(text)
    message = one_line(folder.read_all, config)
    assert message.startswith(f"{folder.failure('weak-n2-seed0')} must say how a run failed; got ")
    assert message.endswith(": delete it, and the sweep goes on")


@pytest.mark.parametrize("changes", [{"seed": 1}, {"learning_rate": 0.1}, {"global_batch": 64}])
def test_a_run_of_another_sweep_is_refused_where_it_was_put(tmp_path, changes):
    config = dataclasses.replace(GRID, scaling=("strong",), devices=(1,), seeds=(0,))
    with pytest.raises(InputError, match=r"seed, batch and learning rate of .*record\.json must be 0, 32 and .*: move"):
        add(config, tmp_path, RunKey("strong", 1, 0), "target_reached", 3, **changes)


def test_a_shared_path_is_divided_by_the_runs_devices():
    """32 = 5 × 7 - 3."""
    shown = on_devices(RECORD, RunKey("strong", 5, 0), GRID.run.optim)
    assert shown == dataclasses.replace(RECORD, devices=5, device_batch=7, padding=3)


def test_jobs_that_die_unseen_on_one_node_after_another_are_not_submitted_for_ever(tmp_path, monkeypatch):
    folder, nodes, said = SweepDir(tmp_path), itertools.count(), list[str]()

    def submit(*_, **__):
        folder.write(folder.attempt("weak-n1-seed0"), Attempt(1, f"node {next(nodes)}", 0, 0))
        return []

    monkeypatch.setattr(slurm, "submit", submit)
    for path in (folder.runs, folder.jobs):
        path.mkdir()
    slurm.compute(SweepConfig(), folder, lambda: ["weak-n1-seed0"], said.append, Signals())
    assert "jobs have ended without getting on" in said[0]
    assert next(nodes) == 2

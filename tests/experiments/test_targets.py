"""Other targets, by the history of a run of a few epochs."""

import math

import pytest

from experiments.targets import on_the_way
from gmmae.system.errors import InputError
from gmmae.system.null_object import IDLE
from gmmae.training.loop import run
from gmmae.training.records import read_history
from tests.small import small


def test_a_run_came_to_other_targets_on_its_way(tmp_path):
    workdir = tmp_path / "runs" / "strong-n1-seed0"
    record = run(small(stop__target=1e-9), workdir, IDLE)
    losses = [row.val_loss for row in read_history(workdir / "history.csv")]
    first, last = losses[0], min(losses)
    assert last < first
    rows = {row["target"]: row for row in on_the_way(tmp_path, [first, (first + last) / 2])}
    assert rows[first]["epochs"] == 1
    assert 1 < rows[(first + last) / 2]["epochs"] <= record.epochs
    assert math.isinf(rows[1e-9]["steps"])
    with pytest.raises(InputError, match=r"targets must be above the runs' own, 1e-09; got 1e-10"):
        list(on_the_way(tmp_path, [1e-10]))

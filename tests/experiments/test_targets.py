"""Other targets, by the history of a run that missed its own."""

import math

import pytest

from experiments.targets import on_the_way
from gmmae.config.toml import to_toml
from gmmae.sweep.grid import RunKey
from gmmae.sweep.runs import SweepDir
from gmmae.system import stop_reasons
from gmmae.system.errors import InputError
from gmmae.training import records
from tests import sweeps


def test_a_run_came_to_other_targets_on_its_way(tmp_path):
    key, loss = RunKey("strong", 1, 0), 2 * sweeps.TARGET
    written = sweeps.add(sweeps.GRID, tmp_path, key, stop_reasons.MAX_EPOCHS, 20, loss)
    assert written.record is not None
    run = SweepDir(tmp_path).run(written.path)
    run.config.write_text(to_toml(sweeps.GRID.run), encoding="utf-8")
    run.record.write_text(records.to_json(written.record), encoding="utf-8")
    rows = {row["target"]: row for row in on_the_way(tmp_path, [0.0075, 1.01 * loss])}
    assert rows[0.0075]["epochs"] == 1
    assert 18 < rows[1.01 * loss]["epochs"] < 20
    assert math.isinf(rows[sweeps.TARGET]["steps"])
    with pytest.raises(InputError, match=r"targets must be above the runs' own, 0.0016384; got 1e-10"):
        list(on_the_way(tmp_path, [1e-10]))

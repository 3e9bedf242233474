"""What is left to learn in runs that were stopped early, on runs of a few epochs whose parameters are spoilt."""

import jax
import numpy as np
import pytest

from experiments import given_up
from gmmae.system.null_object import IDLE
from gmmae.training import compilation
from gmmae.training.checkpoint import Checkpoints, newest
from gmmae.training.loop import run
from gmmae.training.workdir import WorkDir
from tests.small import small


def spoilt(folder: WorkDir, name: str, value: float) -> None:
    """Writes a checkpoint whose biases of this name are multiples of a value, and Adam's moments 0."""
    setup = compilation.prepare(small())
    found = newest(folder.checkpoints, compilation.blank_state(setup.config, setup.workload))
    assert found is not None

    def changed(path, leaf):
        return value * np.arange(1, 1 + leaf.size, dtype="f4") if name in jax.tree_util.keystr(path) else leaf

    params = jax.tree_util.tree_map_with_path(changed, found.state.params)
    calm = jax.tree.map(np.zeros_like, found.state.opt_state)
    history = found.progress.history
    longer = found.progress._replace(history=[*history, history[-1]._replace(epoch=history[-1].epoch + 1)])
    with_it = found._replace(state=found.state._replace(params=params, opt_state=calm), progress=longer)
    checkpoints = Checkpoints(folder.checkpoints, 2)
    checkpoints.save(with_it)
    checkpoints.close()


@pytest.fixture
def sweep(tmp_path):
    for name in ("usual", "without_units", "at_an_edge"):
        run(small(stop__target=1e-9), tmp_path / "runs" / name, IDLE)
    spoilt(WorkDir(tmp_path / "runs" / "without_units"), "['Conv_1']['bias']", -1e3)
    spoilt(WorkDir(tmp_path / "runs" / "at_an_edge"), "['heads']['bias']", 1e4)
    run(small(stop__target=1e3), tmp_path / "runs" / "arrived", IDLE)
    return tmp_path


@pytest.mark.slow
def test_a_run_that_can_still_learn_is_told_from_those_that_cannot(sweep, tmp_path):
    folders = given_up.missed(sweep)
    assert [folder.root.name for folder in folders] == ["at_an_edge", "usual", "without_units"]
    rows = dict(zip(("at_an_edge", "usual", "without_units"), given_up.judged(folders, tmp_path), strict=True))
    assert {name: row["kind"] for name, row in rows.items()} == {
        "at_an_edge": "frozen",
        "usual": "open",
        "without_units": "blind",
    }
    assert rows["usual"]["drift"] > 0
    assert rows["without_units"]["drift"] == 0
    assert rows["without_units"]["least"] > 0

"""Every damage strikes, and harms, a checkpoint as today's code writes it."""

import re
import shutil
from pathlib import Path

import pytest

from gmmae.training import compilation
from gmmae.training.checkpoint import Checkpoint, Checkpoints, Progress
from gmmae.training.records import Epoch
from tests.faults import damages
from tests.faults.damages import DAMAGES, UnmatchedError
from tests.faults.faults import damage_many, damaged
from tests.faults.runs import Run
from tests.faults.trials import Bench
from tests.small import small

# Orbax gives up at the first array that cannot be read and closes its event loop;
# TensorStore's threads may finish the others later.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def state():
    return compilation.initial_state(compilation.prepare(small()))


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory, state) -> Path:
    """A folder of checkpoints as today's code writes them."""
    folder = tmp_path_factory.mktemp("two") / "checkpoints"
    rows = [Epoch(epoch, epoch, epoch, 0.1, 0.1, 0.1, 0.0, 1.0, 1.0, 0.0, 2.0) for epoch in (1, 2)]
    checkpoints = Checkpoints(folder, keep=2)
    for epochs in (1, 2):
        checkpoints.save(Checkpoint(state, state.params, Progress(rows[:epochs], {"total_s": 1.5}, epochs)))
    checkpoints.close()
    return folder


@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_makes_a_checkpoint_of_today_unreadable(tmp_path, two_checkpoints, state, name):
    shutil.copytree(two_checkpoints, tmp_path / "c")
    damages.apply(name, tmp_path / "c" / "2")
    checkpoints = Checkpoints(tmp_path / "c", keep=2)
    restored = checkpoints.restore(state, lambda line: None)
    checkpoints.close()
    assert restored is not None
    assert len(restored.progress.history) == 1
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["1", "2.corrupt"]


def test_a_damage_that_matches_nothing_is_an_error_and_never_survived(tmp_path):
    name = next(iter(DAMAGES))
    (tmp_path / "stopped" / "checkpoints" / "2" / "state").mkdir(parents=True)
    with pytest.raises(UnmatchedError, match=rf"{name}: a checkpoint must have {re.escape(DAMAGES[name].pattern)}; got"):
        damages.apply(name, tmp_path / "stopped" / "checkpoints" / "2")
    bench = Bench(tmp_path)
    bench.stopped = tmp_path / "stopped"
    trial = bench.trial(damaged(name), "0")
    assert not trial.plain()["survived"]
    assert trial.complaints[0].startswith("UnmatchedError: ")


def test_many_damages_need_more_checkpoints_than_damages(tmp_path):
    run = Run(tmp_path / "run", tmp_path / "compiled")
    for epoch in range(len(DAMAGES)):
        (run.workdir / "checkpoints" / str(epoch)).mkdir(parents=True)
    with pytest.raises(UnmatchedError, match=f"more checkpoints than the {len(DAMAGES)} damages; got"):
        damage_many(run)

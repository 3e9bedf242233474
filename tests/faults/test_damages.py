"""Every damage strikes, and harms, a checkpoint as today's code writes it."""

import shutil
from pathlib import Path

import pytest

from gmmae.training import checkpoint, compilation
from gmmae.training.checkpoint import Checkpoint
from gmmae.training.records import Progress
from tests.faults import damages
from tests.faults.damages import DAMAGES
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
    with checkpoint.opened(folder, keep=2) as manager:
        for epoch in (1, 2):
            checkpoint.save(manager, Checkpoint(state, state.params, Progress(epoch, epoch, {"total_s": 1.5}, epoch, "0")))
    return folder


@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_makes_a_checkpoint_of_today_unreadable(tmp_path, two_checkpoints, state, name):
    shutil.copytree(two_checkpoints, tmp_path / "c")
    damages.apply(name, tmp_path / "c" / "2")
    with checkpoint.opened(tmp_path / "c", keep=2) as manager:
        restored = checkpoint.restore(manager, state, lambda line: None)
    assert restored is not None
    assert restored.progress.epoch == 1
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["1", "2.corrupt"]

"""What a checkpoint holds, and what happens when it cannot be read."""

import numpy as np
import pytest

from gmmae import programs
from gmmae.checkpoint import Checkpoint, CheckpointError, Checkpoints, Progress
from gmmae.records import Epoch
from tests.small import small


def row(epoch: int, loss: float) -> Epoch:
    return Epoch(epoch, epoch, epoch, 0.1, loss, loss, 0.0, 1.0, 1.0, 0.0, 2.0)


@pytest.fixture(scope="module")
def state():
    return programs.initial_state(programs.prepare(small()))


def saved(folder, state, epochs: int) -> Checkpoint:
    """Saves after each epoch; returns the last one."""
    history = [row(epoch, 0.1 / 3 / epoch) for epoch in range(1, epochs + 1)]
    all_saved = [Checkpoint(state, state.params, Progress(history[:n], {"total_s": 1.5}, n)) for n in range(1, epochs + 1)]
    checkpoints = Checkpoints(folder, keep=2)
    for checkpoint in all_saved:
        checkpoints.save(checkpoint)
    checkpoints.close()
    return all_saved[-1]


def test_round_trip_keeps_every_bit(tmp_path, state):
    expected = saved(tmp_path, state, 3)
    restored = Checkpoints(tmp_path, keep=2).restore(like=state)
    assert restored is not None
    assert restored.progress == expected.progress
    assert type(restored.state.opt_state) is type(state.opt_state)
    np.testing.assert_equal(restored.state, state)
    np.testing.assert_equal(restored.best, state.params)


def test_nan_survives(tmp_path, state):
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(Checkpoint(state, state.params, Progress([row(1, float("nan"))], {}, 0)))
    restored = checkpoints.restore(like=state)
    assert restored is not None
    assert np.isnan(restored.progress.history[0].val_loss)


def test_only_the_newest_are_kept(tmp_path, state):
    saved(tmp_path, state, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4"]


def test_none_in_an_empty_folder(tmp_path, state):
    assert Checkpoints(tmp_path, keep=1).restore(like=state) is None


@pytest.mark.parametrize("item", ["state", "best", "progress"])
def test_damage_is_named(tmp_path, state, item):
    saved(tmp_path, state, 1)
    for path in (tmp_path / "1" / item).rglob("*"):
        if path.is_file() and path.stat().st_size > 40:
            path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(CheckpointError, match=r"checkpoint .*/1 must be readable; .*: delete that folder") as caught:
        Checkpoints(tmp_path, keep=1).restore(like=state)
    assert "\n" not in str(caught.value)


def test_other_shapes_are_refused(tmp_path, state):
    saved(tmp_path, state, 1)
    other = programs.initial_state(programs.prepare(small(model__latent_dim=5)))
    with pytest.raises(CheckpointError):
        Checkpoints(tmp_path, keep=1).restore(like=other)

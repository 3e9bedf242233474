"""What a checkpoint holds, and what happens when it cannot be read."""

import errno
import threading
from functools import partial

import jax
import numpy as np
import pytest

from gmmae.system.errors import InputError
from gmmae.training import checkpoint, preparation
from gmmae.training.checkpoint import Checkpoint, CheckpointError, OtherModelError
from gmmae.training.records import Progress
from tests.faults.damages import DAMAGES, rewrite
from tests.small import small


@pytest.fixture(scope="module")
def state():
    return preparation.initial_state(preparation.prepare(small()))


def after(epoch, state):
    return Checkpoint(state, state.params, Progress(epoch, epoch, {"total_s": 1.5}, epoch, "0"))


def saved(folder, state, *epochs):
    with checkpoint.opened(folder, 2) as manager:
        for epoch in epochs:
            checkpoint.save(manager, after(epoch, state))


def restored(folder, state, say=print):
    with checkpoint.opened(folder, 2) as manager:
        return checkpoint.restore(manager, state, say)


def read(folder, state, epoch=1):
    with checkpoint.opened(folder) as manager:
        return checkpoint.read(manager, epoch, state, "ask")


def unchanged(found, state):
    pairs = zip(*(jax.tree.leaves(trees) for trees in ((found.state, found.best), (state, state.params))), strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)


def test_the_newest_are_kept_to_every_bit_and_an_empty_folder_has_none(tmp_path, state):
    assert restored(tmp_path / "c", state) is None
    saved(tmp_path / "c", state, 1, 2, 4)
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["2", "4"]
    found = restored(tmp_path / "c", state)
    assert found is not None
    assert found.progress == after(4, state).progress
    assert jax.tree.structure(found.state) == jax.tree.structure(state)
    assert unchanged(found, state)
    assert read(tmp_path / "c", state, 2).progress.epoch == 2


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ValueError("RESOURCE_EXHAUSTED: Error writing: No space left on device [os_error_code='28']"), 74),
        (OSError(errno.EACCES, "Permission denied"), 74),
        (OSError(errno.EMFILE, "Too many open files"), 2),
        (ValueError("Cannot save arrays with zero size"), 2),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_save_that_fails_prints_nothing(tmp_path, state, monkeypatch, capsys, failure, code):
    def fail(*_, **__):
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        raise failure

    manager = checkpoint.opened(tmp_path, 1)
    monkeypatch.setattr(manager, "save", fail)
    with pytest.raises(InputError, match="the checkpoint of epoch 1 must be written to") as caught:
        checkpoint.save(manager, after(1, state))
    assert caught.value.exit_code == code
    assert capsys.readouterr().err == ""


def change_clock(folder):
    place = folder / "progress" / "metadata"
    place.write_text(place.read_text().replace("1.5", "7.5"))


DAMAGED = {**DAMAGES, "a clock changed": change_clock}
for array, number in (
    ("best.params.heads.bias", 0.1),
    ("best.params.heads.bias", np.nan),
    ("state.opt_state.mu.params.heads.bias", 0.1),
):
    DAMAGED[f"{array} that became {number}"] = partial(rewrite, array=array, value=number)


# Orbax gives up at the first array that cannot be read and closes its event loop; TensorStore's threads may answer it later.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_what_is_damaged_is_set_aside_for_an_older_one(tmp_path, state, damage):
    saved(tmp_path, state, 2, 3)
    damage(tmp_path / "3")
    lines = []
    found = restored(tmp_path, state, lines.append)
    assert found is not None
    assert found.progress.epoch == 2
    assert unchanged(found, state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3.corrupt"]
    [line] = lines
    assert line.startswith(f"{tmp_path / '3'} cannot be read (")
    assert line.endswith("): moved to 3.corrupt; going on from epoch 2")


def test_what_is_damaged_is_refused_without_an_older_one_and_its_number_may_be_damaged_again(tmp_path, state):
    saved(tmp_path, state, 3)
    change_clock(tmp_path / "3")
    with pytest.raises(CheckpointError, match=r"\Athe checkpoint .*/3 must be readable; .* no older one: delete that.*\Z"):
        restored(tmp_path, state)
    with pytest.raises(CheckpointError, match=r"/3 must be readable; .*: ask$"):
        read(tmp_path, state, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["3"]
    (tmp_path / "3").rename(tmp_path / "3.corrupt")
    saved(tmp_path, state, 2, 3)
    change_clock(tmp_path / "3")
    assert restored(tmp_path, state) is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3.corrupt"]


def test_another_precision_is_that_of_what_was_saved(tmp_path, state):
    saved(tmp_path, state, 1)
    wide = jax.tree.map(lambda leaf: leaf.astype(np.float64) if leaf.dtype == np.float32 else leaf, state)
    found = read(tmp_path, wide)
    assert {leaf.dtype for leaf in jax.tree.leaves(found.best)} == {np.dtype(np.float64)}
    assert unchanged(found, wide)


def test_another_model_is_refused_and_nothing_is_moved(tmp_path, state):
    saved(tmp_path, state, 1, 2)
    narrow = preparation.initial_state(preparation.prepare(small(model__latent_dim=5)))
    for other in (narrow, state._replace(params={"params": {"others": np.zeros(3)}})):
        with pytest.raises(OtherModelError, match="must hold the model of this configuration; its arrays have other shapes"):
            restored(tmp_path, other)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]

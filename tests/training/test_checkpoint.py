"""What a checkpoint holds, and what happens when it cannot be read."""

import errno
import sys
import threading
from functools import partial

import jax
import numpy as np
import pytest

from gmmae.system.errors import InputError, StorageError
from gmmae.training import compilation
from gmmae.training.checkpoint import Checkpoint, CheckpointError, Checkpoints, Progress, newest, restore_epoch
from gmmae.training.records import Epoch
from tests.faults.damages import rewrite
from tests.small import small


def row(epoch: int, loss: float) -> Epoch:
    return Epoch(epoch, epoch, epoch, 0.1, loss, loss, 0.0, 1.0, 1.0, 0.0, 2.0, batch=8)


@pytest.fixture(scope="module")
def state():
    return compilation.initial_state(compilation.prepare(small()))


def saved(folder, state, epochs: int) -> Checkpoint:
    """Saves after each epoch; returns the last one."""
    history = [row(epoch, 0.1 / 3 / epoch) for epoch in range(1, epochs + 1)]
    all_saved = [Checkpoint(state, state.params, Progress(history[:n], {"total_s": 1.5}, n)) for n in range(1, epochs + 1)]
    checkpoints = Checkpoints(folder, keep=2)
    for each in all_saved:
        checkpoints.save(each)
    checkpoints.close()
    return all_saved[-1]


def test_round_trip_keeps_every_bit(tmp_path, state):
    expected = saved(tmp_path, state, 3)
    restored = Checkpoints(tmp_path, keep=2).restore(state, print)
    assert restored is not None
    assert restored.progress == expected.progress
    assert [repr(row) for row in restored.progress.history] == [repr(row) for row in expected.progress.history]  # 1 is no 1.0
    assert type(restored.state.opt_state) is type(state.opt_state)
    np.testing.assert_equal(restored.state, state)
    np.testing.assert_equal(restored.best, state.params)


def test_only_the_newest_are_kept_with_nan_and_an_empty_folder_has_none(tmp_path, state):
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.restore(state, print) is None
    history = [row(epoch, float("nan")) for epoch in (1, 2, 3, 4)]
    for epoch in (1, 2, 3, 4):
        checkpoints.save(Checkpoint(state, state.params, Progress(history[:epoch], {}, 0)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4"]
    restored = checkpoints.restore(state, print)
    assert restored is not None
    assert np.isnan(restored.progress.history[3].val_loss)


HOOKS = [(threading, "excepthook"), (sys, "unraisablehook"), (sys, "excepthook")]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ValueError("RESOURCE_EXHAUSTED: Error writing: No space left on device [os_error_code='28']"), 74),
        (OSError(errno.EACCES, "Permission denied"), 74),
        (OSError(errno.EMFILE, "Too many open files"), 2),
        (ValueError("Cannot save arrays with zero size"), 2),
    ],
)
def test_a_save_that_fails_prints_nothing_and_leaves_the_hooks(tmp_path, state, monkeypatch, capsys, failure, code):
    for module, hook in HOOKS:
        monkeypatch.setattr(module, hook, getattr(module, f"__{hook}__"))
    checkpoints = Checkpoints(tmp_path, keep=1)

    def fail(*_, **__):
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        raise failure

    monkeypatch.setattr(checkpoints._manager, "save", fail)
    with pytest.raises(InputError, match="the checkpoint of epoch 1 must be written to") as caught:
        checkpoints.save(Checkpoint(state, state.params, Progress([row(1, 0.1)], {}, 0)))
    assert caught.value.exit_code == code
    assert capsys.readouterr().err == ""
    assert all(getattr(module, hook) is getattr(module, f"__{hook}__") for module, hook in HOOKS)


ITEMS = ["arrays", "progress"]


def damage(folder, item):
    """Cuts the files of one item short, as a full disk or a crashed file system may."""
    cut = [path for path in (folder / item).rglob("*") if path.is_file() and path.stat().st_size > 40]
    assert cut
    for path in cut:
        path.write_bytes(path.read_bytes()[:40])


@pytest.mark.parametrize("item", ITEMS)
def test_damage_without_an_older_checkpoint_is_named_and_left_as_it_is(tmp_path, state, item):
    saved(tmp_path, state, 1)
    damage(tmp_path / "1", item)
    with pytest.raises(CheckpointError, match=r"checkpoint .*/1 must be readable; .* no older one: delete that") as caught:
        Checkpoints(tmp_path, keep=1).restore(state, print)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


@pytest.mark.parametrize("item", ITEMS)
def test_damage_falls_back_to_the_one_before_moves_it_aside_and_says_so(tmp_path, state, item):
    lines = []
    for i, aside in enumerate(["3.corrupt", "3.corrupt.2"]):
        saved(tmp_path, state, 3)  # what is there already is kept: the second time 3 alone is new
        damage(tmp_path / "3", item)
        checkpoints = Checkpoints(tmp_path, keep=2)
        restored = checkpoints.restore(state, lines.append)
        assert restored is not None
        assert len(restored.progress.history) == 2
        assert lines[i].startswith(f"{tmp_path / '3'} cannot be read (")
        assert lines[i].endswith(f"): moved to {aside}; going on from epoch 2")
        assert (tmp_path / aside / item).is_dir()
        checkpoints.close()
    assert len(lines) == 2
    # The way back leads over the same number: it can be saved again, and read.
    last = saved(tmp_path, state, 3)
    restored = Checkpoints(tmp_path, keep=2).restore(state, lines.append)
    assert restored is not None
    assert restored.progress == last.progress
    assert len(lines) == 2


KERNEL = "best.params.encoder.Conv_0.kernel"


def unchanged(restored, state):
    pairs = zip(*(jax.tree.leaves(trees) for trees in ((restored.state, restored.best), (state, state.params))), strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)


def change_clock(folder):
    place = folder / "progress" / "metadata"
    place.write_text(place.read_text().replace("1.5", "7.5"))


CHANGES = [partial(rewrite, array=KERNEL, value=0.1), partial(rewrite, array=KERNEL, value=np.nan), change_clock]


@pytest.mark.parametrize("change", CHANGES, ids=["a parameter", "a parameter that becomes NaN", "a clock"])
def test_changed_numbers_are_noticed(tmp_path, state, change):
    saved(tmp_path, state, 1)
    change(tmp_path / "1")
    with pytest.raises(CheckpointError, match=r"/1 must be readable; .*DamagedError: its contents are not those that"):
        newest(tmp_path, state)


def test_no_changed_bit_passes_for_another_number(tmp_path, state):
    """Some bits are of no consequence; without a checksum one in three changed a number."""
    saved(tmp_path, state, 1)
    data = max((tmp_path / "1").glob("arrays/ocdbt.process_*/d/*"), key=lambda path: path.stat().st_size)
    sound, rng, refused = data.read_bytes(), np.random.default_rng(0), []
    for place in rng.integers(len(sound), size=16):
        changed = bytearray(sound)
        changed[place] ^= 1 << rng.integers(8)
        data.write_bytes(changed)
        try:
            restored = newest(tmp_path, state)
        except CheckpointError as error:
            refused.append(str(error))
        else:
            assert restored is not None
            assert unchanged(restored, state)
    assert refused


def test_changed_numbers_fall_back_to_the_checkpoint_before(tmp_path, state):
    saved(tmp_path, state, 2)
    rewrite(tmp_path / "2", KERNEL, 0.1)
    lines = []
    restored = Checkpoints(tmp_path, keep=2).restore(state, lines.append)
    assert restored is not None
    assert len(restored.progress.history) == 1
    assert unchanged(restored, state)
    assert (tmp_path / "2.corrupt").is_dir()
    assert len(lines) == 1
    assert "(DamagedError: its contents are not those that were saved): moved to 2.corrupt; going on from epoch 1" in lines[0]


def test_another_precision_is_that_of_what_was_saved(tmp_path, state):
    saved(tmp_path, state, 1)
    wide = jax.tree.map(lambda leaf: leaf.astype(np.float64) if leaf.dtype == np.float32 else leaf, state)
    restored = newest(tmp_path, wide)
    assert restored is not None
    assert {leaf.dtype for leaf in jax.tree.leaves(restored.best)} == {np.dtype(np.float64)}
    assert unchanged(restored, wide)


def test_another_process_reads_the_chosen_epoch_or_says_what_is_wrong(tmp_path, state):
    saved(tmp_path, state, 2)
    assert len(restore_epoch(tmp_path, 1, state).progress.history) == 1
    with pytest.raises(CheckpointError, match=r"/7 must be readable by all processes; .*: put the workdir on a file system"):
        restore_epoch(tmp_path, 7, state)


def test_a_save_that_fails_is_a_storage_error_and_harms_no_other(tmp_path, state):
    saved(tmp_path / "c", state, 2)
    checkpoints = Checkpoints(tmp_path / "c", keep=2)
    (tmp_path / "c").rename(tmp_path / "elsewhere")
    (tmp_path / "c").write_text("a file, where no folder can be made")
    history = [row(epoch, 0.1) for epoch in (1, 2, 3)]
    with pytest.raises(StorageError, match=r"checkpoint of epoch 3 must be written to .*/c; that failed with \w+: .*: see to"):
        checkpoints.save(Checkpoint(state, state.params, Progress(history, {}, 3)))
    restored = Checkpoints(tmp_path / "elsewhere", keep=2).restore(state, print)
    assert restored is not None
    assert len(restored.progress.history) == 2


def test_another_model_is_refused_and_nothing_is_moved(tmp_path, state):
    """Orbax's own error would say nothing to a user."""
    saved(tmp_path, state, 2)
    narrow = compilation.initial_state(compilation.prepare(small(model__latent_dim=5)))
    for other in (narrow, state._replace(params={"params": {"others": np.zeros(3)}})):
        with pytest.raises(CheckpointError, match="must hold the model of this configuration; its arrays have other shapes"):
            Checkpoints(tmp_path, keep=2).restore(other, print)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["1", "2"]

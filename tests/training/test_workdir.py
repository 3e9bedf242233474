"""The owner of a work directory."""

import errno
import hashlib
import os
from pathlib import Path

import pytest

from gmmae.config.toml import to_toml
from gmmae.system.errors import InputError, StorageError
from gmmae.training import figures
from gmmae.training.records import Epoch, Progress
from gmmae.training.run_logger import write_history
from gmmae.training.workdir import WorkDir, claim
from tests.small import finish, small


def claimed(config, root):
    """Writes the files of a run that was ended after its first epoch."""
    with claim(config, root) as workdir:
        workdir.config.write_text(to_toml(config))
        write_history(workdir.history, [Epoch(1, 3, 22, 1e-3, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 32)])
        return workdir


def test_claim_twice_is_fine_and_limits_may_change(tmp_path):
    claimed(small(), tmp_path)
    workdir = claimed(small(stop__max_epochs=99, checkpoint__keep=5, log__every_epochs=3), tmp_path)
    assert "max_epochs = 99" in workdir.config.read_text()


def test_another_configuration_is_refused_and_nothing_changes(tmp_path):
    workdir = claimed(small(), tmp_path)
    before = workdir.config.read_text()
    with pytest.raises(
        InputError, match=r"same configuration; got .* where seed was 0, now 1; optim.batch_size was 8, now 4: give another"
    ):
        claimed(small(seed=1, optim__batch_size=4), tmp_path)
    with pytest.raises(InputError, match="and 2 more: give another"):
        claimed(small(seed=1, scaling="weak", loss="mse", data__seed=3, data__samples=40), tmp_path)
    assert workdir.config.read_text() == before


def test_devices_may_change_where_no_batch_follows_them(tmp_path):
    claimed(small(parallel__devices=2), tmp_path / "strong")
    claimed(small(parallel__devices=4), tmp_path / "strong")
    claimed(small(scaling="weak", parallel__devices=2), tmp_path / "weak")
    with pytest.raises(InputError, match=r"where parallel\.devices was 2, now 4: give another"):
        claimed(small(scaling="weak", parallel__devices=4), tmp_path / "weak")


def test_a_second_run_is_refused_while_the_first_one_lives(tmp_path):
    with (
        claim(small(), tmp_path),
        pytest.raises(InputError, match=rf"one run at a time; got .*, which process {os.getpid()} on .* holds: wait for it"),
    ):
        claimed(small(), tmp_path)
    claimed(small(), tmp_path)


def test_broken_config(tmp_path):
    claimed(small(), tmp_path).config.write_text("seed = = 1")
    with pytest.raises(InputError, match=r"config.toml must be TOML"):
        claimed(small(), tmp_path)


@pytest.mark.parametrize("place", ["file/below", "file", "file/../run", "x" * 300, "/"])
def test_a_place_that_cannot_be_written(tmp_path, place):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InputError, match=r"workdir must be a \w+ that can be written; got "):
        claimed(small(), tmp_path / place)


@pytest.mark.parametrize("folder", ["run", "snapshots", "checkpoints"])
def test_a_disk_that_is_full_before_the_first_checkpoint_is_neither_a_wrong_folder_nor_a_crash(tmp_path, monkeypatch, folder):
    """A sweep ends with it, and does not call its run crashed."""
    make = Path.mkdir

    def fail(path, *args, **options):
        if path.name == folder:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        make(path, *args, **options)

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(StorageError, match=rf"writing .*{folder} failed \(No space left on device\)"):
        finish(small(), tmp_path / "run")


@pytest.mark.slow
def test_figures_that_cannot_be_written_are_one_line(tmp_path):
    config = small(stop__max_epochs=1)
    record, _ = finish(config, tmp_path)
    (tmp_path / "figures" / "losses.png").mkdir()
    with pytest.raises(StorageError, match=r"writing .*figures.* failed \(Is a directory\)"):
        figures.draw(config, record, WorkDir(tmp_path))


def test_a_history_that_was_edited_or_has_the_columns_of_another_version_is_refused(tmp_path):
    workdir = claimed(small(), tmp_path)
    workdir.history.write_bytes(text := workdir.history.read_bytes().replace(b"batch", b"batch,grad_norm"))
    for saved, message in (("", "got other ones"), (hashlib.sha256(text).hexdigest(), "got the columns epoch,")):
        with pytest.raises(InputError, match=message):
            workdir.read_rows_of(Progress(1, 1, {}, 1, saved))

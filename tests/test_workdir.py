"""Whose work directory it is."""

import pytest

from gmmae.errors import InputError
from gmmae.workdir import WorkDir, claim
from tests.small import small


def test_claim_twice_is_fine_and_limits_may_change(tmp_path):
    claim(small(), tmp_path)
    workdir = claim(small(stop__max_epochs=99, checkpoint__keep=5, log__detail_epochs=3), tmp_path)
    assert "max_epochs = 99" in workdir.config.read_text()


def test_another_configuration_is_refused_and_nothing_changes(tmp_path):
    workdir = claim(small(), tmp_path)
    before = workdir.config.read_text()
    with pytest.raises(
        InputError, match=r"same configuration; got .* where seed was 0, now 1; optim.base_batch was 8, now 4: give another"
    ):
        claim(small(seed=1, optim__base_batch=4), tmp_path)
    assert workdir.config.read_text() == before


def test_many_differences_are_cut_short(tmp_path):
    claim(small(), tmp_path)
    with pytest.raises(InputError, match="and 2 more: give another"):
        claim(small(seed=1, arm="weak", loss="mse", data__seed=3, data__samples=40), tmp_path)


def test_broken_config(tmp_path):
    (tmp_path / "config.toml").write_text("seed = = 1")
    with pytest.raises(InputError, match=r"config.toml must be TOML"):
        claim(small(), tmp_path)


@pytest.mark.parametrize("place", ["file/below", "file"])
def test_a_place_that_cannot_be_written(tmp_path, place):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(
        InputError, match=r"workdir must be a folder that can be written; got .*file.*: give another with --workdir"
    ):
        claim(small(), tmp_path / place)


def test_broken_record(tmp_path):
    WorkDir(tmp_path).record.write_text('{"run_id": ')
    with pytest.raises(InputError, match=r"record.json must be a record of this program"):
        WorkDir(tmp_path).read_record()

"""Other people's volumes through the commands: what no change of a single file shows. The faults are in `tests/fuzz`."""

import numpy as np
import pytest

from gmmae.config.schema import changed
from gmmae.config.toml import to_toml
from gmmae.workloads import segmentation
from tests import volume_folders as folders
from tests.commands import last_refusal, lines_of, rows, run_gmmae
from tests.small import SMALL_SEGMENTATION


@pytest.fixture(scope="module")
def config():
    return changed(SMALL_SEGMENTATION, data__source="cubes", stop__max_epochs=1, model__features=(2,))


@pytest.fixture
def train(config, tmp_path):
    """The words that train a tiny U-Net for one epoch on a folder."""
    file = tmp_path / "unet.toml"
    file.write_text(to_toml(config))
    return lambda root, *more: ("train", "--config", file, "--data.root", root, "--workdir", tmp_path / "run", *more)


def test_a_mask_must_be_where_crops_are_taken(train, tmp_path, capsys):
    def spoil(made, number):
        return made._replace(row=[*made.row[:2], *folders.world((0, 0, 0)), 4.0]) if number == 1 else made

    root = folders.write(tmp_path / "cubes", spoil=spoil)
    assert "n1.mha (nodules.csv line 3): the mask" in last_refusal(capsys, *train(root, "--data.jitter", 0))
    error = last_refusal(capsys, *train(root, "--data.shape", 4, "--data.jitter", 9))
    assert "n0.mha (nodules.csv line 2)" in error
    assert "data.jitter = 9" in error


def test_an_undefined_dice_is_left_out_of_the_mean(train, tmp_path, capsys):
    """Nothing is found in slices that are even, in the middle of the window: each mean is over the others."""
    root = folders.write(
        tmp_path / "cubes", spoil=lambda made, i: made._replace(values=np.where(made.mask, 200 + i, -300).astype(np.int16))
    )
    assert run_gmmae(*train(root, "--data.empty-slices", "--data.validation", 2)) == 0
    (line,) = [line for line in lines_of(capsys, "evaluate", tmp_path / "run") if line.startswith("dice ")]
    each = np.array([float(row["dice"]) for row in rows(tmp_path / "run" / "evaluation.csv")])
    (row,) = rows(tmp_path / "run" / "history.csv")
    assert 0 < np.isnan(each).sum() < len(each)
    assert [float(row["val_dice"]), float(line.split()[1])] == pytest.approx([np.nanmean(each)] * 2, rel=1e-5)


def test_segmentation_keeps_values_of_another_unit(config, tmp_path):
    sound = folders.write(tmp_path / "sound")
    shares = folders.write(tmp_path / "shares", spoil=lambda made, _: made._replace(values=(made.values + 1000) / 1400.0))
    images = []
    for root, window in ((sound, (-1000.0, 400.0)), (shares, (0.0, 1.0))):
        settings = changed(config, data__root=str(root), data__window=window).settings
        samples = segmentation.build(settings).load().validation
        images.append(segmentation.crop_and_augment(settings.data, samples, None)[0])
    np.testing.assert_allclose(*images, atol=1e-6)  # other units round otherwise


def test_scans_taken_for_cubes_and_cubes_taken_for_scans_are_told_their_source(train, tmp_path, capsys):
    folders.write_luna16(tmp_path / "scans")
    folders.write_cubes(tmp_path / "cubes")
    for more in ((), ("--data.csv", "annotations.csv")):
        words = train(tmp_path / "scans", *more, "--config", "luna16_nodules")  # the last one counts
        assert "--data.source luna16" in last_refusal(capsys, *words)
    error = last_refusal(capsys, *train(tmp_path / "scans"))
    assert "LUNA16" in error
    assert "--data.source luna16" not in error  # which a segmentation does not know
    words = ("data", "prepare", "--data.source", "luna16", "--data.root", tmp_path / "cubes")
    assert "--data.source cubes" in last_refusal(capsys, *words)

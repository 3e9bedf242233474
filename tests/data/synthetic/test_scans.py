"""Synthetic scans, whose annotations are exact."""

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data.synthetic import scans as synthetic_scans
from gmmae.data.synthetic.phantom import draw_phantom
from gmmae.data.synthetic.scans import Frame, synthetic_scan, write_luna16_folder
from gmmae.data.volumes import DataError
from gmmae.system.errors import InputError
from tests.commands import rows
from tests.smooth_ball import smooth

FRAME = Frame((40, 96, 112), np.array([2.0, 1.1, 0.9]))


def write(root, scans=2, nodules=(2, 2), seed=0, frame=FRAME, compressed=False):
    """Writes a folder. Returns its annotations and its images by series UID."""
    count = write_luna16_folder(root, scans, nodules, seed, frame, compressed)
    annotations = rows(root / "annotations.csv")
    assert len(annotations) == count
    return annotations, {path.stem: sitk.ReadImage(path) for path in root.glob("subset*/*.mhd")}


def test_annotated_centres_are_exact(tmp_path, monkeypatch):
    # The centre of mass of a smooth ball is its centre.
    monkeypatch.setattr(
        synthetic_scans, "draw_phantom", lambda rng, largest_mm: smooth(draw_phantom(rng, "solid", largest_mm), 8.0)
    )
    monkeypatch.setattr(synthetic_scans, "VESSELS_PER_LITRE", 0)
    annotations, images = write(tmp_path)
    assert (len(images), len(annotations)) == (2, 4)
    assert {image.GetSpacing() for image in images.values()} == {(0.9, 1.1, 2.0)}
    for row in annotations:
        assert row["category"] == "solid"
        image = images[row["seriesuid"]]
        index = image.TransformPhysicalPointToContinuousIndex([float(row[f"coord{axis}"]) for axis in "XYZ"])[::-1]
        places = np.ix_(*((np.arange(n) - m) * step for n, m, step in zip(FRAME.shape, index, FRAME.spacing_mm, strict=True)))
        contrast = np.clip(sitk.GetArrayFromImage(image) + 700.0, 0, None)
        contrast *= sum(map(np.square, places)) < 5.5**2
        # Noise and the cut at 5.5 mm leave a tenth of a voxel; half a voxel would be 0.45, 0.55 and 1 mm.
        np.testing.assert_allclose([(contrast * place).sum() / contrast.sum() for place in places], 0, atol=0.15)


def test_a_scan_depends_on_seed_and_index_only_and_may_have_no_nodule(tmp_path):
    annotations, images = write(tmp_path / "six", scans=6, nodules=(0, 1))
    assert 0 < len(annotations) < len(images) == 6
    assert all(len(uid) <= 64 and uid.startswith("2.25.") and uid[5:].isdigit() for uid in images)
    assert sorted(path.name for path in (tmp_path / "six").glob("subset*")) == [f"subset{i}" for i in range(6)]
    one, alone = write(tmp_path / "one", scans=1, nodules=(0, 1), compressed=True)
    assert annotations[: len(one)] == one
    for uid, image in alone.items():
        np.testing.assert_array_equal(sitk.GetArrayFromImage(images[uid]), sitk.GetArrayFromImage(image))
    assert images.keys().isdisjoint(write(tmp_path / "other", scans=1, seed=1)[1])


def test_a_scan_is_a_chest():
    middle = synthetic_scan(np.random.default_rng(0), FRAME, 0)[0][20]
    assert np.median(middle[:10, :10]) == pytest.approx(-1000, abs=20)
    assert middle[46:50, 54:58].mean() == pytest.approx(40, abs=25)  # between the lungs
    assert -900 < np.median(middle[38:58, 25:35]) < -800
    assert 5 < np.diff(middle[40:50, 54:58].astype(float), axis=0).std() < 60  # noise


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"frame": FRAME._replace(shape=(9, 9, 9))}, DataError, "half-axis must be at least 5 mm; got 1.46"),
        ({"nodules": (99, 99)}, DataError, "room for its nodules; got 99"),
        ({}, InputError, "FOLDER must be a folder that is new or empty"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, arguments, error, text):
    if not arguments:
        (tmp_path / "mine").write_text("")
    before = list(tmp_path.iterdir())
    with pytest.raises(error, match=text):
        write(tmp_path / "new" if arguments else tmp_path, **arguments)
    assert list(tmp_path.iterdir()) == before

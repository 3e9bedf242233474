import csv

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data.synthetic import scans as synthetic_scans
from gmmae.data.synthetic.phantom import CATEGORIES, draw_phantom
from gmmae.data.synthetic.scans import Frame, synthetic_scan, write_luna16_folder
from gmmae.data.volumes import DataError
from gmmae.system.errors import InputError
from tests.smooth_ball import smooth

FRAME = Frame((40, 96, 112), np.array([2.0, 1.1, 0.9]))


def write(root, scans=2, nodules=(2, 2), seed=0, frame=FRAME, compressed=False):
    return write_luna16_folder(root, scans, nodules, seed, frame, compressed)


def read(root):
    return {path.stem: sitk.ReadImage(path) for path in root.glob("subset*/*.mhd")}


@pytest.mark.parametrize(("compressed", "suffix"), [(False, ".raw"), (True, ".zraw")])
def test_world_coordinates_lead_to_the_nodules(tmp_path, compressed, suffix):
    annotations = write(tmp_path, compressed=compressed)
    images = read(tmp_path)
    assert (len(images), len(annotations)) == (2, 4)
    assert {path.suffix for path in tmp_path.glob("subset*/*")} == {".mhd", suffix}
    for image in images.values():
        assert image.GetSpacing() == pytest.approx((0.9, 1.1, 2.0))
        assert image.GetSize() == FRAME.shape[::-1]
        assert image.GetPixelID() == sitk.sitkInt16
        assert 0 not in image.GetOrigin()
    for row in annotations:
        image = images[row.seriesuid]
        x, y, z = (round(i) for i in image.TransformPhysicalPointToContinuousIndex(row.world_mm))
        cube = sitk.GetArrayFromImage(image)[z - 1 : z + 2, y - 1 : y + 2, x - 1 : x + 2]
        # Lung is at most -800 HU and noise 35 HU, less in the mean of 27 voxels; the faintest ground glass is brighter.
        assert cube.mean() > -760, row
    with (tmp_path / "annotations.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["seriesuid", "coordX", "coordY", "coordZ", "diameter_mm", "category"]
    for row, annotation in zip(rows, annotations, strict=True):
        assert (row["seriesuid"], row["category"]) == (annotation.seriesuid, annotation.category)
        numbers = tuple(float(row[name]) for name in ("coordX", "coordY", "coordZ", "diameter_mm"))
        assert numbers == (*annotation.world_mm, annotation.diameter_mm)
    assert {row.category for row in annotations} <= set(CATEGORIES)


def test_annotated_centres_are_exact(tmp_path, monkeypatch):
    # The centre of mass of a smooth ball is its centre.
    monkeypatch.setattr(
        synthetic_scans, "draw_phantom", lambda rng, largest_mm: smooth(draw_phantom(rng, "solid", largest_mm), 8.0)
    )
    monkeypatch.setattr(synthetic_scans, "VESSELS_PER_LITRE", 0)
    annotations = write(tmp_path)
    images = read(tmp_path)
    assert len(annotations) == 4
    for row in annotations:
        image = images[row.seriesuid]
        middle = image.TransformPhysicalPointToContinuousIndex(row.world_mm)[::-1]
        z, y, x = ((np.arange(n) - m) * step for n, m, step in zip(FRAME.shape, middle, FRAME.spacing_mm, strict=True))
        near = z[:, None, None] ** 2 + y[:, None] ** 2 + x**2 < 5.5**2
        contrast = np.where(near, np.clip(sitk.GetArrayFromImage(image) + 700.0, 0, None), 0)
        mass = contrast.sum()
        centre = [(contrast.sum((1, 2)) @ z) / mass, (contrast.sum((0, 2)) @ y) / mass, (contrast.sum((0, 1)) @ x) / mass]
        # Noise and the cut at 5.5 mm leave a tenth of a voxel; half a voxel would be 0.45, 0.55 and 1 mm.
        np.testing.assert_allclose(centre, 0, atol=0.15)


def test_scans_without_nodules_are_written_and_have_no_row(tmp_path):
    annotations = write(tmp_path, scans=6, nodules=(0, 1))
    images = read(tmp_path)
    assert len(images) == 6
    assert all(len(uid) <= 64 and uid.startswith("2.25.") and uid[5:].isdigit() for uid in images)
    assert 0 < len(annotations) < 6
    assert (tmp_path / "annotations.csv").read_text().count("\n") == 1 + len(annotations)
    assert sorted(path.name for path in tmp_path.glob("subset*")) == [f"subset{i}" for i in range(6)]


def test_a_scan_depends_on_seed_and_index_only(tmp_path):
    both = write(tmp_path / "both")
    one = write(tmp_path / "one", scans=1, compressed=True)
    other = write(tmp_path / "other", scans=1, seed=1)
    assert both[: len(one)] == one
    assert {row.seriesuid for row in both}.isdisjoint(row.seriesuid for row in other)
    uid = one[0].seriesuid
    voxels, alone = [sitk.GetArrayFromImage(read(tmp_path / name)[uid]) for name in ("both", "one")]
    np.testing.assert_array_equal(voxels, alone)


def test_a_scan_is_a_chest():
    volume, _ = synthetic_scan(np.random.default_rng(0), FRAME, 0)
    middle = volume[20]
    assert np.median(middle[:10, :10]) == pytest.approx(-1000, abs=20)
    assert middle[46:50, 54:58].mean() == pytest.approx(40, abs=25)  # between the lungs
    lung = np.median(middle[38:58, 25:35])
    assert -900 < lung < -800
    noise = np.diff(middle[40:50, 54:58].astype(float), axis=0).std()
    assert 5 < noise < 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"frame": FRAME._replace(shape=(9, 9, 9))}, r"at least 5 mm; got 1.46 mm from \(9, 9, 9\) voxels"),
        ({"nodules": (99, 99)}, r"room .*; got 99 in \(40, 96, 112\) voxels .*: lower nodules_per_scan"),
    ],
)
def test_nodules_must_fit_into_a_scan(tmp_path, arguments, message):
    with pytest.raises(DataError, match=message):
        write(tmp_path / "new", **arguments)
    assert not (tmp_path / "new").exists()


def test_a_folder_in_use_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(InputError, match="FOLDER must be a folder that is new or empty"):
        write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]

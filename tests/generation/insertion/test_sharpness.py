"""A nodule takes the blur and the noise of the scan that it is put into."""

import csv

import numpy as np
import pytest
import SimpleITK as sitk
from scipy import ndimage

from gmmae.data.settings import DataConfig
from gmmae.data.volumes import Details, Nodules
from gmmae.generation import folder, grain
from gmmae.generation.grain import Grain
from gmmae.generation.insertion.cubes import as_nodule, resample
from gmmae.generation.insertion.hosts import Grid
from gmmae.generation.insertion.insert import insert
from gmmae.generation.insertion.noise import Noise, draw
from gmmae.generation.insertion.sharpness import EDGE_SHARE, Own, with_blur
from tests import volume_folders
from tests.generation.chests import write_chest

DIAMETER_MM, SIZE, FINER = 12.0, 16, 4
EDGE_MM = 1.25 * DIAMETER_MM
VOXEL_MM = EDGE_MM / SIZE
PIXEL_MM = 0.7


def blurred_ball(blur_mm, step_mm, count):
    """Returns a ball of tissue in lung, blurred within slices, on `count` points along each axis."""
    axis = (np.arange(count) - (count - 1) / 2) * step_mm
    z, y, x = np.meshgrid(axis, axis, axis, indexing="ij")
    hu = np.where(z**2 + y**2 + x**2 < (0.4 * DIAMETER_MM) ** 2, 20.0, -850.0)
    return ndimage.gaussian_filter(hu, (0, blur_mm / step_mm, blur_mm / step_mm), mode="nearest")


def cubes(blur_mm, noise_hu, count=1):
    """Returns equal balls from a scan with this blur, with noise of their own."""
    fine = blurred_ball(blur_mm, VOXEL_MM / FINER, SIZE * FINER)
    hu = fine.reshape(SIZE, FINER, SIZE, FINER, SIZE, FINER).mean((1, 3, 5))
    mask = np.repeat((hu > -415)[None], count, 0).astype(np.uint8)
    rng = np.random.default_rng(0)
    values = np.rint([hu + draw(rng, Noise(noise_hu, blur_mm / VOXEL_MM), hu.shape) for _ in range(count)]).astype(np.int16)
    names = tuple(f"n{i}" for i in range(count))
    edges, diameters = np.full(count, EDGE_MM), np.full(count, DIAMETER_MM)
    return Nodules(
        values, names, names, ("solid",) * count, mask, Details(names, np.zeros((count, 3)), edges, diameters, edges)
    )


def steepness(hu):
    """Returns the steepest change of HU in the middle slice."""
    return np.percentile(np.hypot(*np.gradient(hu[len(hu) // 2])), 99)


@pytest.mark.parametrize("scan_mm", [0.45, 0.7, 1.0])
@pytest.mark.parametrize("own_mm", [0.35, 0.7])
def test_an_edge_goes_a_share_of_the_way_to_the_scans_blur(own_mm, scan_mm):
    ball = cubes(own_mm, 0.0)
    grid = Grid(np.zeros(3), np.diag([PIXEL_MM, PIXEL_MM, PIXEL_MM]), (60, 60, 60))
    changed = with_blur(ball.values[0], VOXEL_MM, Own(0.01, own_mm), PIXEL_MM, scan_mm)
    seen = resample(as_nodule(ball._replace(values=changed[None]), 0), np.full(3, 20.0), grid)
    assert seen is not None
    edge_mm = np.sqrt(own_mm**2 + EDGE_SHARE * (scan_mm**2 - own_mm**2))
    wanted = blurred_ball(edge_mm, PIXEL_MM / FINER, 30 * FINER)[:, FINER // 2 :: FINER, FINER // 2 :: FINER]
    # A cube of voxels of 0.9 mm does not show all that a scan with a blur of 0.35 mm shows.
    assert steepness(seen.hu) == pytest.approx(steepness(wanted), rel=0.1)


def test_its_own_noise_goes_and_the_mean_stays():
    rng = np.random.default_rng(1)
    noise = draw(rng, Noise(60.0, 0.6), (SIZE, SIZE, SIZE))
    changed = with_blur(noise - 850, VOXEL_MM, Own(60.0, 0.6 * VOXEL_MM), PIXEL_MM, 0.6 * VOXEL_MM)
    assert changed.std() < 40
    assert changed.mean() == pytest.approx(noise.mean() - 850, abs=1)


@pytest.fixture(scope="module")
def into_sharp_and_soft(tmp_path_factory):
    """The voxels of noisy nodules of a middling scan, in a sharp scan and in a soft one, and the lines of the record."""
    root = tmp_path_factory.mktemp("sharpness")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gmmae.generation.insertion.insert.SHOWN", 1)
        return {name: inserted(root / name, reach) for name, reach in (("sharp", 0.4), ("soft", 1.2))}


def inserted(root, reach):
    path = write_chest(root / "scans" / "a.mhd", (PIXEL_MM, PIXEL_MM, 2.0), shape=(40, 120, 110), reach_pixels=reach)
    nodules = cubes(0.5, 60.0, 3)
    known = Grain(np.full(3, 60.0), np.full(3, 0.5), np.full(3, 1.0))
    insert(nodules, root / "scans", root / "out", 0, lambda line: None, (3, 3), known)
    label = sitk.GetArrayFromImage(sitk.ReadImage(str(root / "out" / "masks" / "a.nii.gz")))
    hu = sitk.GetArrayFromImage(sitk.ReadImage(str(root / "out" / path.name))).astype(float)
    with (root / "out" / "insertions.csv").open(newline="") as file:
        return hu, label, list(csv.DictReader(file))


def fine_detail(hu, where):
    """Returns the root mean square of second differences within slices, HU."""
    second = np.stack([ndimage.laplace(plane) for plane in hu])
    return float(np.sqrt(np.square(second)[where].mean()))


def test_fine_detail_follows_the_scan(into_sharp_and_soft):
    """Nodules of one scan of 60 HU have more fine detail in a sharp scan than in a soft one."""
    found = {}
    for name, (hu, label, _) in into_sharp_and_soft.items():
        deep = np.stack([ndimage.binary_erosion(plane, iterations=4) for plane in label > 0])
        lung = np.stack([ndimage.binary_erosion(plane < -600, iterations=6) for plane in hu])
        assert deep.sum() > 80
        found[name] = fine_detail(hu, deep), fine_detail(hu, lung), fine_detail(hu, label > 0)
    # A little of the nodule's own noise is left, and more where it is sharpened.
    ratios = [inside / around for inside, around, _ in found.values()]
    assert min(ratios) > 0.9
    assert max(ratios) < 3
    assert found["sharp"][0] > 1.8 * found["soft"][0]
    assert found["sharp"][2] > 1.2 * found["soft"][2]


def test_both_sharpnesses_are_on_record(into_sharp_and_soft):
    for name, blur_mm in (("sharp", 0.7 * np.hypot(0.4, 12**-0.5)), ("soft", 0.7 * np.hypot(1.2, 12**-0.5))):
        rows = into_sharp_and_soft[name][2]
        assert len(rows) == 3
        assert {float(row["sharpness"]) for row in rows} == {round(grain.SHARPNESS_OF_BLUR / 0.5, 3)}
        assert float(rows[0]["scan_sharpness"]) == pytest.approx(grain.SHARPNESS_OF_BLUR / blur_mm, rel=0.1)


def test_nodules_of_unknown_sharpness_keep_theirs_and_are_counted(tmp_path):
    write_chest(tmp_path / "scans" / "a.mhd")
    summary = insert(cubes(0.5, 10.0, 2), tmp_path / "scans", tmp_path / "out", 0, lambda line: None, (2, 2))
    line = "2 nodules kept their own sharpness, because theirs or the scan's could not be measured"
    assert line in summary.lines()
    with (tmp_path / "out" / "insertions.csv").open(newline="") as file:
        assert {row["sharpness"] for row in csv.DictReader(file)} == {""}


def test_a_folders_grain_is_that_on_record_or_else_measured(tmp_path):
    root = volume_folders.write(tmp_path / "made", 3)
    config = DataConfig(source="cubes", root=str(root))
    names = [f"n{i}.mha" for i in range(3)]
    measured = folder.read_grain(config, names)
    assert measured is not None
    np.testing.assert_allclose(measured.noise_hu, 30, rtol=0.3)  # of a few hundred voxels each
    lines = (root / "nodules.csv").read_text().splitlines()
    cells = ["noise_hu,sharpness,slice_mm", "40,5,2", ",,2", "x,-1,2"]
    (root / "nodules.csv").write_text("\n".join(f"{line},{more}" for line, more in zip(lines, cells, strict=True)))
    recorded = folder.read_grain(config, names)
    assert recorded is not None
    np.testing.assert_array_equal(recorded.noise_hu, [40, np.nan, np.nan])
    np.testing.assert_allclose(recorded.sharpness, [5, np.nan, np.nan])
    for mask in (root / "masks").iterdir():
        mask.unlink()
    (root / "nodules.csv").write_text("\n".join(lines))
    assert folder.read_grain(config, names) is None

import matplotlib.image
import numpy as np
import pytest

from gmmae.figures.slices import contact_sheet, nodule_slices

WINDOW = (-1000.0, 400.0)
ORANGE = np.array([0xE6, 0x9F, 0x00]) / 255


def orange(path):
    return int((np.abs(matplotlib.image.imread(path)[..., :3] - ORANGE).max(-1) < 0.1).sum())


@pytest.mark.parametrize("samples", [1, 2, 7, 450])
def test_the_contact_sheet_shows_every_central_slice_once(tmp_path, samples):
    # Black cubes with one white central slice: the white area counts them.
    hu = np.full((samples, 16, 16, 16), -1000, np.int16)
    hu[:, 8] = 0
    grey = (0 + 1000) / 1400
    path = contact_sheet(tmp_path / "sheet.png", hu, np.zeros(samples), WINDOW)
    image = matplotlib.image.imread(path)[..., 0]
    cells = (np.abs(image - grey) < 0.02).sum()
    one = contact_sheet(
        tmp_path / "half.png",
        np.where(np.arange(samples)[:, None, None, None] < 1, hu, -1000).astype(np.int16),
        np.zeros(samples),
        WINDOW,
    )
    single = (np.abs(matplotlib.image.imread(one)[..., 0] - grey) < 0.02).sum()
    # Edges of cells are blurred by less than a tenth of a cell's area.
    assert cells / single == pytest.approx(min(samples, 400), rel=0.1)
    assert orange(path) == 0


def test_padded_nodules_have_a_frame(tmp_path):
    hu = np.zeros((6, 16, 16, 16), np.int16)
    few = orange(contact_sheet(tmp_path / "few.png", hu, np.array([0, 0.2, 0, 0, 0, 0]), WINDOW))
    more = orange(contact_sheet(tmp_path / "more.png", hu, np.array([0, 0.2, 0.2, 0, 0.2, 0]), WINDOW))
    assert few > 0
    assert more == pytest.approx(3 * few, rel=0.2)


def test_a_mask_is_outlined_where_there_is_one(tmp_path):
    hu = np.zeros((16, 16, 16), np.int16)
    mask = np.zeros((16, 16, 16), np.uint8)
    assert orange(nodule_slices(tmp_path / "a.png", hu, None, WINDOW, 20.0, "a")) == 0
    assert orange(nodule_slices(tmp_path / "b.png", hu, mask, WINDOW, 20.0, "b")) == 0
    mask[5:11, 5:11, 5:11] = 1
    assert orange(nodule_slices(tmp_path / "c.png", hu, mask, WINDOW, 20.0, "c")) > 100

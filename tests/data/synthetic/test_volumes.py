import hashlib

import numpy as np
import pytest

from gmmae.data.synthetic.phantom import draw_phantom
from gmmae.data.synthetic.volumes import EDGE_DIAMETERS, nodule_cube, synthetic_nodules
from tests.smooth_ball import smooth


@pytest.fixture(scope="module")
def nodules():
    return synthetic_nodules(samples=300, shape=(16, 16, 16), seed=0)


def test_golden():
    """The data set of a seed is part of the interface: change it knowingly, and say so in the change log."""
    nodules = synthetic_nodules(samples=8, shape=(16, 16, 16), seed=0)
    assert nodules.masks is not None
    little_endian = nodules.values.astype("<i2").tobytes() + nodules.masks.tobytes()
    assert hashlib.sha256(little_endian).hexdigest() == "868087ef516c7334f4a0252b2471fe37d990506f416f5f8917dd27d47bc731eb"


def test_a_sample_depends_on_the_seed_and_its_number_only(nodules):
    few, other = (synthetic_nodules(samples=4, shape=(16, 16, 16), seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(few.values, nodules.values[:4])
    np.testing.assert_array_equal(few.masks, nodules.masks[:4])
    for a in range(4):
        assert (nodules.values[a] != other.values[a]).mean() > 0.9
        assert (nodules.values[a] != nodules.values[a + 1]).mean() > 0.9
    assert nodules.groups == nodules.names
    assert len(set(nodules.names)) == 300
    fine = synthetic_nodules(samples=20, shape=(32, 32, 32), seed=0)
    assert fine.masks is not None
    assert fine.categories == nodules.categories[:20]
    shares = nodules.masks[:20].mean((1, 2, 3))
    np.testing.assert_allclose(fine.masks.mean((1, 2, 3)), shares, rtol=0.1)  # half a voxel of a radius of 6


def test_masks_fill_a_good_part_of_the_cube_around_its_centre(nodules):
    shares = nodules.masks.mean((1, 2, 3))
    assert 0.04 < shares.min() < shares.max() < 0.6
    assert nodules.masks[:, 8, 8, 8].mean() > 0.95  # a wall or the offset may take the central voxel
    places = np.ix_(*[np.arange(16) - 7.5] * 3)
    centres = np.stack([(nodules.masks * place).mean((1, 2, 3)) / shares for place in places])
    assert np.abs(centres).max() < 5
    assert np.abs(centres.mean(1)).max() < 0.3


@pytest.mark.parametrize(("category", "contrast_hu"), [("solid", 200), ("part-solid", 90), ("ground-glass", 40)])
def test_a_nodule_is_brighter_than_the_lung_around_it(category, contrast_hu):
    """Draws 20 of each category. Blur leaves a third of the contrast of a nodule of 3 mm."""
    for index in range(20):
        rng = np.random.default_rng([3, index])
        phantom = draw_phantom(rng, category)._replace(tubes=(), wall=None)
        hu, mask = nodule_cube(phantom, (16, 16, 16), rng)
        assert hu[mask].mean() - hu[~mask].mean() > contrast_hu


def test_the_edge_is_a_fixed_multiple_of_the_diameter():
    """A smooth ball of that diameter fills π/6 / EDGE_DIAMETERS³ of the cube."""
    rng = np.random.default_rng(0)
    phantom = draw_phantom(rng)
    _, mask = nodule_cube(smooth(phantom, phantom.diameter_mm), (32, 32, 32), rng)
    assert mask.mean() == pytest.approx(np.pi / 6 / EDGE_DIAMETERS**3, rel=0.02)

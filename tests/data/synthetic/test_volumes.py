import hashlib

import numpy as np
import pytest

from gmmae.data.synthetic.phantom import draw_phantom
from gmmae.data.synthetic.volumes import EDGE_DIAMETERS, nodule_cube, synthetic_nodules
from tests.smooth_ball import smooth


def made(samples, size=16, seed=0):
    """Some nodules, and their masks."""
    nodules = synthetic_nodules(samples, (size, size, size), seed)
    assert nodules.masks is not None
    return nodules, nodules.masks


def test_golden():
    """The data set of a seed is part of the interface: change it knowingly, and say so in the change log."""
    nodules, masks = made(8)
    little_endian = nodules.values.astype("<i2").tobytes() + masks.tobytes()
    assert hashlib.sha256(little_endian).hexdigest() == "868087ef516c7334f4a0252b2471fe37d990506f416f5f8917dd27d47bc731eb"


def test_a_sample_depends_on_the_seed_and_its_number_only():
    nodules, masks = made(300)
    few, other, fine = (made(*which) for which in ((4,), (4, 16, 1), (20, 32)))
    np.testing.assert_array_equal(few[0].values, nodules.values[:4])
    np.testing.assert_array_equal(few[1], masks[:4])
    for another in (other[0].values, nodules.values[1:5]):
        assert (another != nodules.values[:4]).mean((1, 2, 3)).min() > 0.9
    assert nodules.groups == nodules.names
    assert len(set(nodules.names)) == 300
    assert fine[0].categories == nodules.categories[:20]
    np.testing.assert_allclose(fine[1].mean((1, 2, 3)), masks[:20].mean((1, 2, 3)), rtol=0.1)  # half a voxel of a radius of 6


@pytest.mark.parametrize(("category", "contrast_hu"), [("solid", 200), ("part-solid", 90), ("ground-glass", 40)])
def test_a_nodule_is_brighter_than_the_lung_around_it(category, contrast_hu):
    """Draws 20 of each category. Blur leaves a third of the contrast of a nodule of 3 mm."""
    for index in range(20):
        rng = np.random.default_rng([3, index])
        hu, mask = nodule_cube(draw_phantom(rng, category)._replace(tubes=(), wall=None), (16, 16, 16), rng)
        assert hu[mask].mean() - hu[~mask].mean() > contrast_hu


def test_the_edge_is_a_fixed_multiple_of_the_diameter():
    """A smooth ball of that diameter fills π/6 / EDGE_DIAMETERS³ of the cube."""
    rng = np.random.default_rng(0)
    phantom = draw_phantom(rng)
    _, mask = nodule_cube(smooth(phantom, phantom.diameter_mm), (32, 32, 32), rng)
    assert mask.mean() == pytest.approx(np.pi / 6 / EDGE_DIAMETERS**3, rel=0.02)

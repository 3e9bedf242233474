import hashlib

import numpy as np
import pytest

from gmmae.data.synthetic.phantom import CATEGORIES, draw_phantom
from gmmae.data.synthetic.volumes import EDGE_DIAMETERS, nodule_cube, synthetic_nodules
from gmmae.data.volumes import to_density
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


def test_contract(nodules):
    assert nodules.values.shape == nodules.masks.shape == (300, 16, 16, 16)
    assert nodules.values.dtype == np.int16
    assert nodules.masks.dtype == np.uint8
    assert nodules.names[12] == "synthetic-000012"
    assert nodules.groups == nodules.names
    assert len(set(nodules.names)) == 300
    assert nodules.values.min() >= -1024
    assert nodules.values.max() <= 3071


def test_a_sample_depends_on_the_seed_and_its_number_only(nodules):
    few, other = (synthetic_nodules(samples=4, shape=(16, 16, 16), seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(few.values, nodules.values[:4])
    np.testing.assert_array_equal(few.masks, nodules.masks[:4])
    assert few.categories == nodules.categories[:4]
    for a in range(4):
        assert (nodules.values[a] != other.values[a]).mean() > 0.9
        assert (nodules.values[a] != nodules.values[a + 1]).mean() > 0.9


def test_the_same_nodules_at_another_size(nodules):
    fine = synthetic_nodules(samples=20, shape=(32, 32, 32), seed=0)
    assert fine.masks is not None
    assert fine.categories == nodules.categories[:20]
    shares = nodules.masks[:20].mean((1, 2, 3))
    np.testing.assert_allclose(fine.masks.mean((1, 2, 3)), shares, rtol=0.1)  # half a voxel of a radius of 6


def test_categories_have_their_proportions(nodules):
    for category, kind in CATEGORIES.items():
        deviation = np.sqrt(kind.share * (1 - kind.share) / 300)
        assert nodules.categories.count(category) / 300 == pytest.approx(kind.share, abs=4 * deviation)


def test_masks_fill_a_good_part_of_the_cube_around_its_centre(nodules):
    shares = nodules.masks.mean((1, 2, 3))
    assert shares.min() > 0.04
    assert shares.max() < 0.6
    assert nodules.masks[:, 8, 8, 8].mean() > 0.95  # a wall or the offset may take the central voxel
    line = np.arange(16) - 7.5
    for axis in range(3):
        others = tuple(a + 1 for a in range(3) if a != axis)
        centres = (nodules.masks.sum(others) * line).sum(1) / nodules.masks.sum((1, 2, 3))
        assert np.abs(centres).max() < 5
        assert np.abs(centres.mean()) < 0.3


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


def test_there_is_something_to_learn(nodules):
    """Always predicting the mean volume costs about as much as on LUNA16's nodules (2.5e-3), and no volume is empty."""
    assert (np.clip((nodules.values + 1000.0) / 1400, 0, 1).mean((1, 2, 3)) > 1 / 16).all()
    density = to_density(nodules.values, (-1000.0, 400.0))
    logarithm = np.log1p(density)
    error = np.mean(np.square(np.log1p(density.mean(0)) - logarithm))
    assert 1.5e-3 < error < 5e-3

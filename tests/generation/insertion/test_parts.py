"""The parts of an insertion, each against what is known of it."""

import numpy as np
import pytest

from gmmae.generation.insertion import noise
from gmmae.generation.insertion.blending import blend_weight, dense, poisson
from gmmae.generation.insertion.cubes import SYMMETRIES, as_nodule, band_mm, resample
from gmmae.generation.insertion.hosts import read_host
from gmmae.generation.insertion.lungs import find_lungs
from gmmae.generation.insertion.noise import Noise
from tests.generation.chests import tissue_balls, write_chest

SPACING = np.array([2.0, 1.0, 1.0])


BALL = as_nodule(tissue_balls(1), 0)
"""A ball of 8 mm, 0.3 mm above and 0.2 mm before its cube's centre."""


def shells(shape=(14, 24, 24)):
    """Distance from the surface of a ball of 5 mm in the middle of a region."""
    offsets = (np.indices(shape) - np.array(shape)[:, None, None, None] // 2) * SPACING[:, None, None, None]
    return np.sqrt((offsets**2).sum(0)) - 5.0


def test_blending_leaves_what_is_beyond_its_band_and_makes_no_halo():
    rng = np.random.default_rng(0)
    distance = shells()
    host = -850 + rng.normal(0, 25, distance.shape)
    host[:, :, :9] = 40  # a wall that the band touches
    nodule = np.where(distance < 0, 20.0, -780.0)
    blended = poisson(host, nodule, distance, 2.0, SPACING)
    assert np.array_equal(blended[distance >= 2.0], host[distance >= 2.0])
    assert (blended >= np.minimum(host, nodule) - 1e-9).all()
    assert (blended <= np.maximum(host, nodule) + 1e-9).all()
    assert np.abs(blended - 20.0)[distance < -2.0].max() < 5.0
    assert np.allclose(poisson(host, host, distance, 2.0, SPACING), host)


def test_blending_passes_to_another_level_of_lung_more_smoothly_than_weights_do():
    distance = shells()
    host, nodule = np.full(distance.shape, -900.0), np.where(distance < 0, 20.0, -700.0)
    weighted = host + blend_weight(distance, 2.0) * (nodule - host)
    assert weighted[7, 12, 17:20] == pytest.approx([-700, -800, -900])  # half in the middle of the band
    blended = poisson(host, nodule, distance, 2.0, SPACING)
    crossing = (distance[7, 12, 1:-1] >= 1.0) & (distance[7, 12, 1:-1] <= 2.0)
    bends = [np.abs(np.diff(volume[7, 12], 2))[crossing].max() for volume in (blended, weighted)]
    assert bends[0] < 0.7 * bends[1]


def test_what_is_much_denser_than_the_nodule_stays():
    host = np.full((1, 9, 9), -800.0)
    host[:, :, 6:] = 100.0
    share = dense(host, np.full(host.shape, -500.0))
    assert (share[:, :, 8] == 1).all()
    assert (share[:, :, :5] == 0).all()


def test_measured_noise_is_the_noise_that_was_drawn(tmp_path):
    host = read_host("a", write_chest(tmp_path / "a.mhd", lung=True))
    lungs = find_lungs(host)
    quiet = host._replace(voxels=np.full(host.voxels.shape, -850.0))
    for hu, reach in ((15.0, 0.5), (40.0, 1.0)):
        drawn = noise.draw(np.random.default_rng(1), Noise(hu, reach), host.voxels.shape)
        assert drawn.std() == pytest.approx(hu, rel=0.03)
        measured = noise.measure(quiet._replace(voxels=quiet.voxels + drawn), lungs)
        assert measured.hu == pytest.approx(hu, rel=0.08)
        assert measured.reach_pixels == pytest.approx(reach, abs=0.08)
        own = noise.within(quiet.voxels + drawn, lungs.depth_at(np.moveaxis(np.indices(host.voxels.shape), 0, -1)) > 5, reach)
        assert own == pytest.approx(hu, rel=0.08)
    assert noise.within(quiet.voxels, np.zeros(host.voxels.shape, bool), 0.5) is None


def test_lungs_are_found_where_a_scan_crops_them_and_nothing_else_is(tmp_path):
    host = read_host("a", write_chest(tmp_path / "a.mhd", shape=(40, 100, 90)))
    voxels = np.pad(host.voxels, ((0, 0), (24, 0), (0, 0)), constant_values=-1000)  # the air around the patient
    voxels[:, 4:14] = -900  # a mattress
    voxels[:, 32:37, :10] = -1000  # a trachea
    voxels[20:24, 64:68, 40:44] = 30  # a vessel
    lungs = find_lungs(host._replace(voxels=voxels))
    inside = lungs.depth_at(np.moveaxis(np.indices(voxels.shape), 0, -1)) > 0
    z, y, x = (np.arange(n) / n for n in host.voxels.shape)
    truth = ((z[:, None, None] - 0.8) / 0.6) ** 2 + ((y[:, None] - 0.5) / 0.45) ** 2 + ((x - 0.5) / 0.45) ** 2 < 1
    found = inside[:, 24:]
    assert 2 * (found & truth).sum() / (found.sum() + truth.sum()) > 0.95
    assert found[22, 42, 42]
    assert not inside[:, :24].any()
    # The scan's upper end is no pleura: the lung goes on there.
    assert lungs.depth_at(np.array([39.0, 74, 45])) > 30


@pytest.mark.parametrize("direction", [(1, 1, 1), (-1, -1, 1)])
@pytest.mark.parametrize("spacing", [(0.7, 0.7, 2.5), (1.0, 1.0, 2.0), (0.8, 0.8, 0.8)])
def test_a_scan_sees_a_nodule_at_its_place_and_of_its_size(tmp_path, direction, spacing):
    host = read_host("a", write_chest(tmp_path / "a.mhd", spacing, direction))
    centre = host.grid.world(np.array([20.3, 40.6, 36.1]))
    seen = resample(BALL, centre, host.grid)
    assert seen is not None
    first = np.array([part.start for part in seen.region])
    inside = np.argwhere(seen.distance_mm < 0)
    found = host.grid.world(inside + first).mean(0)
    assert np.linalg.norm(found - (centre + np.array([0.0, -0.2, 0.3]))) < 0.5
    volume = len(inside) * float(np.prod(host.grid.spacing_mm))
    assert volume == pytest.approx(4 / 3 * np.pi * (0.42 * 8) ** 3, rel=0.2)
    assert seen.hu[seen.distance_mm < -1.5].mean() == pytest.approx(20, abs=30)
    edges = seen.distance_mm[[0, -1]].min(), seen.distance_mm[:, [0, -1]].min(), seen.distance_mm[:, :, [0, -1]].min()
    assert min(edges) > band_mm(host.grid)
    assert resample(BALL, host.grid.world(np.array([1.0, 40, 36])), host.grid) is None


def test_thick_slices_blur_a_nodule_across_them(tmp_path):
    host = read_host("a", write_chest(tmp_path / "a.mhd", (1.0, 1.0, 5.0)))
    seen = resample(BALL, host.grid.world(np.array([20.0, 40, 36])), host.grid)
    assert seen is not None
    middle = [seen.hu[20 + slices - seen.region[0].start].max() for slices in (-1, 0, 1)]
    # The ball reaches from -3.06 to 3.66 mm, so it has 0.56 and 1.16 of the 5 mm of the slices beside the middle one.
    assert middle == pytest.approx([-800 + 820 * 0.56 / 5, 20, -800 + 820 * 1.16 / 5], abs=60)


def test_turns_are_the_16_symmetries_that_keep_slices_and_turn_directions_alike():
    assert len(set(SYMMETRIES)) == 16
    assert all(abs(symmetry.of_vector(np.array([1.0, 0, 0]))[0]) == 1 for symmetry in SYMMETRIES)
    values = np.zeros((5, 5, 5))
    direction = np.array([0.0, 2.0, -1.0])
    values[tuple((direction + 2).astype(int))] = 1
    for symmetry in SYMMETRIES:
        assert np.array_equal(np.argwhere(symmetry.of_array(values))[0] - 2, symmetry.of_vector(direction))
    assert str(SYMMETRIES[0]) == "+z+y+x"

"""The parts of an insertion, each against what is known of it."""

import numpy as np
import pytest

from gmmae.data.extraction.scan import read_scan
from gmmae.generation.insertion import noise
from gmmae.generation.insertion.blending import poisson
from gmmae.generation.insertion.cubes import TURNS, as_nodule, resample
from gmmae.generation.insertion.geometry import spacing_mm, to_index, to_world
from gmmae.generation.insertion.lungs import find_lungs
from gmmae.generation.judging.novelty import symmetries
from tests.generation.chests import lung_voxels, tissue_balls, write_chest

BALL = as_nodule(tissue_balls(1), 0)
"""A ball of 8 mm, 0.3 mm above and 0.2 mm before its cube's centre."""


def grid(tmp_path, *geometry):
    """The frame of a scan, and the region of all its voxels."""
    scan, voxels = read_scan(write_chest(tmp_path / "a.mhd", *geometry))
    return scan.frame, tuple(map(slice, voxels.shape))


def test_blending_leaves_what_is_beyond_its_band_and_makes_no_halo():
    spacing, shape = np.array([2.0, 1.0, 1.0]), (14, 24, 24)
    distance = np.linalg.norm((np.moveaxis(np.indices(shape), 0, -1) - [7, 12, 12]) * spacing, axis=-1) - 5.0
    host = -850 + np.random.default_rng(0).normal(0, 25, shape)
    host[:, :, :9] = 40  # a wall that the band touches
    nodule = np.where(distance < 0, 20.0, -780.0)
    blended = poisson(host, nodule, distance, 2.0, spacing)
    assert np.array_equal(blended[distance >= 2.0], host[distance >= 2.0])
    assert (blended >= np.minimum(host, nodule) - 1e-9).all()
    assert (blended <= np.maximum(host, nodule) + 1e-9).all()
    assert np.abs(blended - 20.0)[distance < -2.0].max() < 5.0
    assert np.allclose(poisson(host, host, distance, 2.0, spacing), host)
    # A wall at the end of the band, in the nodule's own cube.
    walled = poisson(host, np.where(distance > 1, 40.0, nodule), distance, 2.0, spacing)
    assert np.abs(walled - host)[(distance > 1) & (host < -500)].max() < 400


def test_measured_noise_is_the_noise_that_was_drawn(tmp_path):
    scan, voxels = read_scan(write_chest(tmp_path / "a.mhd"))
    lungs = find_lungs(voxels, scan.frame)
    depth = lungs.depth_at(np.moveaxis(np.indices(voxels.shape), 0, -1))
    for strength, reach in ((15.0, 0.5), (40.0, 1.0)):
        drawn = strength * noise.draw(np.random.default_rng(1), reach, voxels.shape)
        assert drawn.std() == pytest.approx(strength, rel=0.03)
        measured = noise.measure(drawn - 850, lungs)
        assert measured.sd_hu == pytest.approx(strength, rel=0.08)
        assert measured.reach_pixels == pytest.approx(reach, abs=0.08)
        assert noise.measure_inside(drawn - 850, 4 - depth, reach) == pytest.approx(strength, rel=0.08)
    assert noise.measure_inside(drawn, np.ones(voxels.shape), 0.5) is None


def test_lungs_are_found_where_a_scan_crops_them_and_nothing_else_is(tmp_path):
    scan, inner = read_scan(write_chest(tmp_path / "a.mhd", shape=(40, 100, 90)))
    voxels = np.pad(inner, ((0, 0), (24, 0), (0, 0)), constant_values=-1000)  # the air around the patient
    voxels[:, 4:14] = -900  # a mattress
    voxels[:, 32:37, :10] = -1000  # a trachea
    voxels[20:24, 64:68, 40:44] = 30  # a vessel
    lungs = find_lungs(voxels, scan.frame)
    inside = lungs.depth_at(np.moveaxis(np.indices(voxels.shape), 0, -1)) > 0
    truth, found = lung_voxels(inner.shape), inside[:, 24:]
    assert 2 * (found & truth).sum() / (found.sum() + truth.sum()) > 0.95
    assert found[22, 42, 42]
    assert not inside[:, :24].any()
    assert lungs.depth_at(np.array([39.0, 74, 45])) > 30  # the scan's upper end is no pleura: the lung goes on there


@pytest.mark.parametrize("direction", [(1, 1, 1), (-1, -1, 1)])
@pytest.mark.parametrize("spacing", [(0.7, 0.7, 2.5), (1.0, 1.0, 2.0), (0.8, 0.8, 0.8)])
def test_a_scan_sees_a_nodule_at_its_place_and_of_its_size(tmp_path, direction, spacing):
    frame, whole = grid(tmp_path, spacing, direction)
    index = np.array([20.3, 40.6, 36.1])
    centre = to_world(frame, index)
    assert np.allclose(to_index(frame, centre), index)
    hu, distance_mm = resample(BALL, TURNS[0], centre, frame, whole)
    inside = np.argwhere(distance_mm < 0)
    assert np.linalg.norm(to_world(frame, inside).mean(0) - (centre + np.array([0.0, -0.2, 0.3]))) < 0.5
    assert len(inside) * float(np.prod(spacing_mm(frame))) == pytest.approx(4 / 3 * np.pi * (0.42 * 8) ** 3, rel=0.2)
    assert hu[distance_mm < -1.5].mean() == pytest.approx(20, abs=30)


def test_thick_slices_blur_a_nodule_across_them(tmp_path):
    frame, whole = grid(tmp_path, (1.0, 1.0, 5.0))
    hu, _ = resample(BALL, TURNS[0], to_world(frame, np.array([20.0, 40, 36])), frame, whole)
    # The ball reaches from -3.06 to 3.66 mm, so it has 0.56 and 1.16 of the 5 mm of the slices beside the middle one.
    assert hu[19:22].max((1, 2)) == pytest.approx([-800 + 820 * 0.56 / 5, 20, -800 + 820 * 1.16 / 5], abs=60)


def test_turns_are_the_16_symmetries_that_keep_slices(tmp_path):
    frame, _ = grid(tmp_path, (1.0, 1.0, 1.0))
    region = (slice(14, 27), slice(34, 47), slice(30, 43))
    noise = BALL._replace(distance_mm=np.random.default_rng(0).normal(size=BALL.hu.shape))
    turned = [resample(noise, turn, to_world(frame, np.array([20, 40, 36])), frame, region)[1] for turn in TURNS]
    expected = np.concatenate([*symmetries(turned[0][None])])
    order = [np.abs(expected - cube).max((1, 2, 3)).argmin() for cube in turned]
    assert sorted(order) == list(range(16))
    np.testing.assert_allclose(turned, expected[order], atol=1e-9)

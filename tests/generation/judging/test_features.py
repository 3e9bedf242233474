"""Features of volumes that can be worked out manually: balls, boxes, gradients, planes and noise."""

import numpy as np
import pytest

from gmmae.generation.judging.features import CT_WINDOW, NAMES, as_hu, features, intensity_masks, radii


def one(values, mask=None):
    """The features of one volume, by name."""
    return dict(zip(NAMES, features(values[None], None if mask is None else mask[None], CT_WINDOW)[0], strict=True))


def volume(mask, inside=100, outside=-900):
    return np.where(mask, inside, outside).astype(np.int16)


BALL = radii((24, 24, 24)) * 12 <= 8.0


def test_a_ball():
    found = one(volume(BALL), BALL)
    assert found["volume"] == pytest.approx(4 / 3 * np.pi * 8**3 / 24**3, rel=0.02)  # a ball of voxels is not quite round
    assert found["sphericity"] == pytest.approx(1, abs=0.03)  # its area is found to 3 %
    assert found["elongation"] == pytest.approx(1, abs=1e-6)
    assert found["flatness"] == pytest.approx(1, abs=1e-6)
    assert found["gyration"] == pytest.approx(1, abs=0.01)
    assert found["off_centre"] == pytest.approx(0, abs=1e-12)
    assert found["inside_mean"] == 100
    assert found["inside_sd"] == 0


def test_a_box_beside_the_centre():
    mask = np.zeros((20, 20, 20), bool)
    mask[4:8, 6:14, 2:18] = True  # 4 × 8 × 16, its centre 4 voxels above the volume's
    found = one(volume(mask), mask)
    assert found["volume"] == 4 * 8 * 16 / 20**3
    # An edge of n voxels has the variance n²/12, so the axes are as the edges.
    assert found["elongation"] == pytest.approx(8 / 16, rel=1e-6)
    assert found["flatness"] == pytest.approx(4 / 16, rel=1e-6)
    radius = np.cbrt(3 * 512 / (4 * np.pi))
    assert found["gyration"] == pytest.approx(np.sqrt((4**2 + 8**2 + 16**2) / 12 / 0.6) / radius, rel=1e-6)
    assert found["off_centre"] == pytest.approx(4 / 10, rel=1e-6)
    # π^(1/3) (6 · 512)^(2/3) / 448; the smoothing that makes an area of voxels rounds edges, which makes it a tenth smaller
    # here.
    assert found["sphericity"] == pytest.approx(np.cbrt(np.pi) * 3072 ** (2 / 3) / 448, rel=0.15)
    assert found["share_air"] == pytest.approx(1 - 512 / 8000)
    assert found["share_ground_glass"] == 0


def test_hu_moments_percentiles_and_shells():
    rng = np.random.default_rng(0)
    values = rng.integers(-1000, 400, (16, 16, 16)).astype(np.int16)
    found = one(values)
    assert found["hu_mean"] == pytest.approx(values.mean(), rel=1e-5)
    assert found["hu_sd"] == pytest.approx(values.std(), rel=1e-5)
    assert found["hu_p5"] == pytest.approx(np.percentile(values, 5))
    assert found["share_ground_glass"] == np.mean((values >= -750) & (values < -300))
    shells = volume(radii((16, 16, 16)) < 0.25)
    found = one(shells)
    assert (found["radial_1"], found["radial_2"], found["radial_4"]) == (100, -900, -900)
    assert one(np.where(values > 0, 3000, -2000).astype(np.int16))["hu_p95"] == 400  # clipped to the window


def test_a_ramp_has_its_slope_and_no_laplacian():
    ramp = np.broadcast_to(np.arange(16) * 20 - 900, (16, 16, 16)).astype(np.int16)
    found = one(ramp)
    assert found["gradient"] == pytest.approx(20)
    assert found["laplacian"] == pytest.approx(0, abs=1e-3)


def test_waves_are_in_the_band_of_their_frequency():
    """A cosine of amplitude a has the variance a²/2; under a Hann window some leaks into the neighbouring frequencies."""
    x = np.arange(16)
    bands = ("spectrum_low", "spectrum_middle", "spectrum_high")
    for period, band in ((16, 0), (4, 1), (2.3, 2)):
        wave = np.broadcast_to(100 * np.cos(2 * np.pi * x / period) - 500, (16, 16, 16))
        found = [one(wave)[name] for name in bands]
        assert np.argmax(found) == band
        assert 10 ** max(found) == pytest.approx(5000, rel=0.25)


def test_grey_levels_of_stripes():
    """Stripes of the lowest and highest grey level along x: of neighbours along x all differ by 7 levels, along y and z
    none.
    """
    stripes = np.broadcast_to(np.where(np.arange(16) % 2, 399, -1000), (16, 16, 16))
    found = one(stripes)
    assert found["grey_contrast"] == pytest.approx(49 / 3)
    assert found["grey_homogeneity"] == pytest.approx(2 / 3 + 1 / 3 / 50)
    assert found["grey_correlation"] == pytest.approx(1 / 3)  # 1 along two axes, -1 along the third
    assert found["grey_entropy"] == pytest.approx(-(2 / 3) * np.log(1 / 3) - (1 / 3) * np.log(1 / 6))


def test_without_a_mask_the_middle_between_dark_and_bright_is_the_threshold():
    for inside, outside in ((50, -900), (-600, -850)):
        np.testing.assert_array_equal(intensity_masks(volume(BALL, inside, outside)[None].astype(np.float32))[0], BALL)
    values = volume(BALL)
    assert one(values) == one(values, BALL)
    assert one(values, np.zeros_like(BALL)) == one(values, BALL)  # a nodule whose mask is not known


def test_each_volume_has_its_features_whatever_the_block(monkeypatch):
    values = np.random.default_rng(1).integers(-1000, 400, (5, 8, 8, 8)).astype(np.int16)
    together = features(values, None, CT_WINDOW)
    monkeypatch.setattr("gmmae.generation.judging.features.BLOCK", 2)
    np.testing.assert_allclose(features(values, None, CT_WINDOW), together, rtol=1e-5)
    assert np.isfinite(features(np.full((1, 8, 8, 8), -1000, np.int16), None, CT_WINDOW)).all()  # a volume of air


def test_volumes_in_another_unit_have_the_features_of_the_same_volumes_in_hu():
    values = np.random.default_rng(2).integers(-1100, 500, (5, 8, 8, 8)).astype(np.float32)
    known = features(values, None, CT_WINDOW)
    for low, high in ((0.0, 1.0), (0.0, 255.0), (-3.0, 1e6)):
        own = low + (values + 1000) * (high - low) / 1400
        np.testing.assert_allclose(features(as_hu(own, (low, high)), None, CT_WINDOW), known, rtol=1e-3, atol=1e-3)  # float32

"""Features of volumes that can be worked out manually: balls, boxes, gradients, planes and noise."""

import numpy as np
import pytest

from gmmae.generation.judging.features import CT_WINDOW, NAMES, features


def one(values, mask=None):
    """The features of one volume, by name."""
    return dict(zip(NAMES, features(values[None], None if mask is None else mask[None], CT_WINDOW)[0], strict=True))


def volume(mask, inside=100, outside=-900):
    return np.where(mask, inside, outside).astype(np.int16)


def along_x(values):
    return np.broadcast_to(values, (16, 16, 16))


def alike(found, tolerance=1e-6, **expected):
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=tolerance, abs=1e-6)


def ball(size, radius):
    return np.linalg.norm(np.indices((size,) * 3) - (size - 1) / 2, axis=0) <= radius


BALL = ball(24, 8)


def test_a_ball():
    found = one(volume(BALL), BALL)
    alike(found, elongation=1, flatness=1, off_centre=0, inside_mean=100, inside_sd=0)
    alike(found, 0.02, volume=4 / 3 * np.pi * 8**3 / 24**3)  # a ball of voxels is not quite round
    alike(found, 0.01, gyration=1)
    alike(found, 0.03, sphericity=1)
    assert np.isfinite([*one(volume(ball(4, 1))).values()]).all()


def test_a_box_beside_the_centre():
    mask = np.zeros((20, 20, 20), bool)
    mask[4:8, 6:14, 2:18] = True  # 4 × 8 × 16, its centre 4 voxels above the volume's
    found = one(volume(mask), mask)
    # An edge of n voxels has the variance n²/12, so the axes are as the edges.
    gyration = np.sqrt((4**2 + 8**2 + 16**2) / 12 / 0.6) / np.cbrt(3 * 512 / (4 * np.pi))
    alike(found, volume=512 / 8000, elongation=8 / 16, flatness=4 / 16, gyration=gyration, off_centre=4 / 10)
    alike(found, share_air=1 - 512 / 8000, share_ground_glass=0)
    # π^(1/3) (6 · 512)^(2/3) / 448; the smoothing that makes an area of voxels rounds edges, which makes it a tenth smaller
    # here.
    alike(found, 0.15, sphericity=np.cbrt(np.pi) * 3072 ** (2 / 3) / 448)


def test_hu_moments_percentiles_and_shells():
    values = np.random.default_rng(0).integers(-1000, 400, (16, 16, 16)).astype(np.int16)
    ground_glass = np.mean((values >= -750) & (values < -300))
    percentile = np.percentile(values, 5)
    alike(one(values), 1e-5, hu_mean=values.mean(), hu_sd=values.std(), hu_p5=percentile, share_ground_glass=ground_glass)
    alike(one(volume(ball(16, 2))), radial_1=100, radial_2=-900, radial_4=-900)
    alike(one(np.where(values > 0, 3000, -2000).astype(np.int16)), hu_p95=400)  # clipped to the window


def test_a_ramp_has_its_slope_and_no_laplacian():
    found = one(along_x(np.arange(16) * 20 - 900))
    alike(found, gradient=20)
    assert found["laplacian"] == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(("period", "band"), [(16, "low"), (4, "middle"), (2.3, "high")])
def test_waves_are_in_the_band_of_their_frequency(period, band):
    """A cosine of amplitude a has the variance a²/2; under a Hann window some leaks into the neighbouring frequencies."""
    wave = along_x(100 * np.cos(2 * np.pi * np.arange(16) / period) - 500)
    assert 10 ** one(wave)[f"spectrum_{band}"] == pytest.approx(5000, rel=0.25)


def test_grey_levels_of_stripes():
    """Stripes of the lowest and highest grey level along x: of neighbours along x all differ by 7 levels, along y and z
    none.
    """
    found = one(along_x([-1000, 399] * 8))
    # The correlation is 1 along two axes, and -1 along the third.
    alike(found, grey_contrast=49 / 3, grey_homogeneity=2 / 3 + 1 / 3 / 50, grey_correlation=1 / 3)
    alike(found, grey_entropy=-(2 / 3) * np.log(1 / 3) - (1 / 3) * np.log(1 / 6))


def test_without_a_mask_the_middle_between_dark_and_bright_is_the_threshold():
    for inside, outside in ((50, -900), (-600, -850)):
        values = volume(BALL, inside, outside)
        assert one(values) == one(values, np.zeros_like(BALL)) == one(values, BALL)
    assert np.isfinite([*one(np.full((8, 8, 8), -1000, np.int16)).values()]).all()  # a volume of air

"""Noise and blur of simulated scans, and spectra that are imposed."""

import numpy as np
import pytest
from scipy import ndimage

from gmmae.data.volumes import NativeNodule
from gmmae.generation import grain
from gmmae.generation.insertion.noise import Noise, draw
from gmmae.generation.texture import grey_levels


def scan(hu, reach, spacing_mm=(2.0, 0.7, 0.7)):
    """Returns a nodule in lung with noise of a known strength and reach."""
    values = np.full((6, 48, 48), -850.0)
    mask = np.zeros(values.shape, np.uint8)
    mask[2:4, 20:28, 20:28] = 1
    values[mask > 0] = 0
    values += draw(np.random.default_rng(0), Noise(hu, reach), values.shape)
    return NativeNodule("a", "a", "solid", values, mask, (2.5, 24.0, 24.0), spacing_mm, 6.0)


def test_noise_and_blur_are_those_of_the_simulated_scans_and_little_lung_gives_none():
    full = scan(25.0, 0.8)._replace(values=np.zeros((6, 48, 48)))
    found = grain.measure([scan(25.0, 0.8), scan(50.0, 0.5), full])
    # 48 x 48 x 6 voxels with a correlation give the deviation to a few per cent, the reach to about a tenth.
    np.testing.assert_allclose(found.noise_hu, [25, 50, np.nan], rtol=0.06)
    np.testing.assert_allclose(found.blur_mm, 0.7 * np.hypot([0.8, 0.5, np.nan], 12**-0.5), rtol=0.12)
    assert found.slice_mm.tolist() == [2, 2, 2]


def test_a_tenth_of_the_contrast_is_left_at_the_sharpness():
    known = grain.Grain(np.array([1.0]), np.array([0.5]), np.array([1.0]))
    per_mm = known.sharpness[0] / 10
    assert np.exp(-2 * np.pi**2 * 0.5**2 * per_mm**2) == pytest.approx(0.1)


def test_imposed_spectra_and_grey_levels_are_nearly_those_asked_for():
    rng = np.random.default_rng(0)
    shape = ndimage.gaussian_filter(rng.normal(size=(2, 5, 16, 16, 16)), (0, 0, 3, 3, 3)) * 20
    smooth, rough = shape + rng.normal(size=shape.shape) * np.array([0.05, 0.25]).reshape(2, 1, 1, 1, 1)
    inside = shape[0] > 0
    levels = grey_levels(rough, inside)
    wanted = grain.spectra(rough)
    made = grain.with_spectra(smooth, wanted, levels, inside)
    np.testing.assert_array_equal(grey_levels(made, inside), levels)
    before, after = (np.abs(np.log(grain.spectra(some) / wanted))[:, grain.fine_bands()].mean() for some in (smooth, made))
    assert after < 0.15 * before
    coarse = np.setdiff1d(np.arange(wanted.shape[1]), grain.fine_bands())
    finer = grain.spectra(smooth)
    finer[:, grain.fine_bands()] *= 4
    kept = grain.with_spectra(smooth, finer, grey_levels(smooth, inside), inside, grain.fine_bands())
    # The grey levels stay, and so the sum of all energies. The coarse bands lose what the fine ones gain.
    np.testing.assert_allclose(grain.spectra(kept)[:, coarse].sum(1), finer[:, coarse].sum(1), rtol=0.1)
    np.testing.assert_allclose(
        grain.spectra(kept)[:, grain.fine_bands()].mean(1), finer[:, grain.fine_bands()].mean(1), rtol=0.3
    )

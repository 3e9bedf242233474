"""Spectra that are imposed."""

import numpy as np
from scipy import ndimage

from gmmae.generation import grain
from gmmae.generation.texture import grey_levels

FINE = np.flatnonzero(np.add.outer(*[np.array((0.0, *grain.EDGES)) >= 0.5] * 2).ravel())
"""Bands that lie in the upper half of the frequencies of an axis."""


def test_imposed_spectra_and_grey_levels_are_nearly_those_asked_for():
    rng = np.random.default_rng(0)
    shape = ndimage.gaussian_filter(rng.normal(size=(2, 5, 16, 16, 16)), (0, 0, 3, 3, 3)) * 20
    smooth, rough = shape + rng.normal(size=shape.shape) * np.array([0.05, 0.25]).reshape(2, 1, 1, 1, 1)
    inside = shape[0] > 0
    levels = grey_levels(rough, inside)
    wanted = grain.spectra(rough)
    made = grain.with_spectra(smooth, wanted, levels, inside)
    np.testing.assert_array_equal(grey_levels(made, inside), levels)
    before, after = (np.abs(np.log(grain.spectra(some) / wanted))[:, FINE].mean() for some in (smooth, made))
    assert after < 0.15 * before

"""The share of a scan's blur in edges, on balls that a known share of it has blurred."""

import numpy as np
import pytest
from scipy import ndimage

from experiments.edges import slopes
from gmmae.data.volumes import Details, Nodules
from gmmae.generation.grain import Grain

SAMPLES, SIZE = 120, 16


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_the_slope_is_the_share_of_the_blur(share):
    rng = np.random.default_rng(0)
    diameter, blur = rng.uniform(6, 20, SAMPLES), rng.uniform(0.4, 1.0, SAMPLES)
    edge = 1.25 * diameter
    values = []
    for i in range(SAMPLES):
        # Texture on a grid that is fine beside the blur, so that energy has no zeros as that of a smooth ball has.
        pixels = np.sqrt(share) * blur[i] / (edge[i] / SIZE)
        values.append(-300 + 150 * ndimage.gaussian_filter(rng.normal(size=(SIZE,) * 3), (0, pixels, pixels), mode="reflect"))
    names = tuple(f"n{i}" for i in range(SAMPLES))
    details = Details(names, np.zeros((SAMPLES, 3)), edge, diameter, np.zeros(SAMPLES))
    nodules = Nodules(np.rint(values).astype(np.int16), names, names, ("solid",) * SAMPLES, None, details)
    found = slopes(nodules, Grain(rng.uniform(20, 60, SAMPLES), blur, np.ones(SAMPLES)))
    for middle, slope, error in found:
        if 0.3 < middle < 0.6:
            # White noise of 150 HU in a few hundred coefficients, and rounding to 1 HU.
            assert slope == pytest.approx(share, abs=max(0.1, 4 * error))

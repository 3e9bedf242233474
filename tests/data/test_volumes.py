import numpy as np
import pytest

from gmmae.data.volumes import from_density, masses, to_density

WINDOW = (-1000.0, 400.0)


def cubes(ndim):
    return np.random.default_rng(ndim).integers(-1200, 700, (3, *[8] * ndim)).astype(np.int16)


@pytest.mark.parametrize("shape", [(8,), (4, 6), (4, 8, 5)])
def test_a_density_integrates_to_one(shape):
    values = np.random.default_rng(0).uniform(-0.2, 1.2, (3, *shape)).astype(np.float32)
    means = to_density(values, (0.0, 1.0)).reshape(3, -1).mean(1)
    np.testing.assert_allclose(means, 0.5 ** len(shape), rtol=1e-6)  # float32


def test_a_density_against_a_volume_worked_by_hand():
    hu = np.array([[-1000, -300, 400, 2000]], np.int16)  # windowed to 0, 1/2, 1, 1; voxels of length 2/4
    np.testing.assert_allclose(to_density(hu, WINDOW), [[0, 0.4, 0.8, 0.8]], rtol=1e-7)


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_a_density_and_its_mass_give_the_values_that_the_window_left(ndim):
    values = cubes(ndim)
    back = from_density(to_density(values, WINDOW), masses(values, WINDOW), WINDOW)
    np.testing.assert_allclose(back, values.clip(*WINDOW), atol=1e-3)  # densities are float32

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.models.autoencoder import autoencoder
from gmmae.models.mixture import density, grid, head_planes
from gmmae.models.settings import ModelConfig
from gmmae.training.records import read_history
from tests.launched import python


def fitted(size, **changes):
    """A small model, three volumes, and initial parameters."""
    module: Any = autoencoder(ModelConfig(filters=(3,), kernels=(3,), latent_dim=6, components=4, **changes), len(size))
    volumes = jax.random.uniform(jax.random.key(len(size)), (3, *size))
    return module, volumes, jax.jit(module.init)(jax.random.key(0), volumes)


def parameter_count(config, ndim):
    shapes = jax.eval_shape(autoencoder(config, ndim).init, jax.random.key(0), jnp.zeros((1, *[16] * ndim)))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def test_the_default_model_has_the_parameters_worked_by_hand():
    """(7³ + 1) 32 + (5³ 32 + 1) 32 + (3³ 32 + 1) 32; 16 → 10 → 6 → 4 voxels: (4³ 32 + 1) 128; and (128 + 1) 500."""
    assert parameter_count(ModelConfig(), 3) == 11_008 + 128_032 + 27_680 + 262_272 + 64_500 == 493_492


@pytest.mark.parametrize("n", [1, 2, 3])
def test_parameters_follow_the_number_of_axes_and_the_padding(n):
    config = ModelConfig(filters=(4, 5), kernels=(3, 2), latent_dim=6, components=7, padding="SAME")
    expected = (3**n + 1) * 4 + (2**n * 4 + 1) * 5 + (16**n * 5 + 1) * 6 + (6 + 1) * 7 * (n**2 + 3 * n + 2) // 2
    assert parameter_count(config, n) == expected


@pytest.mark.parametrize(
    "size", [(5, 7), *(pytest.param(size, marks=pytest.mark.slow) for size in [(6,), (6, 6, 6), (4, 7, 5)])]
)
def test_the_output_is_the_density_of_the_mixture_at_the_voxel_centres(size):
    n = len(size)
    module, volumes, params = fitted(size)
    output = jax.jit(module.apply)(params, volumes)
    mixture = jax.jit(lambda p, v: module.apply(p, v, method=module.mixture))(params, volumes)
    assert output.shape == volumes.shape
    assert mixture.means.shape == (3, 4, n)
    assert mixture.covariances.shape == (3, 4, n, n)
    # The same float32 numbers, compiled apart: the exponent's rounding, see gmmae.models.mixture.
    np.testing.assert_allclose(output.reshape(3, -1), density(mixture, grid(size, n)), rtol=1e-4)


@pytest.mark.parametrize("size", [(12, 6), pytest.param((4, 12, 6), marks=pytest.mark.slow)])
def test_ranges_of_the_mixture_are_those_of_the_options_with_the_floor_in_voxels_of_each_axis(size):
    module, volumes, params = fitted(size, covariance="paper", rho="tanh", rho_limit=0.25, sigma_floor=0.75)
    low = [jnp.full(planes * 4, -1e4 * (name in ("sigma", "rho"))) for name, planes in head_planes(len(size)).items()]
    params["params"]["heads"]["bias"] = jnp.concatenate(low)  # all the way down
    covariances = module.apply(params, volumes, method=module.mixture).covariances
    sigma = 0.75 * 2 / np.array(size[::-1])  # along x, y, z
    correlations = np.full(2 * (len(size),), -0.25) + 1.25 * np.eye(len(size))
    expected = np.broadcast_to(np.outer(sigma, sigma) * correlations, covariances.shape)
    np.testing.assert_allclose(covariances, expected, rtol=1e-5, atol=1e-6)  # float32


def test_a_gradient_reaches_every_parameter():
    module, volumes, params = fitted((6, 6, 6))
    gradient = jax.jit(jax.grad(lambda p: jnp.square(module.apply(p, volumes) - volumes).mean()))(params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert jnp.isfinite(leaf).all(), path
        assert jnp.abs(leaf).max() > 0, path


WITHOUT_TRITON = """
import sys
sys.modules["jax.experimental.pallas.triton"] = None  # an import of it fails
from gmmae.models import autoencoder
assert autoencoder.loss_kernel is None
from gmmae.cli.main import main
sys.argv = ["gmmae", "train", *sys.argv[1:]]
main()
"""


@pytest.mark.slow
def test_a_run_trains_where_jax_has_parted_with_pallas_triton(tmp_path):
    options = "--data.shape 8 --data.samples 28 --data.validation 6 --model.filters 3 --model.kernels 3 --stop.max-epochs 1"
    options += f" --optim.batch-size 8 --parallel.devices 1 --workdir {tmp_path}/run"
    ended = python("-c", WITHOUT_TRITON, *options.split())
    assert ended.returncode == 0, ended.stderr
    assert len(read_history(tmp_path / "run" / "history.csv")) == 1

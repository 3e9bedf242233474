import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.models.kernels.axis_aligned import density_on_grid
from gmmae.models.lattice import REACH, LatticeDecoder, lattice_autoencoder, mask_losses
from gmmae.models.settings import ModelConfig


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_components_stay_in_reach_of_their_cells_and_above_the_floor_whatever_the_latent_vector_says(scale):
    decoder: Any = LatticeDecoder((8, 8, 8), ModelConfig(lattice_size=2, sigma_floor=0.25))
    params = jax.jit(decoder.init)(jax.random.key(0), jnp.zeros((1, 5)))

    def total(latent):
        mixture = decoder.apply(params, latent).mixture
        return density_on_grid(mixture, (8, 8, 8)).sum(), mixture

    latent = scale * jax.random.normal(jax.random.key(1), (4, 5))
    (_, mixture), slope = jax.jit(jax.value_and_grad(total, has_aux=True))(latent)
    middles = np.repeat(list(itertools.product([-0.5, 0.5], repeat=3)), 2, axis=0)
    assert np.abs(mixture.means - middles).max() <= REACH * 0.5 + 1e-6
    assert mixture.sigma.min() >= 0.25 * 2 / 8
    assert np.isfinite(slope).all()
    np.testing.assert_allclose(np.exp(mixture.log_weights).sum(-1), 1, rtol=1e-5)


def test_no_latent_unit_is_dead_at_the_start():
    config = ModelConfig(filters=(3,), kernels=(3,), latent_dim=16, decoder="lattice", lattice_size=2, activation="relu")
    module, volumes = lattice_autoencoder(config, (8, 8, 8)), jax.random.uniform(jax.random.key(0), (20, 8, 8, 8)) / 4
    encode = partial(module.init_with_output, method=lambda module, volumes: module.encoder(volumes))
    encoded, _ = jax.jit(encode)(jax.random.key(1), volumes)
    spread = np.asarray(encoded).std(0)
    assert spread.min() > 0.05 * spread.max()


def test_the_loss_of_a_mask_is_cross_entropy_and_zero_where_no_mask_is_known():
    found = mask_losses(jnp.array([[2.0, -1.0], [5.0, 5.0]]), jnp.array([[1.0, 0.0], [0.0, 0.0]]))
    np.testing.assert_allclose(found, [(np.log1p(np.exp(-2)) + np.log1p(np.exp(-1))) / 2, 0], rtol=1e-6)

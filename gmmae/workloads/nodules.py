"""Workloads: model, data and loss put together, by name. What trains them knows none of the three."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from gmmae.base.config import Config
from gmmae.data.sources import Dataset, load
from gmmae.models.autoencoder import MixtureAutoencoder
from gmmae.models.encoder import Encoder, Heads
from gmmae.models.losses import LOSSES, Losses, Params
from gmmae.models.mixture import Mixture


class Description(NamedTuple):
    """What the model says of some volumes."""

    mixture: Mixture
    density: Float[Array, "samples *volume"]


class Workload(NamedTuple):
    """What is trained.

    Attributes:
      data: training and validation targets, on the host.
      init: `key -> params`.
      losses: `(params, volumes) -> one loss a volume`.
      describe: `(params, volumes) -> Description`.
    """

    data: Dataset
    init: Callable[[Array], Params]
    losses: Losses
    describe: Callable[[Params, Array], Description]


def model(config: Config) -> MixtureAutoencoder:
    """The autoencoder that a configuration asks for."""
    c = config.model
    tf32 = config.precision == "tf32"
    encoder = Encoder(c.filters, c.kernels, c.padding, c.activation, c.latent_dim, tf32)
    heads = Heads(c.components, config.data.ndim, tf32)
    return MixtureAutoencoder(encoder, heads, c.covariance, c.rho, c.sigma_floor, c.rho_limit)


def nodules(config: Config) -> Workload:
    """The Gaussian-mixture autoencoder of nodules: input and target are the same density.

    Raises:
      DataError: the data cannot be used.
    """
    data = load(config.data)
    module = model(config)
    loss = LOSSES[config.loss]

    def init(key: Array) -> Params:
        return module.init(key, jnp.asarray(data.train.density[:1]))

    def losses(params: Params, volumes: Array) -> Array:
        density = _density(module, params, volumes)
        with jax.named_scope("loss"):
            return loss(density, volumes)

    def describe(params: Params, volumes: Array) -> Description:
        mixture = module.apply(params, volumes, method=module.mixture)
        assert isinstance(mixture, Mixture)
        return Description(mixture, _density(module, params, volumes))

    return Workload(data, init, losses, describe)


def _density(module: nn.Module, params: Params, volumes: Array) -> Array:
    density = module.apply(params, volumes)
    assert isinstance(density, jax.Array)
    return density


WORKLOADS: dict[str, Callable[[Config], Workload]] = {"nodules": nodules}

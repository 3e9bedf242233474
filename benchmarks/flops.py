"""Floating-point operations of a training step by formula, as the mathematics needs them.

A product and its addition count two. Gradients cost as much as the forward pass for the parameters, and again for the input;
the first convolution needs none of its input.
"""

from gmmae.config.schema import Config, flatten
from gmmae.system.errors import InputError

ADAM = 14
"""Operations a parameter: two moments (3 and 4), their corrections (2), root, sum, quotient, scaling, update."""
ELEMENT = 3
"""Operations a component and voxel besides the matrix products: exponential, its sum, the gradient's product with it."""


def convolution(batch: int, out: int, kernel: int, channels: int, filters: int) -> int:
    """Returns the operations of a forward convolution, for volumes of out³ after a kernel of kernel³.

    >>> convolution(batch=1, out=2, kernel=3, channels=1, filters=1)
    432
    """
    return 2 * batch * out**3 * kernel**3 * channels * filters


def uncounted(config: Config) -> str:
    """Returns the reason why a configuration's operations have no formula here, or ""."""
    has = dict(flatten(config))
    wanted = {"workload": "nodules", "data.ndim": 3, "model.padding": "VALID", "model.decoder": "dense"}
    for key, value in wanted.items():
        if has[key] != value:
            return f"operations are counted for {key} = {value!r} only; got {has[key]!r}"
    return "" if isinstance(has["data.shape"], int) else f"operations are counted for equal edges only; got {has['data.shape']}"


def counted(config: Config) -> Config:
    """Returns a configuration whose operations have a formula here.

    Raises:
      InputError: they are not.
    """
    if reason := uncounted(config):
        raise InputError(f"{reason}: choose another configuration")
    return config


def of_step(config: Config) -> dict[str, int]:
    """Returns the operations of each part of a training step, by the names in `breakdown`.

    Convolutions are VALID and have three dimensions.
    """
    model, batch, size = config.settings.model, config.optim.batch_size, config.settings.data.shape
    channels = (1, *model.filters)
    found, edge = {}, size
    parameters = 0
    for i, kernel in enumerate(model.kernels):
        edge -= kernel - 1
        found[f"convolution {i + 1}"] = (3 if i else 2) * convolution(batch, edge, kernel, channels[i], channels[i + 1])
        parameters += channels[i + 1] * (kernel**3 * channels[i] + 1)
    flat, numbers = edge**3 * channels[-1], 10 * model.components
    found["dense"] = 3 * 2 * batch * model.latent_dim * (flat + numbers)
    parameters += model.latent_dim * (flat + 1) + numbers * (model.latent_dim + 1)
    found["density and loss"] = batch * model.components * size**3 * (2 * 2 * 10 + ELEMENT)
    found["optimiser"] = ADAM * parameters
    return found

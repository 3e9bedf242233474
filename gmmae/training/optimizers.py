"""optax's optimisers, whose `update` has the argument `learning_rate`, so that one program serves all schedules."""

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from gmmae.config.schema import OptimConfig


def make(optim: OptimConfig) -> optax.GradientTransformationExtraArgs:
    """The optimiser of a configuration or a strategy's stage.

    A weight decay of all parameters is added to the gradient, as in torch.optim, or with adamw and lamb to Adam's step
    (Loshchilov and Hutter, arXiv:1711.05101; You et al., arXiv:1904.00962). LARS's momentum is of steps with their learning
    rate.
    """
    decay = [optax.add_decayed_weights(optim.weight_decay_rate)] if optim.weight_decay_rate else []
    adam = optax.scale_by_adam(optim.beta1, optim.beta2, optim.epsilon)
    after: list[optax.GradientTransformation] = []
    match optim.name:
        case "adam":
            parts = [*decay, adam]
        case "adamw":
            parts = [adam, *decay]
        case "lamb":
            parts = [adam, *decay, optax.scale_by_trust_ratio()]
        case "sgd":
            parts = decay or [optax.identity()]
        case "momentum" | "nesterov":
            parts = [*decay, optax.trace(optim.momentum, nesterov=optim.name == "nesterov")]
        case "lars":
            # The factor on the ratio of a layer's norms is that of You et al. (arXiv:1708.03888).
            parts = [*decay, optax.scale_by_trust_ratio(trust_coefficient=0.001)]
            after = [optax.trace(optim.momentum)]
    clip = [optax.clip_by_global_norm(optim.clip_norm)] if optim.clip_norm is not None else []
    direction = _chain(*parts)

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None, **extra_args: ArrayLike
    ) -> tuple[optax.Updates, optax.OptState]:
        rate = jnp.asarray(extra_args["learning_rate"])
        updates, state = direction.update(updates, state, params)
        return jax.tree.map(lambda leaf: -rate * leaf, updates), state

    return _chain(*clip, optax.GradientTransformationExtraArgs(direction.init, update), *after)


def _chain(first: optax.GradientTransformation, *others: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """The state of a part alone is in no tuple."""
    return optax.chain(first, *others) if others else optax.with_extra_args_support(first)

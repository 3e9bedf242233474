"""The optimisers, from optax. The `update` of each has the argument `learning_rate`, so one program serves all schedules."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from gmmae.scaling.strategies import OptimizerConstants

TRUST_COEFFICIENT = 0.001
"""Factor of LARS on the ratio of a layer's norms (You et al., arXiv:1708.03888)."""


def make(constants: OptimizerConstants, clip_norm: float | None = None) -> optax.GradientTransformationExtraArgs:
    """Returns an optimiser.

    A weight decay is added to the gradient, as torch.optim does. adamw and lamb add it to Adam's step (Loshchilov and Hutter,
    arXiv:1711.05101; You et al., arXiv:1904.00962). It holds for all parameters.

    Args:
      constants: the optimiser's name and its constants.
      clip_norm: largest global norm of the gradient that the optimiser gets; None does not clip.
    """
    optimizer = OPTIMIZERS[constants.name](constants)
    return optax.chain(optax.clip_by_global_norm(clip_norm), optimizer) if clip_norm is not None else optimizer


def _adam_step(constants: OptimizerConstants) -> optax.GradientTransformation:
    return optax.scale_by_adam(constants.beta1, constants.beta2, constants.epsilon)


def _adam(constants: OptimizerConstants) -> optax.GradientTransformationExtraArgs:
    return _at_learning_rate(_decayed(constants, _adam_step(constants)))


def _adamw(constants: OptimizerConstants) -> optax.GradientTransformationExtraArgs:
    return _at_learning_rate(_decayed_step(constants, _adam_step(constants)))


def _lamb(constants: OptimizerConstants) -> optax.GradientTransformationExtraArgs:
    step = _decayed_step(constants, _adam_step(constants))
    return _at_learning_rate(optax.chain(step, optax.scale_by_trust_ratio()))


def _sgd(constants: OptimizerConstants) -> optax.GradientTransformationExtraArgs:
    return _at_learning_rate(_decayed(constants, optax.identity()))


def _momentum(constants: OptimizerConstants) -> optax.GradientTransformationExtraArgs:
    return _at_learning_rate(_decayed(constants, optax.trace(constants.momentum)))


def _nesterov(constants: OptimizerConstants) -> optax.GradientTransformationExtraArgs:
    return _at_learning_rate(_decayed(constants, optax.trace(constants.momentum, nesterov=True)))


def _lars(constants: OptimizerConstants) -> optax.GradientTransformationExtraArgs:
    """Returns LARS. Its momentum is of steps with their learning rate."""
    direction = _decayed(constants, optax.scale_by_trust_ratio(trust_coefficient=TRUST_COEFFICIENT))
    return optax.chain(_at_learning_rate(direction), optax.trace(constants.momentum))


OPTIMIZERS: dict[str, Callable[[OptimizerConstants], optax.GradientTransformationExtraArgs]] = {
    "adam": _adam,
    "sgd": _sgd,
    "momentum": _momentum,
    "nesterov": _nesterov,
    "adamw": _adamw,
    "lamb": _lamb,
    "lars": _lars,
}


def _decayed(constants: OptimizerConstants, direction: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns a direction of the gradient with the weight decay added."""
    decay = constants.weight_decay
    return optax.chain(optax.add_decayed_weights(decay), direction) if decay else direction


def _decayed_step(constants: OptimizerConstants, step: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns a step with the weight decay added to it."""
    decay = constants.weight_decay
    return optax.chain(step, optax.add_decayed_weights(decay)) if decay else step


def _at_learning_rate(direction: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Returns steps against a direction, as long as the argument `learning_rate` says. The state is that of the direction."""

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None, **extra_args: ArrayLike
    ) -> tuple[optax.Updates, optax.OptState]:
        rate = jnp.asarray(extra_args["learning_rate"])
        updates, state = direction.update(updates, state, params)
        return jax.tree.map(lambda leaf: -rate * leaf, updates), state

    return optax.GradientTransformationExtraArgs(direction.init, update)

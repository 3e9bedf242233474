"""One kernel for NVIDIA GPUs from logits to losses and their gradient, without the exponents in memory.

The exponents are samples × components × points: 26 MB for 32 of the paper's volumes, to be written and read forward and
backward. Here one program takes a share of a sample's points and keeps its numbers in registers. It makes the few coefficients
of the exponents from the logits, adds the exponentials, compares with the target, and goes back by the same numbers, so the
gradient is ready with the loss. Validation leaves the gradient out.

The kernel is written in Pallas and compiled by Triton. `interpret` runs the same program on a CPU, slowly, for tests.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from gmmae.models.losses import PointLoss
from gmmae.models.mixture import Ranges, coefficients_from_logits, monomials

PER_THREAD = 8
"""The number of exponents that a thread holds at a time; each has ten sums."""
SHARE = 128
"""The number of points of a program: 32 programs for 16³ voxels, so that a few samples fill a GPU."""


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def losses(
    planes: Float[Array, "samples planes k"],
    targets: Float[Array, "samples *volume"],
    point_loss: PointLoss,
    ranges: Ranges,
    interpret: bool = False,
) -> Float[Array, " samples"]:
    """Returns the mean of `point_loss` over the voxels of each volume, for the mixture of the logits.

    Args:
      planes: logits, in the order of `mixture.head_planes`.
      targets: densities of n = 1, 2 or 3 axes. They are constants: their gradient is zero and is not computed.
      point_loss: differentiable, element by element.
      ranges: as in `mixture.coefficients_from_logits`.
      interpret: whether to run without a GPU.
    """
    return _call(planes, targets, point_loss, ranges, interpret, gradient=False)[0]


def _forward(
    planes: Array, targets: Array, point_loss: PointLoss, ranges: Ranges, interpret: bool
) -> tuple[Array, tuple[Array, Array]]:
    loss, gradient = _call(planes, targets, point_loss, ranges, interpret, gradient=True)
    return loss, (gradient, targets)


def _backward(
    point_loss: PointLoss, ranges: Ranges, interpret: bool, saved: tuple[Array, Array], g: Array
) -> tuple[Array, Array]:
    gradient, targets = saved
    return g[:, None, None] * gradient.sum(1), jnp.zeros_like(targets)


losses.defvjp(_forward, _backward)


def _call(
    planes: Array, targets: Array, point_loss: PointLoss, ranges: Ranges, interpret: bool, gradient: bool
) -> tuple[Array, ...]:
    """Returns the loss of each sample and, with `gradient`, its gradient by blocks of points, which are still to be added."""
    samples, count, components = planes.shape
    points = math.prod(targets.shape[1:])
    width = pl.next_power_of_2(components)
    warps = 1 if width <= 128 else 4
    block = min(max(warps * 32 * PER_THREAD // width, 1), SHARE)
    blocks = pl.cdiv(points, SHARE)
    shapes = [(samples, blocks)] + ([(samples, blocks, count, components)] if gradient else [])
    body = partial(_program, edges=targets.shape[1:], block=block, width=width, point_loss=point_loss, ranges=ranges)
    results = pl.pallas_call(
        body,
        [jax.ShapeDtypeStruct(shape, planes.dtype) for shape in shapes],
        grid=(samples, blocks),
        compiler_params=triton.CompilerParams(num_warps=warps),
        interpret=interpret,
        name="mixture_loss",
    )(planes, targets.reshape(samples, points))
    return results[0].sum(1), *results[1:]


def _program(
    *references: Any,  # noqa: ANN401 Pallas has no public type for them
    edges: tuple[int, ...],
    block: int,
    width: int,
    point_loss: PointLoss,
    ranges: Ranges,
) -> None:
    """Computes one sample's share of points; the references are to whole arrays: logits, targets, losses and gradient."""
    planes, targets, losses, *gradient = references
    sample, share = pl.program_id(0), pl.program_id(1)
    _, count, components = planes.shape
    points = math.prod(edges)
    # Triton needs widths that are powers of two. Beyond the components there is no weight, beyond the points no loss.
    component = jnp.arange(width)
    real = component < components
    logits = [triton.load(planes.at[sample, i, component], mask=real, other=-jnp.inf if i == 0 else 0.0) for i in range(count)]
    with jax.named_scope("density"):
        terms, to_logits = jax.vjp(partial(coefficients_from_logits, ranges=ranges), logits)

    def add(step: Array, sums: tuple[Array, list[Array]]) -> tuple[Array, list[Array]]:
        """The losses of a block, added to those before, and, where wanted, the gradient by the coefficients, point by point."""
        point = share * SHARE + step * block + jnp.arange(block)
        inside = point < points
        powers = monomials(_coordinates(point, edges, terms[0].dtype))
        with jax.named_scope("density"):
            exponent = terms[0][:, None]
            for coefficient, power in zip(terms[1:], powers[1:], strict=True):
                exponent = exponent + coefficient[:, None] * power[None, :]
            exponentials = jnp.exp(exponent)
        target = triton.load(targets.at[sample, point], mask=inside, other=0.0)
        values, to_density = jax.vjp(lambda density: point_loss(density, target), exponentials.sum(0))
        total, slopes = sums
        if gradient:
            (slope,) = to_density(inside.astype(values.dtype) / points)
            steep = exponentials * slope[None, :]
            slopes = [sum_ + steep * x[None, :] for sum_, x in zip(slopes, powers, strict=True)]
        return total + jnp.where(inside, values, 0.0), slopes

    # Points of a block are summed apart, because a sum over them synchronises threads. That happens once, after the last block.
    zeros = [jnp.zeros((width, block), planes.dtype) for _ in range(count if gradient else 0)]
    total, slopes = jax.lax.fori_loop(0, SHARE // block, add, (jnp.zeros(block, planes.dtype), zeros))
    triton.store(losses.at[sample, share], total.sum() / points)
    if gradient:
        (logits,) = to_logits([slope.sum(1) for slope in slopes])
        for i, logit in enumerate(logits):
            triton.store(gradient[0].at[sample, share, i, component], logit, mask=real)


def _coordinates(point: Array, edges: tuple[int, ...], dtype: DTypeLike) -> list[Array]:
    """Returns x, y, z of voxels that are counted in array order, as in `mixture.grid`."""
    coordinates = []
    for edge in reversed(edges):
        coordinates.append((2 * (point % edge) + 1).astype(dtype) / edge - 1)
        point = point // edge
    return coordinates

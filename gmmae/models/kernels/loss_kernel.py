"""One kernel for NVIDIA GPUs from logits to losses and their gradient, without the exponents in memory.

The exponents are samples × components × points: 26 MB for 32 of the paper's volumes, to be written and read forward and
backward. Here one program takes a share of a sample's points and keeps its numbers in registers.

It is Pallas, compiled by Triton. `interpret` runs it on a CPU, slowly, for tests.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from gmmae.models.losses import PointLoss
from gmmae.models.mixture import Ranges, coefficients_from_logits, monomials

PER_THREAD = 8
"""Exponents that a thread holds at a time; each has ten sums."""
SHARE = 128
"""Points of a program: 32 programs for 16³ voxels, so that a few samples fill a GPU."""


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def losses(
    planes: Float[Array, "samples planes k"],
    targets: Float[Array, "samples *volume"],
    point_loss: PointLoss,
    ranges: Ranges,
    interpret: bool = False,
) -> Float[Array, " samples"]:
    """The mean of `point_loss` over the voxels of each target, for the mixture of the logits in order of `mixture.head_planes`.

    Targets of n = 1, 2 or 3 axes are constants: their gradient is zero.
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
    """The gradient is by blocks of points, which are still to be added."""
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
    """References are to whole arrays: logits, targets, losses and gradient."""
    planes, targets, losses, *gradient = references
    sample, share = pl.program_id(0), pl.program_id(1)
    _, count, components = planes.shape
    points = math.prod(edges)
    # Triton needs powers of two. Beyond the components there is no weight, beyond the points no loss.
    component = jnp.arange(width)
    real = component < components
    logits = [triton.load(planes.at[sample, i, component], mask=real, other=-jnp.inf if i == 0 else 0.0) for i in range(count)]
    with jax.named_scope("density"):
        terms, to_logits = jax.vjp(partial(coefficients_from_logits, ranges=ranges), logits)

    def add(step: Array, sums: tuple[Array, list[Array]]) -> tuple[Array, list[Array]]:
        """Adds the losses of a block and the gradient by the coefficients, point by point."""
        point = share * SHARE + step * block + jnp.arange(block)
        inside = point < points
        coordinates, place = [], point  # x, y, z of voxels that are counted in array order, as in `mixture.grid`
        for edge in reversed(edges):
            coordinates.append((2 * (place % edge) + 1).astype(terms[0].dtype) / edge - 1)
            place = place // edge
        powers = monomials(coordinates)
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

    # A sum over the points of a block synchronises threads, so it comes once, after the last block.
    zeros = [jnp.zeros((width, block), planes.dtype) for _ in range(count if gradient else 0)]
    total, slopes = jax.lax.fori_loop(0, SHARE // block, add, (jnp.zeros(block, planes.dtype), zeros))
    triton.store(losses.at[sample, share], total.sum() / points)
    if gradient:
        (logits,) = to_logits([slope.sum(1) for slope in slopes])
        for i, logit in enumerate(logits):
            triton.store(gradient[0].at[sample, share, i, component], logit, mask=real)

"""The exact reduction: a mean with the same bits however many devices share a batch.

Floating-point addition is not associative, so the order is fixed: consecutive pairs. A compiler that knows a loop's number of
passes unrolls and fuses it, and rounds otherwise, so the number is an argument of the program, and any number of devices runs
the same code.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from gmmae.models.convolutions import replaced, rewritten
from gmmae.training.parallel import AXIS

B = TypeVar("B")
T = TypeVar("T")
BatchFunction = Callable[[B, Array], T]
"""`(batch, weights) -> arrays`, a weighted sum over the samples of a batch."""
Vector = Float[Array, " size"]


def exact_mean(
    function: BatchFunction[B, T],
    batch: B,
    weights: Float[Array, "shards shard_batch"],
    shard_range: Int[Array, "2"] | None = None,
) -> T:
    """The mean over shards of a function's value at each, with the same bits on any number of devices.

    Values are added as one binary tree: each device adds those of its `shard_range`, then devices that are 1, 2, 4, … apart
    exchange their sums. The shards, a power of two, are the leading axis of all arrays, which are whole on every device.
    """
    assert shard_range is not None, "the exact mean is over shards"
    function = rewritten(function, _by_reciprocal)
    first, count = shard_range
    shards, devices = len(weights), lax.axis_size(AXIS)

    def shard(number: Int[Array, ""] | int) -> tuple[B, Array]:
        return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, number, keepdims=False), (batch, weights))

    _, unravel = ravel_pytree(jax.tree.map(jnp.zeros_like, jax.eval_shape(lambda: function(*shard(0)))))

    def across(total: Vector) -> Vector:
        for level in range(devices.bit_length() - 1):
            total += lax.ppermute(total, AXIS, [(i, i ^ 1 << level) for i in range(devices)])
        return total

    total = tree_sum(lambda number: ravel_pytree(function(*shard(number)))[0], first, count, shards)
    if devices > 1:
        total = repeat(across, total, jnp.minimum(count, 1))  # once, but the compiler does not know
    return unravel(total / shards)


def _by_reciprocal(eqn: core.JaxprEqn) -> core.JaxprEqn | None:
    """XLA makes `z / row` a product with `1 / row` in the program for one device only; here every division becomes one."""
    if eqn.primitive.name == "pallas_call":  # a kernel is compiled as it is
        return eqn
    aval: Any = eqn.outvars[0].aval
    if eqn.primitive is not lax.div_p or not jnp.issubdtype(aval.dtype, jnp.floating):
        return None
    return replaced(eqn, lambda x, y: x * lax.reciprocal(y))


def tree_sum(term: Callable[[Int[Array, ""]], Vector], first: Int[Array, ""], count: Int[Array, ""], most: int) -> Vector:
    """`term(first) + … + term(first + count - 1)`, added in consecutive pairs, then in pairs of those sums, and so on.

    A binary counter: after term i every level whose bit in i is one is complete and carried on. `count` is a power of two up to
    `most`; the compiler must not know it or `first`.
    """
    like = jax.eval_shape(term, first)
    subtotals = jnp.zeros((most.bit_length(), *like.shape), like.dtype)

    def push(i: Int[Array, ""], sums: tuple[Vector, Array]) -> tuple[Vector, Array]:
        _, subtotals = sums

        def merge(state: tuple[Array, Vector]) -> tuple[Array, Vector]:
            level, total = state
            return level + 1, lax.dynamic_index_in_dim(subtotals, level, keepdims=False) + total

        level, total = lax.while_loop(lambda state: (i >> state[0]) & 1 == 1, merge, (jnp.int32(0), term(first + i)))
        return total, lax.dynamic_update_index_in_dim(subtotals, total, level, 0)

    return lax.fori_loop(0, count, push, (subtotals[0], subtotals))[0]


def repeat(function: Callable[[Vector], Vector], value: Vector, times: Int[Array, ""]) -> Vector:
    """The compiler must not know the number: then it fuses nothing into the function or out of it."""
    return lax.fori_loop(0, times, lambda _, value: function(value), value)

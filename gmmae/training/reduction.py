"""Sums over the parts of a batch: in parts that bound memory, or as one fixed binary tree.

The tree makes a sum that has the same bits however many devices share it. Floating-point addition is not associative, so the
order must be fixed; and a compiler that sees how often a loop runs unrolls it, fuses it with the rest, and rounds otherwise.
So the order is that of consecutive pairs, and the number of passes is a value that arrives when the program runs: the code that
computes a term, and the code that adds two, are then the same for one device with all terms and for many with one each.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

Vector = Float[Array, " size"]
OfBatch = Callable[[Array, Array], Any]
"""`(samples, weights) -> any arrays`, of which the sum over the parts of a batch is wanted."""


def in_parts(function: OfBatch, samples: Array, weights: Array, *, parts: int = 1) -> Any:
    """The sum of a function's values at equal parts of a batch, computed one after the other."""
    if parts == 1:
        return function(samples, weights)
    shares = (samples.reshape(parts, -1, *samples.shape[1:]), weights.reshape(parts, -1))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(function, samples, weights))

    def add(total: Any, share: tuple[Array, Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, function(*share)), None

    return lax.scan(add, zero, shares)[0]


def tree_sum(term: Callable[[Int[Array, ""]], Vector], first: Int[Array, ""], count: Int[Array, ""], most: int) -> Vector:
    """`term(first) + … + term(first + count - 1)`, added in consecutive pairs, then in pairs of those sums, and so on.

    A binary counter: after term i every level whose bit in i is one is complete and is carried on. It keeps
    `log2(most) + 1` vectors.

    Args:
      term: of an index.
      first: the first index.
      count: how many, a power of two. Both must be unknown when the program is compiled.
      most: the largest `count`.
    """
    like = jax.eval_shape(term, first)
    subtotals = jnp.zeros((most.bit_length(), *like.shape), like.dtype)

    def push(carry: tuple[Array, Vector, Array]) -> tuple[Array, Vector, Array]:
        i, _, subtotals = carry

        def complete(state: tuple[Array, Vector]) -> Array:
            return (i >> state[0]) & 1 == 1

        def merge(state: tuple[Array, Vector]) -> tuple[Array, Vector]:
            level, total = state
            return level + 1, lax.dynamic_index_in_dim(subtotals, level, keepdims=False) + total

        level, total = lax.while_loop(complete, merge, (jnp.int32(0), term(first + i)))
        return i + 1, total, lax.dynamic_update_index_in_dim(subtotals, total, level, 0)

    return lax.while_loop(lambda carry: carry[0] < count, push, (jnp.int32(0), subtotals[0], subtotals))[1]


def repeat(function: Callable[[Vector], Vector], value: Vector, times: Int[Array, ""]) -> Vector:
    """A function applied `times` times; where that is unknown to the compiler, nothing is fused into it or out of it."""
    return lax.while_loop(
        lambda carry: carry[0] < times, lambda carry: (carry[0] + 1, function(carry[1])), (jnp.int32(0), value)
    )[1]

"""Sums in parts and in a tree, against numbers worked manually and the same tree in NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.training.exact import repeat, tree_sum
from gmmae.training.step import in_micro_batches


def in_a_tree(values, first, count):
    """The count is an argument, so that the compiler does not know it."""
    values = jnp.asarray(values, jnp.float32)
    term = jax.jit(lambda first, count: tree_sum(lambda i: values[i][None], first, count, len(values)))
    return float(term(jnp.int32(first), jnp.int32(count))[0])


def test_neighbours_are_added_first():
    """The sum 10⁸ ± 1 is 10⁸ in float32, so the pairs cancel. From left to right the sum would be 1."""
    assert in_a_tree([1e8, 1, -1e8, 1], 0, 4) == 0


def test_a_part_is_a_subtree():
    values = [2.0**i for i in range(8)]  # every subset has another sum
    assert [in_a_tree(values, first, 2) for first in (0, 2, 6)] == [3, 12, 192]
    assert in_a_tree(values, 4, 4) == 16 + 32 + 64 + 128
    assert in_a_tree(values, 5, 1) == 32


@pytest.mark.parametrize("count", [1, 2, 4, 16, 32])
def test_the_bits_are_those_of_the_same_tree_in_numpy(count):
    values = np.random.default_rng(count).standard_normal((32, 5)).astype(np.float32)
    total = jax.jit(lambda count: tree_sum(lambda i: jnp.asarray(values)[i], jnp.int32(0), count, 32))(jnp.int32(count))
    level = values[:count]
    while len(level) > 1:
        level = level[0::2] + level[1::2]
    assert np.asarray(total).tobytes() == level[0].tobytes()
    assert count < 16 or (np.asarray(total) != np.cumsum(values[:count], axis=0)[-1]).any(), "the order must matter here"


@pytest.mark.parametrize("times", [0, 1, 3])
def test_repeat(times):
    doubled = jax.jit(partial(repeat, lambda x: 2 * x))(jnp.ones(2), jnp.int32(times))
    assert doubled.tolist() == [2.0**times] * 2


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_parts_add_up(parts):
    samples, weights = jnp.arange(6.0), jnp.array([1.0, 0, 2, 0, 0, 1])
    total = in_micro_batches(lambda x, w: {"sum": (x * w).sum(), "count": w.sum()}, samples, weights, parts)
    assert (float(total["sum"]), float(total["count"])) == (9, 4)  # 0 + 2·2 + 5

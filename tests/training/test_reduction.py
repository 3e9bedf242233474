"""Sums in parts and in a tree, against the same in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.training.exact import tree_sum
from gmmae.training.step import in_micro_batches

pytestmark = pytest.mark.usefixtures("optimised")


@pytest.mark.parametrize(("first", "count"), [(0, 1), (5, 1), (2, 2), (4, 4), (16, 16), (0, 32)])
def test_the_bits_are_those_of_the_same_tree_in_numpy(first, count):
    values = np.random.default_rng(count).standard_normal((32, 5)).astype(np.float32)
    level = part = values[first : first + count]
    while len(level) > 1:
        level = level[0::2] + level[1::2]
    # The range is an argument, so that the compiler does not know it.
    add = jax.jit(lambda first, count: tree_sum(lambda i: jnp.asarray(values)[i], first, count, len(values)))
    total = np.asarray(add(first, count))
    assert total.tobytes() == level[0].tobytes()
    assert count < 16 or (total != np.cumsum(part, axis=0)[-1]).any()  # the order must matter here


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_parts_add_up(parts):
    samples, weights = jnp.arange(6.0), jnp.array([1.0, 0, 2, 0, 0, 1])
    total = in_micro_batches(lambda x, w: {"sum": (x * w).sum(), "count": w.sum()}, samples, weights, parts)
    assert (float(total["sum"]), float(total["count"])) == (9, 4)  # 0 + 2·2 + 5

"""Every symmetry of the cube is drawn, and nothing else, from the sample's key only."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.workloads.augment import symmetries, symmetry


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((3,), 2), ((3, 4), 4), ((3, 3, 3), 48), ((3, 4, 3), 16)],
    ids=str,
)
def test_all_symmetries_occur(shape, expected):
    """48 symmetries in 1000 draws: the chance that a given one is missing is (47/48)^1000, below 1e-9."""
    ndim = len(shape)
    volume = jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)
    drawn = jax.jit(jax.vmap(symmetry, in_axes=(None, 0)))(volume, jax.random.split(jax.random.key(0), 1000))
    different = {np.asarray(one).tobytes() for one in drawn}
    assert len(different) == expected
    orders = itertools.permutations(range(ndim))
    turned = [turn for order in orders if (turn := np.asarray(volume).transpose(order)).shape == shape]
    flips = itertools.product((False, True), repeat=ndim)
    axes = [tuple(axis for axis in range(ndim) if flip[axis]) for flip in flips]
    assert different == {np.flip(one, axis).tobytes() for one in turned for axis in axes}


def test_a_volume_is_turned_by_its_own_key_at_any_place_in_the_batch():
    volumes = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4, 4, 4)), jnp.float32)
    keys, other_keys = (jax.random.split(jax.random.key(seed), 6) for seed in (7, 8))
    turn, part = jax.jit(symmetries), np.array([4, 2])
    turned = np.asarray(turn(volumes, keys))
    np.testing.assert_array_equal(turn(volumes[part], keys[part]), turned[part])
    assert (turned != np.asarray(turn(volumes, other_keys))).any()

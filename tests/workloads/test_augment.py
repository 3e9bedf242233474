"""Every symmetry of the cube and nothing else, drawn from (seed, epoch, sample) only."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.workloads.augment import gather, symmetry


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((3,), 2), ((3, 3), 8), ((3, 4), 4), ((3, 3, 3), 48), ((3, 4, 3), 16), ((2, 3, 4), 8)],
    ids=str,
)
def test_all_symmetries_occur(shape, expected):
    """48 symmetries in 1000 draws: the chance that a given one is missing is (47/48)^1000, below 1e-9."""
    ndim = len(shape)
    volume = jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)
    drawn = jax.vmap(symmetry, in_axes=(None, 0))(volume, jax.random.split(jax.random.key(0), 1000))
    different = {np.asarray(one).tobytes() for one in drawn}
    assert len(different) == expected
    orders = itertools.permutations(range(ndim))
    turned = [turn for order in orders if (turn := np.asarray(volume).transpose(order)).shape == shape]
    flips = itertools.product((False, True), repeat=ndim)
    axes = [tuple(axis for axis in range(ndim) if flip[axis]) for flip in flips]
    assert different == {np.flip(one, axis).tobytes() for one in turned for axis in axes}


def volumes(samples: int = 6):
    return jnp.asarray(np.random.default_rng(0).normal(size=(samples, 4, 4, 4)), jnp.float32)


def test_a_sample_is_turned_alike_wherever_it_stands():
    epoch = jnp.int32(3)
    whole = gather(volumes(), jnp.array([4, 0, 2, 5]), epoch, seed=7)
    shard = gather(volumes(), jnp.array([2, 4]), epoch, seed=7)
    np.testing.assert_array_equal(shard[0], whole[2])
    np.testing.assert_array_equal(shard[1], whole[0])


@pytest.mark.parametrize(("epoch", "seed"), [(4, 7), (3, 8)])
def test_another_epoch_or_seed_turns_otherwise(epoch, seed):
    index = jnp.arange(6)
    one = gather(volumes(), index, jnp.int32(3), seed=7)
    other = gather(volumes(), index, jnp.int32(epoch), seed=seed)
    assert (np.asarray(one) != np.asarray(other)).any()

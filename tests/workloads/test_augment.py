"""Every symmetry of the cube is drawn, and nothing else, from the sample's key only."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.workloads.augment import symmetries, symmetry


@pytest.mark.parametrize(("shape", "count"), [((3,), 2), ((3, 4), 4), ((3, 3, 3), 48), ((3, 4, 3), 16)])
def test_all_symmetries_occur(shape, count):
    """48 symmetries in 1000 draws: the chance that a given one is missing is (47/48)^1000, below 1e-9."""
    volume = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    drawn = jax.jit(jax.vmap(symmetry, in_axes=(None, 0)))(volume, jax.random.split(jax.random.key(0), 1000))
    turned = [volume.transpose(order) for order in itertools.permutations(range(volume.ndim))]
    flips = list(itertools.product((1, -1), repeat=volume.ndim))
    expected = {
        one[tuple(slice(None, None, step) for step in flip)].tobytes() for one in turned if one.shape == shape for flip in flips
    }
    assert {np.asarray(one).tobytes() for one in drawn} == expected
    assert len(expected) == count


def test_a_volume_is_turned_by_its_own_key_at_any_place_in_the_batch():
    volumes = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4, 4, 4)), jnp.float32)
    keys, other_keys = (jax.random.split(jax.random.key(seed), 6) for seed in (7, 8))
    turn, part = jax.jit(symmetries), np.array([4, 2])
    turned = np.asarray(turn(volumes, keys))
    np.testing.assert_array_equal(turn(volumes[part], keys[part]), turned[part])
    assert (turned != np.asarray(turn(volumes, other_keys))).any()

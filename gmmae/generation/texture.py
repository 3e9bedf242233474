"""Texture that a decoder does not reproduce: residuals of training nodules and their grey levels.

One training nodule's residual would make the result half a copy, so each of the overlapping blocks of a cube gets another
donor's. The squares of the blocks' weights sum to one, which keeps the variance of independent residuals.
"""

from functools import reduce
from itertools import product

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.stats import rankdata

Volumes = Float[np.ndarray, "samples *volume"]
Masks = Bool[np.ndarray, "samples *volume"]
Levels = Float[np.ndarray, "samples levels"]


def block_weights(shape: tuple[int, ...], blocks: int) -> Float[np.ndarray, "blocks *volume"]:
    """The weight of each block at each voxel: 1 at its centre, 0 at its neighbours' centres.

    >>> weights = block_weights((16, 16), 3)
    >>> weights.shape, bool(np.allclose((weights**2).sum(0), 1))
    ((9, 16, 16), True)
    """
    places = [np.clip((np.arange(size) + 0.5) * blocks / size - 0.5, 0, blocks - 1) for size in shape]
    along = [np.cos(np.pi / 2 * np.clip(np.abs(place - np.arange(blocks)[:, None]), 0, 1)) for place in places]
    return np.stack([reduce(np.multiply.outer, of_axes) for of_axes in product(*along)])


def blend_residual_blocks(
    residuals: Volumes,
    donors: Int[np.ndarray, "count blocks"],
    weights: Float[np.ndarray, "blocks *volume"],
) -> Float[np.ndarray, "count *volume"]:
    """Adds the residuals of each nodule's donors, block by block."""
    blended = np.zeros((len(donors), *residuals.shape[1:]))
    for block, weight in enumerate(weights):
        blended += weight * residuals[donors[:, block]]
    return blended


def grey_levels(values: Volumes, masks: Masks) -> Levels:
    """The values of each volume in ascending order, first those outside of the mask and then those inside.

    >>> grey_levels(np.array([[3.0, 1.0, 2.0, 0.0]]), np.array([[False, True, True, False]])).tolist()
    [[0.0, 3.0, 1.0, 2.0]]
    """
    flat, inside = values.reshape(len(values), -1), masks.reshape(len(values), -1) > 0
    return np.take_along_axis(flat, np.lexsort((flat, inside), axis=1), axis=1)


def deepest_voxels(outline: Volumes, voxels: Int[np.ndarray, " samples"]) -> Masks:
    """The `voxels` of each outline (signed distances, positive inside) that lie deepest."""
    flat = outline.reshape(len(outline), -1)
    return (rankdata(flat, "ordinal", axis=1) > flat.shape[1] - voxels[:, None]).reshape(outline.shape)


def with_grey_levels(
    values: Volumes,
    levels: Levels,
    inside: Masks,
) -> Volumes:
    """Replaces the voxel values of each volume by grey levels in the same rank order, outside and inside of a mask apart.

    Decoded volumes are blurred, so too many voxels lie between lung and nodule. Levels of the donor's inside stay inside, so
    that a bright donor leaves no flecks in the lung.
    """
    flat = values.reshape(len(values), -1)
    above = inside.reshape(flat.shape) * (np.ptp(flat, axis=1, keepdims=True) + 1)
    return np.take_along_axis(levels, rankdata(flat + above, "ordinal", axis=1) - 1, axis=1).reshape(values.shape)

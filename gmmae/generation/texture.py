"""What a decoder leaves out of a nodule: its residual, as a mosaic of those of several training nodules, and its grey levels.

A nodule's residual put on another nodule's mixture makes it a copy by half. So the cube is divided into blocks that overlap,
and each block's residual comes from another donor; where blocks overlap they are added with weights whose squares sum to one,
which keeps the variance of what is independent.
"""

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from scipy import ndimage


def block_weights(shape: tuple[int, ...], blocks: int) -> Float[np.ndarray, "blocks *volume"]:
    """The weight of each block at each voxel; the squares sum to one.

    Args:
      shape: of the volume.
      blocks: along each axis.

    >>> weights = block_weights((16, 16), 3)
    >>> weights.shape, bool(np.allclose((weights**2).sum(0), 1))
    ((9, 16, 16), True)
    """
    weights = np.ones((1, *(1 for _ in shape)))
    for axis, size in enumerate(shape):
        along = _hats(size, blocks).reshape(blocks, *(size if a == axis else 1 for a in range(len(shape))))
        weights = (weights[:, None] * along[None]).reshape(-1, *np.broadcast_shapes(weights.shape[1:], along.shape[1:]))
    return weights


def _hats(size: int, blocks: int) -> Float[np.ndarray, "blocks size"]:
    """Functions that are 1 in the middle of a block and fall to 0 in those of its neighbours; their squares sum to one."""
    if blocks == 1:
        return np.ones((1, size))
    place = np.clip((np.arange(size) + 0.5) * blocks / size - 0.5, 0, blocks - 1)
    return np.cos(np.pi / 2 * np.clip(np.abs(place - np.arange(blocks)[:, None]), 0, 1))


def mosaic(
    residuals: Float[np.ndarray, "samples *volume"],
    donors: Int[np.ndarray, "count blocks"],
    weights: Float[np.ndarray, "blocks *volume"],
) -> Float[np.ndarray, "count *volume"]:
    """The residuals of each nodule's donors, block by block.

    Args:
      residuals: of the training nodules.
      donors: of each block of each nodule.
      weights: from `block_weights`.
    """
    found = np.zeros((len(donors), *residuals.shape[1:]))
    for block, weight in enumerate(weights):
        found += weight * residuals[donors[:, block]]
    return found


def with_grey_levels(
    values: Float[np.ndarray, "count *volume"], levels: Float[np.ndarray, "count levels"]
) -> Float[np.ndarray, "count *volume"]:
    """Volumes whose voxels have other values, in the same order: the darkest has the lowest level.

    Decoded volumes are blurred, so too many of their voxels are neither lung nor nodule. The levels of a real nodule mend that
    and leave every shape where it is.

    Args:
      values: volumes.
      levels: increasing, for each volume; if there are not as many as voxels, they are interpolated.
    """
    flat = values.reshape(len(values), -1)
    if flat.shape[1] != levels.shape[1]:
        old, new = (np.linspace(0, 1, count) for count in (levels.shape[1], flat.shape[1]))
        levels = np.stack([np.interp(new, old, each) for each in levels])
    ranks = np.argsort(np.argsort(flat, axis=1, kind="stable"), axis=1)
    return np.take_along_axis(levels, ranks, axis=1).reshape(values.shape)


def signed_distances(masks: Shaped[np.ndarray, "samples *volume"]) -> Float[np.ndarray, "samples *volume"]:
    """How deep each voxel lies within its mask, in voxels; negative outside. Half a voxel from the border is 0.5 or -0.5.

    >>> signed_distances(np.array([[0, 1, 1, 0]])).tolist()
    [[-0.5, 0.5, 0.5, -0.5]]
    """
    return np.stack([_signed_distance(mask > 0) for mask in masks])


def _signed_distance(mask: Bool[np.ndarray, "*volume"]) -> Float[np.ndarray, "*volume"]:
    if mask.all() or not mask.any():
        return np.full(mask.shape, 0.5 if mask.any() else -0.5) * max(mask.shape)
    inside, outside = (np.asarray(ndimage.distance_transform_edt(of)) for of in (mask, ~mask))
    return inside - outside - 0.5 * np.where(mask, 1, -1)

"""Distances from the surface of a mask."""

import numpy as np
from jaxtyping import Bool, Float
from scipy import ndimage


def signed_distance(
    mask: Bool[np.ndarray, "*volume"], spacing: float | Float[np.ndarray, " axes"] = 1.0
) -> Float[np.ndarray, "*volume"]:
    """The distance of each voxel's centre from the surface of a mask, negative outside, in the unit of `spacing`.

    The surface runs half a voxel beyond the outermost centres. Without one the distance is half the longest edge.

    >>> signed_distance(np.array([False, True, True, False])).tolist()
    [-0.5, 0.5, 0.5, -0.5]
    """
    sampling, half = np.broadcast_to(spacing, mask.ndim), np.where(mask, 0.5, -0.5)
    if np.ptp(half) == 0:
        return half * np.max(sampling * mask.shape)
    inside, outside = (np.asarray(ndimage.distance_transform_edt(part, sampling)) for part in (mask, ~mask))
    return inside - outside - half * sampling.min()

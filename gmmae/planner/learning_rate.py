"""Helpers of predictions at scaled learning rates: parts of a trial, interpolation by factors, and a warmup's epochs."""

import itertools
import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float


def last_third(count: int) -> slice:
    """Returns the last third of a trial's first `count` steps."""
    return slice(count - max(1, count // 3), count)


def interpolate(factor: float, values: Mapping[float, float], least: float = 1e-3) -> float:
    """Interpolates a quantity that is 1 at the base rate, linearly between logarithms.

    Beyond the largest tried factor the last slope continues.

    >>> [round(interpolate(k, {2: 0.5, 4: 0.125}), 3) for k in (1, 2, 2 * 2**0.5, 4, 8)], interpolate(8, {})
    ([1.0, 0.5, 0.25, 0.125, 0.031], 1.0)
    """
    points = [(math.log2(k), math.log2(max(of, least))) for k, of in sorted({1.0: 1.0, **values}.items())]
    pairs = list(itertools.pairwise(points))
    if not pairs:
        return 1.0
    (low, at_low), (high, at_high) = next((pair for pair in pairs if math.log2(factor) <= pair[1][0]), pairs[-1])
    return 2 ** (at_low + (at_high - at_low) / (high - low) * (math.log2(factor) - low))


def speed_up_epochs(
    epochs: Float[np.ndarray, " draws"], speedups: Float[np.ndarray, " draws"], scaling_warmup_epochs: int
) -> Float[np.ndarray, " draws"]:
    """Returns the epochs that a run takes with a speed-up, given the epochs that it takes without one.

    The speed-up rises linearly from 1 during the warmup.

    >>> speed_up_epochs(np.array([12.0, 12.0, 2.0]), np.array([4.0, 4.0, 1.0]), 0).tolist()
    [3.0, 3.0, 2.0]
    >>> speed_up_epochs(np.array([20.0, 5.5]), np.array([4.0, 4.0]), 5).round(2).tolist()  # 12.5 are done when the warmup ends
    [6.88, 2.93]
    """
    if not scaling_warmup_epochs:
        return epochs / speedups
    slope = (speedups - 1) / scaling_warmup_epochs
    in_warmup = scaling_warmup_epochs * (1 + speedups) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        within = np.where(slope > 1e-9, (np.sqrt(np.maximum(0.0, 1 + 2 * slope * epochs)) - 1) / slope, epochs)
    return np.where(epochs > in_warmup, scaling_warmup_epochs + (epochs - in_warmup) / speedups, within)

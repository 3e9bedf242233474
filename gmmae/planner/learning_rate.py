"""How much faster than the base rate a scaled rate goes, from its first steps.

Where the base rate is small for the batch, k times the rate takes k times fewer steps; where noise or curvature holds training
up, it takes as many. A trial's training loss says which: the pace is how many steps the base run needed to come as far, over
the trial's own.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float


def late(losses: Sequence[float], count: int | None = None) -> slice:
    """The last third of a trial's steps, or of its first `count`."""
    count = len(losses) if count is None else count
    return slice(count - max(1, count // 3), count)


def pace(base: Sequence[float], epochs: Sequence[float], steps_an_epoch: int, trial: Sequence[float]) -> float:
    """The pace of a trial; at least 1, because a trial that lags behind is one that fails, which is not told here.

    Losses of single steps scatter: the trial has to be ahead by a standard deviation of theirs before it counts, and counts for
    what is beyond.

    Args:
      base: training losses of the base rate's first steps.
      epochs: its mean training losses of whole epochs, to the target.
      steps_an_epoch: of the base run.
      trial: training losses of steps at another rate.

    >>> halving = [2.0**-e for e in range(10)]
    >>> pace([1.0] * 4, halving, 4, [1.0, 0.5, 0.25, 0.125])  # at step 3.5 where the base run is at 14
    4.0
    """
    spread = float(np.std(base[late(base)]))
    at = len(trial) - (len(trial) - late(trial).start) / 2
    middles = [(epoch + 0.5) * steps_an_epoch for epoch in range(len(epochs))]
    own = float(np.mean(base[late(trial)])) if len(trial) <= len(base) else float(np.interp(at, middles, epochs))
    level = float(np.mean(trial[late(trial)])) + spread
    if not level < own:
        return 1.0
    points = [(at, own), *((step, loss) for step, loss in zip(middles, epochs, strict=True) if step > at)]
    for (before, high), (after, low) in itertools.pairwise(points):
        if low <= level:
            share = (high - level) / (high - low) if high > level else 0.0
            return (before + share * (after - before)) / at
    return points[-1][0] / at


def together(narrow: Mapping[float, float], wide: Mapping[float, float]) -> dict[float, float]:
    """Paces of the linear rule by factor: those at its own batches where they were tried, and beyond as at the base batch.

    >>> together({2: 1.5, 4: 3.0, 8: 6.0}, {2: 2.0, 4: 4.0})
    {2: 2.0, 4: 4.0, 8: 8.0}
    """
    if not wide:
        return dict(narrow)
    last = max(wide)
    scale = wide[last] / at_factor(last, narrow)
    return {**wide, **{factor: scale * of for factor, of in narrow.items() if factor > last}}


def at_factor(factor: float, found: Mapping[float, float], least: float = 1e-3) -> float:
    """A number that is 1 at the base rate, at a factor of it: linear in logarithms, beyond the tried factors as it went last.

    >>> [round(at_factor(k, {2: 0.5, 4: 0.125}), 3) for k in (1, 2, 2 * 2**0.5, 4, 8)], at_factor(8, {})
    ([1.0, 0.5, 0.25, 0.125, 0.031], 1.0)
    """
    points = [(math.log2(k), math.log2(max(of, least))) for k, of in sorted({1.0: 1.0, **found}.items())]
    pairs = list(itertools.pairwise(points))
    if not pairs:
        return 1.0
    (low, at_low), (high, at_high) = next((pair for pair in pairs if math.log2(factor) <= pair[1][0]), pairs[-1])
    return 2 ** (at_low + (at_high - at_low) / (high - low) * (math.log2(factor) - low))


def quickened(
    epochs: Float[np.ndarray, " draws"], paces: Float[np.ndarray, " draws"], scaling_warmup_epochs: int
) -> Float[np.ndarray, " draws"]:
    """Epochs at a pace that is 1 at first and rises linearly in the warmup, for what takes so many at a pace of 1.

    >>> quickened(np.array([12.0, 12.0, 2.0]), np.array([4.0, 4.0, 1.0]), 0).tolist()
    [3.0, 3.0, 2.0]
    >>> quickened(np.array([20.0, 5.5]), np.array([4.0, 4.0]), 5).round(2).tolist()  # 12.5 are done when the warmup ends
    [6.88, 2.93]
    """
    if not scaling_warmup_epochs:
        return epochs / paces
    slope = (paces - 1) / scaling_warmup_epochs
    in_warmup = scaling_warmup_epochs * (1 + paces) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        within = np.where(slope > 1e-9, (np.sqrt(np.maximum(0.0, 1 + 2 * slope * epochs)) - 1) / slope, epochs)
    return np.where(epochs > in_warmup, scaling_warmup_epochs + (epochs - in_warmup) / paces, within)

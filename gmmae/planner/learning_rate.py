"""How much faster training is at a scaled learning rate, judged by the first steps.

If the base rate is small for the batch, k times the learning rate needs k times fewer steps. If noise or curvature limits
training, it needs the same number. The speed-up is read off a trial's training loss. It is the number of steps that the base
run needs to come as far, divided by the steps of the trial.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float


def last_third(losses: Sequence[float], count: int | None = None) -> slice:
    """Returns the last third of a trial's steps, or of its first `count` steps."""
    count = len(losses) if count is None else count
    return slice(count - max(1, count // 3), count)


def learning_rate_speedup(base: Sequence[float], epochs: Sequence[float], steps_an_epoch: int, trial: Sequence[float]) -> float:
    """Returns the speed-up of a trial over the base rate, at least 1.

    A trial that lags behind counts as 1 here; `gmmae.planner.stability` judges whether it failed. Losses of single steps
    scatter. So the trial's loss counts only as far as it lies more than one standard deviation below the base run's.

    Args:
      base: training losses of the first steps at the base rate.
      epochs: mean training losses of the base run's epochs up to the target.
      steps_an_epoch: steps of an epoch of the base run.
      trial: training losses of the steps at another learning rate.

    >>> halving = [2.0**-e for e in range(10)]
    >>> learning_rate_speedup([1.0] * 4, halving, 4, [1.0, 0.5, 0.25, 0.125])  # at step 3.5 where the base run is at 14
    4.0
    """
    deviation = float(np.std(base[last_third(base)]))
    at = len(trial) - (len(trial) - last_third(trial).start) / 2
    middles = [(epoch + 0.5) * steps_an_epoch for epoch in range(len(epochs))]
    own = float(np.mean(base[last_third(trial)])) if len(trial) <= len(base) else float(np.interp(at, middles, epochs))
    level = float(np.mean(trial[last_third(trial)])) + deviation
    if not level < own:
        return 1.0
    points = [(at, own), *((step, loss) for step, loss in zip(middles, epochs, strict=True) if step > at)]
    for (before, high), (after, low) in itertools.pairwise(points):
        if low <= level:
            share = (high - level) / (high - low) if high > level else 0.0
            return (before + share * (after - before)) / at
    return points[-1][0] / at


def combine_speedups(narrow: Mapping[float, float], wide: Mapping[float, float]) -> dict[float, float]:
    """Returns the speed-ups of the linear rule by factor of the learning rate.

    Factors that were tried at the linear rule's own batches count as measured there. Larger factors follow the trials at the
    base batch.

    >>> combine_speedups({2: 1.5, 4: 3.0, 8: 6.0}, {2: 2.0, 4: 4.0})
    {2: 2.0, 4: 4.0, 8: 8.0}
    """
    if not wide:
        return dict(narrow)
    last = max(wide)
    scale = wide[last] / interpolate(last, narrow)
    return {**wide, **{factor: scale * of for factor, of in narrow.items() if factor > last}}


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

"""Steps to a target against the batch, at one learning rate: the hyperbola S(B) = Smin (1 + Bn / B)^p, and how sure it is.

Bn is the batch at which twice the fewest steps are needed; from there on a larger batch saves less than it costs. The law is
that of McCandlish et al. (arXiv:1812.06162), p = 1. Two runs at different batches decide it; a third says how far it holds.

Where the rate itself limits training, Adam's steps are of a length that its denominator sets: the gradient over the root of
its mean square, which is 1 / √(1 + Bn / B) where noise is added to it. Then p is a half. Which of the two it is shows in the
pace of higher rates (`power`).

A run's steps scatter with its seed, and the law is not exact: the logarithm of the steps has a normal error. The posterior
is computed on a grid of log Bn, in which the level log Smin is normal, so that nothing has to converge.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize_scalar

from gmmae.config.schema import StopConfig
from gmmae.system.errors import InputError
from gmmae.training.records import Epoch

SEED_SIGMA, SCATTERS = 0.04, 2.0
"""Of the logarithm of the steps to the target, over seeds, where the metric falls smoothly; and what its scatter about a smooth
curve adds (`seed_sigma`). Measured are 0.05 on images and 0.11 on nodules; MLPerf's benchmarks have 0.02 to 0.24."""

MODEL_SIGMA = 0.05
"""Of the logarithm of the steps about the law, at batches that were not run."""

PRIOR_SIGMA = 1.0
"""Of log Bn about the base batch, before anything is run: who has chosen a batch has chosen one near it. The gradient's noise
scale is no better: of four workloads it was 12 times Bn on one, and a quarter, a sixth and a 35th of it on the others."""

MOST_SIGMA, LEAST_CURVE = 0.25, 5
"""Of the steps' logarithm over seeds, also where the curve is too short to tell; and the fewest epochs that do."""

RATED = 4.0
"""The largest factor of the rate whose pace says whether the base rate limits training."""

GRID = np.linspace(-8.0, 8.0, 641)
"""Of log Bn, about the mean logarithm of the batches."""

WARN_RESIDUAL = 0.15
"""A root mean square of the log residuals above which the steps do not follow the law."""


class Steps(NamedTuple):
    """Draws of the law's two numbers, and its power p."""

    smin: Float[np.ndarray, " draws"]
    bn: Float[np.ndarray, " draws"]
    power: float = 1.0

    def at(self, batch: float) -> Float[np.ndarray, " draws"]:
        """Steps of a run at a batch.

        >>> Steps(np.array([100.0]), np.array([20.0])).at(20).tolist()
        [200.0]
        """
        return self.smin * (1 + self.bn / batch) ** self.power


def crossing(steps: Sequence[float], costs: Sequence[float], level: float) -> float:
    """The step at which a curve first comes down to a level, linear between two validations; infinite where it does not.

    Args:
      steps: at each validation, the first of them before the first step.
      costs: the metric there, made so that less is better.
      level: of the metric.

    >>> crossing((0, 10, 20), (5.0, 3.0, 2.0), 2.5), crossing((0, 10), (5.0, 3.0), 1.0)
    (15.0, inf)
    """
    below = [place for place, cost in enumerate(costs) if cost <= level]
    if not below:
        return math.inf
    after = below[0]
    if after == 0:
        return float(steps[0])
    drop = costs[after - 1] - costs[after]
    share = (costs[after - 1] - level) / drop if math.isfinite(drop) else 1.0
    return float(steps[after - 1] + share * (steps[after] - steps[after - 1]))


def to_target(rows: Sequence[Epoch], stop: StopConfig) -> float:
    """The step at which a run's metric first comes to its target (`crossing`), by its epochs; infinite where it does not."""
    costs = [math.inf, *(stop.cost(row.value(stop.monitor)) for row in rows)]
    return crossing([0, *(row.steps for row in rows)], costs, stop.cost(stop.target))


def seed_sigma(run_steps: Sequence[float], costs: Sequence[float]) -> float:
    """The standard deviation over seeds of the logarithm of the steps to the target, as one run's curve tells it.

    A metric that jumps about its way down by d, on a slope of c for each e-fold of the steps, meets the target d / c of an
    e-fold early or late. The slope is that of a line through the last half of the curve, the jumps are about a parabola.

    Args:
      run_steps, costs: the metric after each epoch, made so that less is better.

    >>> seed_sigma((1, 2, 4, 8, 16, 32), (6.0, 5.0, 4.0, 3.0, 2.0, 1.0))
    0.04
    """
    count = max(LEAST_CURVE, len(costs) // 2)
    logs, last = np.log(np.asarray(run_steps[-count:], float)), np.asarray(costs[-count:], float)
    if len(last) < LEAST_CURVE or not np.isfinite(last).all():
        return MOST_SIGMA
    slope = np.polyfit(logs, last, 1)[0]
    scatter = math.sqrt(float(((last - np.polyval(np.polyfit(logs, last, 2), logs)) ** 2).sum()) / (len(last) - 3))
    return round(min(MOST_SIGMA, math.hypot(SEED_SIGMA, SCATTERS * scatter / max(abs(slope), 1e-12))), 6)


def posterior(
    points: Mapping[int, float],
    batch_size: int,
    draws: int,
    rng: np.random.Generator,
    sigma: float,
    power: float = 1.0,
) -> Steps:
    """Draws of Smin and Bn, given the steps at some batches.

    Args:
      points: steps to the target by batch; one point leaves Bn to its prior.
      batch_size: about which Bn is expected.
      draws: how many.
      rng: of them.
      sigma: of the logarithm of the steps, over seeds.
      power: of the law.

    Raises:
      InputError: no point, or one that is no positive number.
    """
    batches, logs = _logs(points)
    grid = GRID + np.log(batches).mean()
    levels = logs - power * np.log1p(np.exp(grid)[:, None] / batches)  # log Smin by each point
    spread = ((levels - levels.mean(1, keepdims=True)) ** 2).sum(1)
    weight = -spread / (2 * sigma**2) - ((grid - math.log(batch_size)) / PRIOR_SIGMA) ** 2 / 2
    chances = np.exp(weight - weight.max())
    places = rng.choice(len(grid), size=draws, p=chances / chances.sum())
    log_bn = grid[places] + rng.uniform(-0.5, 0.5, draws) * (GRID[1] - GRID[0])
    log_smin = levels.mean(1)[places] + rng.normal(0.0, sigma / math.sqrt(len(batches)), draws)
    return Steps(np.exp(log_smin), np.exp(log_bn), power)


def power(pace: Mapping[float, float]) -> float:
    """The law's power: 1 where a higher rate goes no faster, a half where k times the rate has a pace of k.

    Args:
      pace: by factor of the rate; of those up to `RATED` the largest is asked, beyond it no run need be limited by its rate.

    >>> power({2: 1.0, 4: 1.0}), power({2: 2.0, 4: 4.0, 8: 5.0}), power({})
    (1.0, 0.5, 1.0)
    """
    asked = max((factor for factor in pace if 1 < factor <= RATED), default=None)
    return 1 - 0.5 * min(1.0, max(0.0, math.log(pace[asked]) / math.log(asked))) if asked else 1.0


def fit(points: Mapping[int, float], power: float = 1.0) -> tuple[float, float]:
    """Smin and Bn that fit the points best, by the squares of the log residuals; Bn lies within `GRID` of the batches.

    >>> [round(number, 1) for number in fit({8: 350.0, 32: 162.5, 64: 131.25})]
    [100.0, 20.0]
    """
    batches, logs = _logs(points)

    def spread(log_bn: Float[np.ndarray, "*grid"]) -> Float[np.ndarray, "*grid"]:
        levels = logs - power * np.log1p(np.exp(log_bn)[..., None] / batches)
        return ((levels - levels.mean(-1, keepdims=True)) ** 2).sum(-1)

    grid = GRID + np.log(batches).mean()
    first, step = grid[np.argmin(spread(grid))], GRID[1] - GRID[0]
    log_bn = float(np.asarray(minimize_scalar(spread, bounds=(first - step, first + step), method="bounded").x))
    return float(np.exp((logs - power * np.log1p(np.exp(log_bn) / batches)).mean())), math.exp(log_bn)


def residual(points: Mapping[int, float], power: float = 1.0) -> float:
    """The root mean square of the log residuals of `fit`, a mean over the points beyond the first two.

    With two points the law passes through both where it can: where more samples take more steps, it cannot.

    >>> round(residual({8: 350.0, 32: 162.5, 64: 131.25}), 3), round(residual({8: 100.0, 32: 200.0}), 2)
    (0.0, 0.49)
    """
    batches, logs = _logs(points)
    smin, bn = fit(points, power)
    squares = float(((logs - np.log(smin * (1 + bn / batches) ** power)) ** 2).sum())
    return math.sqrt(squares / max(1, len(batches) - 2))


def _logs(points: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
    if not points or not all(0 < steps < math.inf for steps in points.values()):
        raise InputError(f"steps to the target must be positive and finite, at one batch at least; got {dict(points)}")
    return np.array(list(points), float), np.log(list(points.values()))

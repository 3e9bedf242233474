"""Steps to a target as a function of the batch, at one learning rate: S(B) = Smin (1 + Bn / B), with its uncertainty.

At the batch Bn training needs twice the minimum number of steps. A larger batch saves less than it costs. The law is that of
McCandlish et al. (arXiv:1812.06162). Two runs at different batches determine it. A third one tests it.

The steps of a run vary with its seed, and the law is not exact. So the logarithm of the steps has a normal error. The posterior
is computed on a grid of log Bn. On it the level log Smin is normal, so no iteration has to converge.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from gmmae.config.schema import StopConfig
from gmmae.system.errors import InputError
from gmmae.training.records import Epoch
from gmmae.training.stopping import StopMonitor

SEED_SIGMA = 0.04
"""Standard deviation over seeds of the logarithm of the steps to the target, for a smooth metric. Measured values are 0.05 on
images, 0.11 on nodules and 0.02 to 0.24 in MLPerf's benchmarks."""

SCATTER_WEIGHT = 2.0
"""Weight of the metric's scatter about a smooth curve, in the standard deviation (`seed_sigma`)."""

MODEL_SIGMA = 0.05
"""Standard deviation of the logarithm of the steps about the law, at batches that were not run."""

PRIOR_SIGMA = 1.0
"""Prior standard deviation of log Bn about the base batch, because users choose a batch near Bn. The gradient's noise
scale predicts Bn no better. On four workloads it was 12, 1/4, 1/6 and 1/35 times Bn.
"""

MAX_SIGMA = 0.25
"""Maximum standard deviation over seeds of the logarithm of the steps, also used for a curve that is too short."""

MIN_CURVE_EPOCHS = 5
"""Minimum number of epochs of a curve that tells the standard deviation."""

LOG_BN_GRID = np.linspace(-8.0, 8.0, 641)
"""Grid of log Bn, relative to the mean logarithm of the batches."""

MAX_RESIDUAL = 0.15
"""The root mean square of the log residuals above which the steps do not follow the law."""


class StepsLaw(NamedTuple):
    """Draws of the law's two numbers."""

    smin: Float[np.ndarray, " draws"]
    bn: Float[np.ndarray, " draws"]

    def at(self, batch: float) -> Float[np.ndarray, " draws"]:
        """Returns the steps of a run at a batch.

        >>> StepsLaw(np.array([100.0]), np.array([20.0])).at(20).tolist()
        [200.0]
        """
        return self.smin * (1 + self.bn / batch)


def steps_to_target(rows: Sequence[Epoch], stop: StopConfig) -> float:
    """Returns the step at which a run's metric first crosses its target, infinite if it does not."""
    step = StopMonitor(stop, rows).target_step()
    return math.inf if step is None else step


def seed_sigma(run_steps: Sequence[float], costs: Sequence[float]) -> float:
    """Estimates the standard deviation over seeds of the logarithm of the steps to the target, from one run's curve.

    Let the metric scatter by d on a slope of c for each e-fold of the steps. Then it meets the target d / c of an e-fold early
    or late. The slope is that of a line through the last half of the curve. The scatter is measured about a parabola.

    Args:
      run_steps: the step after each epoch.
      costs: the metric after each epoch, with its sign chosen so that less is better.

    >>> seed_sigma((1, 2, 4, 8, 16, 32), (6.0, 5.0, 4.0, 3.0, 2.0, 1.0))
    0.04
    """
    count = max(MIN_CURVE_EPOCHS, len(costs) // 2)
    logs, last = np.log(np.asarray(run_steps[-count:], float)), np.asarray(costs[-count:], float)
    if len(last) < MIN_CURVE_EPOCHS or not np.isfinite(last).all():
        return MAX_SIGMA
    slope = np.polyfit(logs, last, 1)[0]
    scatter = math.sqrt(float(((last - np.polyval(np.polyfit(logs, last, 2), logs)) ** 2).sum()) / (len(last) - 3))
    return round(min(MAX_SIGMA, math.hypot(SEED_SIGMA, SCATTER_WEIGHT * scatter / max(abs(slope), 1e-12))), 6)


def posterior(
    points: Mapping[int, float],
    batch_size: int,
    draws: int,
    rng: np.random.Generator,
    sigma: float,
) -> StepsLaw:
    """Draws Smin and Bn, given the steps at some batches.

    Args:
      points: steps to the target by batch. With one point the prior decides Bn.
      batch_size: centre of the prior of Bn.
      draws: number of draws.
      rng: random generator.
      sigma: standard deviation over seeds of the logarithm of the steps.

    Raises:
      InputError: there is no point, or one is not a positive number.
    """
    batches, logs = _logs(points)
    grid = LOG_BN_GRID + np.log(batches).mean()
    levels = logs - np.log1p(np.exp(grid)[:, None] / batches)  # log Smin by each point
    squares = ((levels - levels.mean(1, keepdims=True)) ** 2).sum(1)
    weight = -squares / (2 * sigma**2) - ((grid - math.log(batch_size)) / PRIOR_SIGMA) ** 2 / 2
    chances = np.exp(weight - weight.max())
    places = rng.choice(len(grid), size=draws, p=chances / chances.sum())
    log_bn = grid[places] + rng.uniform(-0.5, 0.5, draws) * (LOG_BN_GRID[1] - LOG_BN_GRID[0])
    log_smin = levels.mean(1)[places] + rng.normal(0.0, sigma / math.sqrt(len(batches)), draws)
    return StepsLaw(np.exp(log_smin), np.exp(log_bn))


def fit(points: Mapping[int, float]) -> tuple[float, float]:
    """Returns the Smin and Bn with the least squares of the log residuals. Bn lies within `LOG_BN_GRID` of the batches.

    >>> [round(number, 1) for number in fit({8: 350.0, 32: 162.5, 64: 131.25})]
    [100.0, 20.0]
    """
    from scipy.optimize import minimize_scalar  # a report reads plans, and fits none

    batches, logs = _logs(points)

    def residual_squares(log_bn: Float[np.ndarray, "*grid"]) -> Float[np.ndarray, "*grid"]:
        levels = logs - np.log1p(np.exp(log_bn)[..., None] / batches)
        return ((levels - levels.mean(-1, keepdims=True)) ** 2).sum(-1)

    grid = LOG_BN_GRID + np.log(batches).mean()
    first, step = grid[np.argmin(residual_squares(grid))], LOG_BN_GRID[1] - LOG_BN_GRID[0]
    log_bn = float(np.asarray(minimize_scalar(residual_squares, bounds=(first - step, first + step), method="bounded").x))
    return float(np.exp((logs - np.log1p(np.exp(log_bn) / batches)).mean())), math.exp(log_bn)


def residual(points: Mapping[int, float]) -> float:
    """Returns the root mean square of the log residuals of `fit`, a mean over the points beyond the first two.

    The law passes through two points if it can. It cannot if the larger batch takes more steps.

    >>> round(residual({8: 350.0, 32: 162.5, 64: 131.25}), 3), round(residual({8: 100.0, 32: 200.0}), 2)
    (0.0, 0.49)
    """
    batches, logs = _logs(points)
    smin, bn = fit(points)
    squares = float(((logs - np.log(smin * (1 + bn / batches))) ** 2).sum())
    return math.sqrt(squares / max(1, len(batches) - 2))


def _logs(points: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
    if not points or not all(0 < steps < math.inf for steps in points.values()):
        raise InputError(f"steps to the target must be positive and finite, at one batch at least; got {dict(points)}")
    return np.array(list(points), float), np.log(list(points.values()))

"""The law of the steps from the loss curves of runs that were made elsewhere, all at one learning rate.

The weak ratio is the slope of the logarithms of the steps over the shape of the law (`gmmae.planner.step_ratios`), by least
squares. The plan agrees with the curves' own steps. They tell nothing about other learning rates.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gmmae.config.schema import StopConfig
from gmmae.planner import step_ratios
from gmmae.planner.curve_files import Curve
from gmmae.planner.step_ratios import MetricCurve, Ratios
from gmmae.system.errors import InputError

TARGET_DIGITS = 4

MARGIN = 0.01
"""Share of its fall by which a curve passes a target that the curves decide, as in the zoo (`experiments.zoo.runs.levels`)."""

MAX_FARTHER = 0.1
"""Share of its fall that a curve may have beyond a target that another one decides."""

MIN_VALIDATIONS = 5
"""Up to the target; a curve of fewer is coarse."""

MAX_GAP = 0.4
"""Share of the steps to the target between the validations on both sides of it; in a wider gap a loss falls on no line."""

RHOS = (step_ratios.RHO, 0.85, 0.99)
"""Of the shapes that steps may follow: the law's, and straighter ones, which batches far below Bn follow."""

MAX_RESIDUAL = 0.15
"""Root mean square of the log residuals above which the steps do not follow any of these."""


class Evidence(NamedTuple):
    """All that the curves tell."""

    target: float
    base_batch: int
    steps: dict[int, float]  # to the target by batch: the geometric mean over the curves of one batch
    reached: list[tuple[Curve, float, int]]  # each curve, its steps to the target, and its validations before them
    ratios: Ratios
    follows_law: bool
    warnings: list[str]  # sentences


def hardest_level(curves: Sequence[Sequence[float]], stop: StopConfig) -> float:
    """The hardest value that all curves pass by `MARGIN`, rounded to the easier side.

    At a curve's own best value its noise would set the steps.

    >>> hardest_level([(2.0, 1.0), (1.0, 0.9)], StopConfig())
    1.01
    """
    costs = [[stop.cost(value) for value in values] for values in curves]
    level = max(min(curve) + MARGIN * (curve[0] - min(curve)) for curve in costs)
    unit = 10.0 ** (math.floor(math.log10(abs(level) or 1.0)) - TARGET_DIGITS + 1)
    return stop.cost(float(f"{math.ceil(level / unit - 1e-9) * unit:.{TARGET_DIGITS}g}"))


def read_evidence(curves: Sequence[Curve], stop: StopConfig, smooth: int, base_batch: int | None = None) -> Evidence:
    """Fits the law to the steps at which curves reach the target, by default `hardest_level`.

    The curves are running medians of `smooth` validations, and the base batch is by default the smallest.
    """
    from scipy.ndimage import median_filter  # the command begins faster without

    if len({curve.batch for curve in curves}) < 2:
        ways = "add a run at another batch, such as a quarter or four times of it"
        raise InputError(f"--curves must be of two batches or more; got {len(curves)} of batch {curves[0].batch}: {ways}")
    smoothed = [median_filter(np.array(curve.values), smooth, mode="nearest").tolist() for curve in curves]
    hardest = hardest_level(smoothed, stop)
    target = hardest if stop.target is None else stop.target
    base = base_batch or min(curve.batch for curve in curves)
    reached, warnings, ends = [], [], []
    logs, falls = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    for curve, values in zip(curves, smoothed, strict=True):
        costs = [stop.cost(value) for value in values]
        path = MetricCurve(np.array([0.0, *curve.steps]), np.array([costs[0], *costs]))
        steps = path.reaches(stop.cost(target))
        if math.isinf(steps):
            raise InputError(
                f"--target must be reached by every curve; got {target:g}, which {curve.name} misses: give at "
                f"{'most' if stop.mode == 'max' else 'least'} {hardest:g}, train that run longer, or leave it out"
            )
        if costs[0] <= stop.cost(target):
            mode, better = ("min", "lower") if stop.mode == "max" else ("max", "higher")
            raise InputError(
                f"--target must be reached after the first validation of each curve; got {target:g}, and {curve.name} begins "
                f"at {values[0]:g}: set a harder --target, validate more often, or set --mode {mode} where {better} values "
                "are better"
            )
        farther = (stop.cost(target) - min(costs)) / (costs[0] - min(costs))
        if stop.target is None and farther > MAX_FARTHER:
            ends.append(f"{curve.name} reaches {stop.cost(min(costs)):.4g}")
        validations = sum(step < steps for step in curve.steps)
        reached.append((curve, steps, validations))
        logs[curve.batch].append(math.log(steps))
        falls[curve.batch].append(step_ratios.remaining_fall(path, steps, stop.cost(target)))
        last, following = [0.0, *curve.steps, steps][validations : validations + 2]
        if validations < MIN_VALIDATIONS or following - last > MAX_GAP * steps:
            warnings.append(
                f"each curve should have {MIN_VALIDATIONS} validations or more before the target, and one close to it; "
                f"{curve.name} has {validations}, the last after {last:g} steps and the next after {following:g}: validate "
                "more often"
            )
    if ends:
        warnings.append(
            f"a run that ended early must not set the target; got {target:g}, and {', '.join(ends)}: train the "
            "others longer, or leave them out"
        )
    pairs = [(batch, log) for batch, group in logs.items() for log in group]
    weak, level = np.polyfit([step_ratios.shape(math.log2(batch / base)) for batch, _ in pairs], [log for _, log in pairs], 1)
    means = {batch: float(np.mean(group)) for batch, group in sorted(logs.items())}
    nearest = min(means, key=lambda batch: abs(math.log(batch / base)))
    fall = float(np.mean(falls[nearest]))
    ratios = Ratios(min(float(weak), step_ratios.MAX_WEAK_RATIO), None, math.exp(level), fall)
    follows = _is_plausible(means)
    if len(means) == 2:
        warnings.append("two batches fit any law of this form: a third batch would test it")
    if not follows or weak > step_ratios.MAX_WEAK_RATIO:
        there = ", ".join(f"{math.exp(log):.0f} at {at}" for at, log in means.items())
        warnings.insert(
            0,
            "the steps must fall as the batch grows, in proportion at most, and less and less; got "
            f"{there}: do not trust batches without a curve; had all runs one learning rate, and each curve its batch?",
        )
    steps = {batch: math.exp(mean) for batch, mean in means.items()}
    return Evidence(target, base, steps, reached, ratios, follows, warnings)


def _is_plausible(logs: Mapping[int, float]) -> bool:
    """Whether steps fall with the batch, hardly faster than it grows, and by a shape of `RHOS`."""
    for (least, few), (most, many) in pairwise(logs.items()):
        if not -MAX_RESIDUAL <= few - many <= math.log(most / least) + 1.5 * MAX_RESIDUAL:
            return False
    residuals = []
    for rho in RHOS:
        x = [step_ratios.shape(math.log2(batch / min(logs)), rho) for batch in logs]
        misfits = np.polyval(np.polyfit(x, [*logs.values()], 1), x) - [*logs.values()]
        residuals.append(math.sqrt(misfits @ misfits / max(1, len(logs) - 2)))
    return min(residuals) <= MAX_RESIDUAL

"""Policies that choose a strategy, and their cost on hypothetical clusters with measured steps and any overhead."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gmmae.planner import prediction
from gmmae.planner.prediction import DeviceGroup, Measured
from gmmae.scaling import strategies
from gmmae.scaling.cost import StepTimes


class Truth(NamedTuple):
    """True result of a run. `steps` are those to the target, or to the end of a run that missed it."""

    scaling: str
    devices: int
    batch: int
    arrived: bool
    steps: float


class Situation(NamedTuple):
    """Information that a policy has.

    Attributes:
      measured: the plan's measurements.
      noise: the gradient's noise scale, or None.
      published: the same as AdaptDL estimates it, or None if it is not positive.
      ratio: (a + c) / (b B) of the cluster.
      devices: their number.
      strategies: those to choose from.
    """

    measured: Measured
    noise: float | None
    published: float | None
    ratio: float
    devices: int
    scaling: Sequence[str]

    def step_s(self, batch: float) -> float:
        """Returns the time of a step in units of a sample's time on one device."""
        return self.ratio * self.measured.optim.batch_size + np.ceil(batch / self.devices)


def planned(now: Situation) -> str:
    """Returns the strategy with the least expected time by the plan."""
    at = hypothetical_group(now.measured, now.ratio, now.devices)
    strong_s = _expected_s(at, "strong", math.inf)
    found = {scaling: _expected_s(at, scaling, strong_s) for scaling in now.scaling}
    return min(found, key=lambda scaling: found[scaling])


def hypothetical_group(measured: Measured, ratio: float, devices: int) -> DeviceGroup:
    """Returns hypothetical devices with a given ratio (a + c) / (b B).

    The unit of time is b, and validation takes no time.
    """
    overhead = ratio * measured.optim.batch_size
    unit = StepTimes((1, measured.samples), (overhead + 1, overhead + measured.samples))
    return DeviceGroup(measured._replace(train=unit, passes=None), 1.0, 0.0, devices)


def _expected_s(at: DeviceGroup, scaling: str, strong_s: float) -> float:
    """Returns the expected time of a strategy, as a plan does: a run that fails is followed by one of strong scaling."""
    path = strategies.resolve(scaling, at.measured.optim, at.devices, at.measured.samples).stages[0]
    if path.batch < at.devices:
        return math.inf
    run, epoch_s = prediction.draw_run(at.measured, path), float(at.epoch_s(path.batch))
    noise = np.random.default_rng([at.devices, path.batch]).normal(size=len(run.epochs))
    times = run.epochs * epoch_s * np.exp(prediction.TIME_SIGMA * noise)
    if math.isinf(strong_s):
        return float(times.mean())
    late_s = run.late * at.measured.max_epochs * epoch_s
    failed_s = (run.failure - run.late) * np.quantile(times, (1 + prediction.INTERVAL_LEVEL) / 2) + late_s
    return float((1 - run.failure) * times.mean() + failed_s + run.failure * strong_s)


def by_goodput(now: Situation, scale: float | None, grown: str = "weak") -> str:
    """Returns AdaptDL's choice of a batch (Qiao et al., OSDI 2021) for a noise scale φ.

    It has the largest throughput times (φ + B) / (φ + m B). AdaptDL scales the learning rate along with the batch. Both are
    evaluated, at the base learning rate and by the linear rule with warmup (`grown`).
    """
    phi, base = scale or 0.0, now.measured.optim.batch_size
    batch = min(base * now.devices, now.measured.samples)
    goodput = {scaling: b / now.step_s(b) * (phi + base) / (phi + b) for scaling, b in (("strong", base), (grown, batch))}
    return max(goodput, key=lambda scaling: goodput[scaling])


def _scaled(now: Situation) -> str:
    return "linear-warmup" if "linear-warmup" in now.scaling else "weak"


POLICIES: dict[str, Callable[[Situation], str]] = {
    "the plan": planned,
    "always strong": lambda _: "strong",
    "always weak": lambda _: "weak",
    "ideal speed-up, linear rule with warmup": _scaled,
    "AdaptDL's goodput, base rate": lambda now: by_goodput(now, now.published),
    "AdaptDL's goodput, linear rule with warmup": lambda now: by_goodput(now, now.published, _scaled(now)),
    "the noise scale alone": lambda now: by_goodput(now, now.noise),
}


class Outcome(NamedTuple):
    """Outcome of a choice."""

    regret: float  # time over that of the best strategy
    arrived: bool


def outcome(now: Situation, choice: str, truths: Mapping[str, Truth]) -> Outcome:
    """Returns the time of a choice relative to the best one. A run that missed is repeated with strong scaling.

    Args:
      now: the situation.
      choice: a strategy.
      truths: the true results on those devices by strategy, including strong scaling.
    """
    times = {scaling: truth.steps * now.step_s(truth.batch) for scaling, truth in truths.items()}
    best = min(times[scaling] for scaling, truth in truths.items() if truth.arrived)
    chosen = truths[choice]
    return Outcome((times[choice] + (0.0 if chosen.arrived else times["strong"])) / best, chosen.arrived)


def published_scale(norms: Sequence[Any]) -> float | None:
    """Returns the noise scale as AdaptDL does: the ratio of the means of variance and squared gradient over all steps.

    Args:
      norms: the batch, and for each step the squared norms of gradients of one sample and of the batch.
    """
    batch, of_one, of_batch = norms[0], np.mean(norms[1]), np.mean(norms[2])
    signal, noise = float((batch * of_batch - of_one) / (batch - 1)), float((of_one - of_batch) / (1 - 1 / batch))
    return noise / signal if signal > 0 else None

"""Policies that choose a strategy, and their cost on hypothetical clusters with measured steps and any overhead."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gmmae.planner import prediction
from gmmae.planner.prediction import Measured
from gmmae.training import noise_scale
from gmmae.training.noise_scale import Norms


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
      published: the noise scale as AdaptDL estimates it, or None if it is not positive.
      ratio: (a + c) / (b B) of the cluster.
      devices: their number.
      strategies: those to choose from.
    """

    measured: Measured
    published: float | None
    ratio: float
    devices: int
    scaling: Sequence[str]

    def step_s(self, batch: float) -> float:
        """Returns the time of a step in units of a sample's time on one device."""
        return self.ratio * self.measured.optim.batch_size + np.ceil(batch / self.devices)


def planned(now: Situation) -> str:
    """Returns the strategy with the least expected time by the plan."""
    at = prediction.hypothetical_group(now.measured, now.ratio, now.devices)
    found = prediction.expected_seconds(at, now.scaling)
    return min(found, key=lambda scaling: found[scaling])


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
    "the noise scale alone": lambda now: by_goodput(now, now.measured.noise_scale),
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
    """Returns the ratio of the means of variance and squared gradient over all steps, as AdaptDL does."""
    batch, of_one, of_batch = norms
    signal, noise = (float(part.mean()) for part in noise_scale.signal_and_noise(Norms(batch, of_one, of_batch)))
    return noise / signal if signal > 0 else None

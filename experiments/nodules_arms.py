"""Workload of the nodules with two more learning rates, named by `experiments/configs/rates.toml`."""

from gmmae.scaling.strategies import STRATEGIES, ScalingStrategy, batch_a_device
from gmmae.workloads.nodules import Config, build, draw, events

__all__ = ["Config", "build", "draw", "events"]

STRATEGIES["fourth-root"] = ScalingStrategy("Fourth-root rule", batch_a_device, lambda k: k**0.25)
STRATEGIES["three-quarters"] = ScalingStrategy("Three-quarter rule", batch_a_device, lambda k: k**0.75)

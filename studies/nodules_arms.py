"""The nodules with more arms: rates between weak scaling's and the linear rule's, and the linear rule with β2 in samples.

A workload's file: `python sweep.py --config studies/configs/rates.toml` names it.
"""

from gmmae.base.arms import ARMS, Adam, Arm, OptimConfig, batch_a_device, linearly
from gmmae.workloads.nodules import Config, build, draw, events, training_samples

__all__ = ["Config", "build", "draw", "events", "training_samples"]


def memory_in_samples(optim: OptimConfig, k: float) -> Adam:
    """β2 such that as many samples are remembered as at the base batch."""
    return Adam(optim.beta1, optim.beta2**k, optim.epsilon)


ARMS["fourth-root"] = Arm("Fourth-root rule", batch_a_device, lambda k: k**0.25)
ARMS["three-quarters"] = Arm("Three-quarter rule", batch_a_device, lambda k: k**0.75)
ARMS["linear-memory"] = Arm("Linear rule, β2 in samples", batch_a_device, linearly, adam=memory_in_samples)
ARMS["linear-warmup-memory"] = Arm(
    "Linear rule + warmup, β2 in samples", batch_a_device, linearly, warmup=True, adam=memory_in_samples
)

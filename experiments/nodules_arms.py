"""Workload of the nodules with the strategies of the study, named by `experiments/configs/rates.toml`."""

import sys
from pathlib import Path

from gmmae.scaling.strategies import STRATEGIES
from gmmae.workloads.nodules import Config, build, draw, events

sys.path.append(str(Path(__file__).parents[1]))
from experiments.more_arms import MORE

__all__ = ["Config", "build", "draw", "events"]

STRATEGIES.update(MORE)

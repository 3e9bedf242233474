"""The nodules with the arms of the study. A workload's file: `python sweep.py --config studies/configs/rates.toml` names it."""

import sys
from pathlib import Path

from gmmae.base.arms import ARMS
from gmmae.workloads.nodules import Config, build, draw, events, training_samples

sys.path.append(str(Path(__file__).parents[1]))
from studies.more_arms import MORE

__all__ = ["Config", "build", "draw", "events", "training_samples"]

ARMS.update(MORE)

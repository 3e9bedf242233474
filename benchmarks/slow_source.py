"""The nodules of a configuration from a source that waits for each sample, or from arrays. It is a workload file."""

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

from gmmae.config.rules import NonNegativeFloat
from gmmae.workloads import nodules
from gmmae.workloads.interface import Samples, Splits, Workload
from gmmae.workloads.settings import NodulesConfig


@dataclass(frozen=True)
class Config(NodulesConfig):
    """The nodules, and how they are read."""

    wait_ms: NonNegativeFloat | None = None  # of the source for each sample; none: arrays


class Waiting:
    """Samples of an array that take a while."""

    def __init__(self, volumes: Any, seconds: float) -> None:
        self._volumes, self._seconds = volumes, seconds

    def __len__(self) -> int:
        return len(self._volumes)

    def __getitem__(self, index: int) -> Samples:
        if self._seconds:
            time.sleep(self._seconds)
        return self._volumes[index]


def build(config: Config) -> Workload:
    """Returns the nodules' workload."""
    workload = nodules.build(config)

    def load() -> Splits:
        data = workload.load()
        if config.wait_ms is None:
            return data
        seconds = config.wait_ms / 1e3
        return dataclasses.replace(data, train=Waiting(data.train, seconds), validation=Waiting(data.validation, seconds))

    return workload._replace(load=load)

"""A run's nodules from a source, by a workload file."""

import dataclasses
from pathlib import Path
from typing import Any

from gmmae.config.schema import Config
from gmmae.workloads import registry

VOLUMES = """
import dataclasses
import errno
import os
import time

from gmmae.workloads import nodules
from gmmae.workloads.settings import NodulesConfig


@dataclasses.dataclass(frozen=True)
class Config(NodulesConfig):
    wait_s: float = 0.0  # for each sample
    fails_at: int = -1  # the sample that cannot be read
    reads: str = ""  # a folder in which each process lists the training samples that it reads


class Volumes:
    def __init__(self, arrays, config, reads):
        self.arrays, self.config, self.reads = arrays, config, reads

    def __len__(self):
        return len(self.arrays)

    def __getitem__(self, index):
        time.sleep(self.config.wait_s)
        if index == self.config.fails_at:
            raise OSError(errno.EIO, "the disk is gone")
        if self.reads:
            with open(f"{self.reads}/{os.getpid()}", "a") as file:
                file.write(f"{index}\\n")
        return self.arrays[index]


def build(config):
    workload = nodules.build(config)

    def load():
        data = workload.load()
        train, validation = Volumes(data.train, config, config.reads), Volumes(data.validation, config, "")
        return dataclasses.replace(data, train=train, validation=validation)

    return workload._replace(load=load)
"""


def from_source(path: Path, config: Config, **settings: Any) -> Config:
    """Returns a configuration of nodules with their volumes from a source.

    Args:
      path: of the workload's file, which is written.
      config: the nodules.
      settings: of the source.
    """
    path.write_text(VOLUMES)
    own = {item.name: getattr(config.settings, item.name) for item in dataclasses.fields(config.settings)}
    return dataclasses.replace(config, workload=str(path), settings=registry.load(str(path)).Config(**own, **settings))

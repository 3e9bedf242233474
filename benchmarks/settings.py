"""Changes of what a configuration says of the nodules, which are in its workload's settings."""

import dataclasses
from typing import Any

from gmmae.base.config import Config


def changed(config: Config, section: str, **values: Any) -> Config:
    """The configuration with other values in the section `data` or `model`.

    >>> from gmmae.workloads.registry import configuration
    >>> changed(configuration("nodules"), "data", size=20).settings.data.size
    20
    """
    part = dataclasses.replace(getattr(config.settings, section), **values)
    return dataclasses.replace(config, settings=dataclasses.replace(config.settings, **{section: part}))

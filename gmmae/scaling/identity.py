"""What makes two runs the same run: the keys of the configuration that determine what it computes."""

import hashlib
import json
from typing import Any

from gmmae.config.schema import Config, flatten
from gmmae.scaling.strategies import devices_may_change


def determining(config: Config) -> dict[str, Any]:
    """The keys that determine what a run computes: all but those that are marked `RESUMABLE`.

    `parallel.devices` is one of them where global batch and learning rate follow it: not in the strategy `strong`, and not where
    `parallel.simulate_devices` takes its place. Such a run may go on with another number of devices.
    """
    free = ("parallel.devices",) if devices_may_change(config) else ()
    return {key: value for key, value in flatten(config, resumable=False) if key not in free}


def run_id(config: Config) -> str:
    """Twelve hexadecimal digits of a SHA-256 of what determines the run; equal for a run and its resumption."""
    return hashlib.sha256(json.dumps(determining(config), sort_keys=True).encode()).hexdigest()[:12]

"""The identity of a run: the keys that determine its result."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from gmmae.config.schema import Config, flatten
from gmmae.scaling.strategies import devices_may_change


def identity_fields(config: Config) -> dict[str, Any]:
    """The keys that determine a run's result, besides its data.

    `parallel.devices` is one of them only where batch or learning rate follow it: other runs may be resumed on another number.
    """
    free = ("parallel.devices",) if devices_may_change(config) else ()
    return {key: value for key, value in flatten(config, resumable=False) if key not in free}


def run_id(config: Config, data: Mapping[str, str]) -> str:
    """Twelve digits of a SHA-256 of these keys and of the data's digests."""
    return hashlib.sha256(json.dumps([identity_fields(config), data], sort_keys=True).encode()).hexdigest()[:12]

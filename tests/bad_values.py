"""Bad values of a configuration's keys."""

from collections.abc import Callable
from typing import Any

import pytest

from gmmae.config.rules import ConfigError


def require_refused(change: Callable[[], object], key: str, value: Any, rule: str = ""):
    """Checks that a change of a key to a value is refused in one line, by the key, its rule and the value."""
    with pytest.raises(ConfigError) as caught:
        change()
    message = str(caught.value)
    assert message.startswith(f"{key} must be ")
    assert rule in message
    assert message.endswith(f"; got {'none' if value is None else repr(value)}")
    assert "\n" not in message

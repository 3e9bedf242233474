"""A logger or a display that does nothing."""

from collections.abc import Callable
from typing import Any


class _Idle:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


IDLE: Any = _Idle()
"""The logger of every process but the first, and of all that is switched off."""

"""What stands for a journal, a board or a display that does nothing."""

from typing import Any


class _Idle:
    """Has every method, and none does anything."""

    def __getattr__(self, name: str) -> Any:
        return self._nothing

    def _nothing(self, *_: Any, **__: Any) -> None:
        pass


IDLE: Any = _Idle()
"""Of every process but the first, and of whatever the configuration switches off."""

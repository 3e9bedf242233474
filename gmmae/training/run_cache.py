"""Data and compiled programs that the runs of one process share."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class RunCache:
    """The data and the compiled programs of earlier runs of this process.

    Runs that differ in seed, learning rate, schedule or stopping rules have the same programs. The cache holds everything as
    long as it exists.

    >>> cache = RunCache()
    >>> cache.get("key", lambda: 1), cache.get("key", lambda: 2)
    (1, 1)
    """

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns the value of this key, which is made at the first call."""
        if key not in self._values:
            self._values[key] = make()
        return cast(T, self._values[key])

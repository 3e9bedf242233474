"""Statistics of the benchmarks: medians with quartiles, ratios by turns, and growth."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Spread(NamedTuple):
    """Median and quartiles."""

    median: float
    low: float
    high: float

    def text(self, digits: int = 3, scale: float = 1.0) -> str:
        """Returns the text of a table's cell.

        >>> Spread(0.25, 0.125, 0.5).text(digits=3, scale=1000)
        '250 (125 to 500)'
        """
        median, low, high = (f"{scale * value:.{digits}g}" for value in self)
        return f"{median} ({low} to {high})"


def spread(values: Sequence[float]) -> Spread:
    """Returns the median and quartiles of some measurements.

    >>> spread([3, 1, 2])
    Spread(median=2.0, low=1.5, high=2.5)
    """
    low, median, high = (float(q) for q in np.quantile(values, (0.25, 0.5, 0.75)))
    return Spread(median, low, high)


def ratios(theirs: Sequence[float], ours: Sequence[float]) -> Spread:
    """Returns the ratios of times by turns, so that a slow moment of the machine affects both sides.

    A backend may have fewer turns, the first ones.

    >>> ratios([2, 6], [1, 2, 9]).median
    2.5
    """
    return spread([a / b for a, b in zip(theirs, ours, strict=False)])


def distance(found: Sequence[float] | np.ndarray, wanted: Sequence[float] | np.ndarray) -> float:
    """Returns the largest relative difference of any number, or NaN if one is not finite.

    >>> distance([1.0, 2.2], [1.0, 2.0])
    0.10000000000000009
    """
    return float(np.abs(np.asarray(found) / np.asarray(wanted) - 1).max())


def array_distance(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    """Returns the largest distance of any array, relative to its norm.

    >>> array_distance({"dead": np.zeros(2)}, {"dead": np.zeros(2)}), array_distance({"a": np.ones(1)}, {"a": np.zeros(1)})
    (0.0, inf)
    """
    if found.keys() != wanted.keys():
        raise ValueError(f"arrays must be the same on both sides; got {sorted(found.keys() ^ wanted.keys())} on one only")
    apart = {name: np.linalg.norm(found[name] - wanted[name]) for name in wanted}
    with np.errstate(divide="ignore"):
        return float(np.max([0.0, *(float(value / np.linalg.norm(wanted[name])) for name, value in apart.items() if value)]))


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Returns p of the least-squares fit `seconds ~ sizes^p`, which is 1 for linear growth.

    >>> round(exponent([1, 2, 4], [1, 4, 16]), 6)
    2.0
    """
    slope, _ = np.polyfit([math.log(size) for size in sizes], [math.log(value) for value in seconds], 1)
    return float(slope)

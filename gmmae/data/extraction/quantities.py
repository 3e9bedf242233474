"""Numbers in text, and distances of voxels, as every reader of files takes them. Nothing here imports SimpleITK."""

import math
from collections.abc import Iterable

from gmmae.data.volumes import DataError

SPACING_MM = (1e-6, 1e6)
"""Distances of voxels beyond these are not in mm, or no distances."""


def as_number(text: str) -> float:
    """The number that a text is, NaN where it is none.

    Python also takes `1_0` for a number. No other reader does.

    >>> as_number(" 5.1e0 "), as_number("1_0"), as_number("six")
    (5.1, nan, nan)
    """
    try:
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan


def require_diameter(diameter_mm: float | None) -> None:
    """
    Raises:
      DataError: a diameter is given that can be none.
    """
    if diameter_mm is not None and not (math.isfinite(diameter_mm) and diameter_mm > 0):
        raise DataError(f"diameter_mm must be positive; got {diameter_mm:g}")


def require_spacing(spacing: Iterable[float], name: str = "the spacing") -> None:
    """
    Raises:
      DataError: a distance of voxels cannot be one in mm; the message begins with `name`.
    """
    given = tuple(spacing)
    least, most = SPACING_MM
    if not all(least <= mm <= most for mm in given):
        raise DataError(f"{name} must be between {least:g} and {most:g} mm; it is {listed(given)}")


def listed(numbers: Iterable[int | float]) -> str:
    """Numbers in a message."""
    return " ".join(f"{number:g}" for number in numbers)

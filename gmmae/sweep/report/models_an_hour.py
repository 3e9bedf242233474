"""Trained models an hour: seeds side by side, one on each device, or runs one after another on all devices.

The first is what MLPerf HPC calls weak scaling. Weak scaling is another thing here: the batch grows with the devices.
"""

import math

from gmmae.plotting import tables
from gmmae.sweep.report.results import Results

ASSUMPTION = "Assumed: neither the host nor shared links slow runs side by side. A device begins its next run at once."
"""The assumption behind the figures of seeds side by side."""


def rate(seconds: float, at_once: int = 1) -> float:
    """Returns trained models an hour. It is 0 where the target was missed.

    Args:
      seconds: the time of a run to the target, infinite where it was missed.
      at_once: number of runs at the same time.

    >>> rate(60.0), rate(60.0, at_once=4), rate(math.inf)
    (60.0, 240.0, 0.0)
    """
    return at_once * 3600 / seconds


def text(seconds: float, at_once: int = 1) -> str:
    """Returns `rate` as text with three significant digits, or "not reached" where the target was missed.

    >>> text(277.0), text(100.0, at_once=4), text(math.inf)
    ('13.0', '144', 'not reached')
    """
    return tables.seconds(rate(seconds, at_once) if math.isfinite(seconds) else seconds)


def one_device(results: Results) -> tuple[str, float] | None:
    """Returns the strategy of the seeds side by side, and the median seconds of its runs on one device.

    It is strong scaling, or else the first strategy with times on one device. Without such times it is None. The seconds are
    infinite where the median run missed the target.
    """
    for scaling in sorted(results.config.scaling, key=lambda name: name != "strong"):
        if summary := results.seconds(scaling, 1):
            return scaling, summary.median
    return None

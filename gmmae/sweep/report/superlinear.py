"""What is projected to be more than n times as short on n devices: an artefact of the machine on which steps were measured.

On n devices alike, computation takes an n-th of the time at best, and the all-reduce is added to it. A projected epoch is
shorter than that only where the measuring machine takes less time a sample for a small batch than for a large one. A plan's
time to the target may be shorter by a batch and a learning rate too that one device did not have.
"""

import math
from collections.abc import Iterable

from gmmae.plotting import tables
from gmmae.scaling.strategies import STRATEGIES
from gmmae.sweep.report.outcomes import devices_text, listed
from gmmae.sweep.report.results import Results


def speed_up(results: Results, scaling: str, devices: int) -> float:
    """Returns how many times as short a projected epoch is on n devices as on one; NaN where one of them is not projected."""
    first, nth = (next((run.epoch for run in results.group(scaling, n) if run.epoch), None) for n in (1, devices))
    if results.clock.kind != "projected" or first is None or nth is None:
        return math.nan
    return first.total_s / nth.total_s


def artefacts(results: Results, scaling: str) -> list[int]:
    """Returns the numbers of devices n on which an epoch of a strategy is shown to be more than n times as short."""
    return [n for n in results.counts if float(tables.ratio(speed_up(results, scaling, n))) > n]


def headline(results: Results, scaling: str, devices: int) -> str:
    """Returns the sentence on a strategy's speed-up where it is an artefact, with a space before it; otherwise nothing."""
    if devices not in artefacts(results, scaling):
        return ""
    found = tables.ratio(speed_up(results, scaling, devices))
    return f" **An epoch is projected to be {found} times as short on {devices_text([devices])}. {_why(results, devices)}"


def notes(results: Results, strategies: Iterable[str]) -> tuple[str, ...]:
    """Returns what efficiencies above 100 % mean where some strategy has them in projected epochs."""
    found = any(artefacts(results, scaling) for scaling in strategies)
    return (f"**Above 100 %: {_why(results)}",) if found else ()


def items(results: Results) -> list[str]:
    """Returns the item of the verdict that names all strategies and numbers of devices with such an epoch, or none."""
    parts = []
    for scaling in results.config.scaling:
        if counts := artefacts(results, scaling):
            ratios = listed(tables.ratio(speed_up(results, scaling, n)) for n in counts)
            parts.append(f"{STRATEGIES[scaling].label} on {devices_text(counts)} ({ratios} times)")
    return [f"**Epochs more than n times as short on n devices**: {'; '.join(parts)}. **{_why(results)}"] if parts else []


def _why(results: Results, devices: int | None = None) -> str:
    return artefact(results.timings[0].device_kind, devices, "**")


def artefact(device_kind: str, devices: int | None, bold: str = "") -> str:
    """Returns the sentence that blames the machine on which the steps were measured."""
    return (
        f"More than {fold(devices)} is an artefact of the machine on which the steps were measured{bold} "
        f"({device_kind}), which takes less time a sample for small batches."
    )


def fold(devices: int | None) -> str:
    """Returns "n-fold" for a number of devices, or for n."""
    return "n-fold" if devices is None else f"{devices}-fold"

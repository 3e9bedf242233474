"""Explains projected speed-ups of more than n on n devices, which are artefacts of the measuring machine.

On n equal devices computation takes at least an n-th of the time, and the all-reduce is added. A projected epoch is shorter
only if the measuring machine needs less time per sample for small batches than for large ones. A plan's time to the target may
also be shorter because of a batch and a learning rate that one device did not have.
"""

import math
from collections.abc import Iterable

from gmmae.plotting import tables
from gmmae.sweep.report.outcomes import devices_text
from gmmae.sweep.report.results import Results


def speed_up(results: Results, scaling: str, devices: int) -> float:
    """Returns the speed-up of a projected epoch on n devices over one, or NaN if one of them is not projected."""
    first, nth = (next((run.epoch for run in results.group(scaling, n) if run.epoch), None) for n in (1, devices))
    if results.clock.kind != "projected" or first is None or nth is None:
        return math.nan
    return first.total_s / nth.total_s


def artefacts(results: Results, scaling: str) -> list[int]:
    """Returns the numbers of devices n on which the displayed speed-up of an epoch is more than n."""
    return [n for n in results.counts if float(tables.ratio(speed_up(results, scaling, n))) > n]


def headline(results: Results, scaling: str, devices: int) -> str:
    """Returns a sentence, after a space, if a strategy's speed-up is an artefact. Otherwise it returns nothing."""
    if devices not in artefacts(results, scaling):
        return ""
    ratio = tables.ratio(speed_up(results, scaling, devices))
    cause = artefact(results.timings[0].device_kind, devices)
    return f" **An epoch is projected to be {ratio} times as fast on {devices_text([devices])}.** {cause}"


def notes(results: Results, strategies: Iterable[str]) -> tuple[str, ...]:
    """Returns the explanation of efficiencies above 100 %, if some strategy has them in projected epochs."""
    exist = any(artefacts(results, scaling) for scaling in strategies)
    return (f"Above 100 %: {artefact(results.timings[0].device_kind, None)}",) if exist else ()


def artefact(device_kind: str, devices: int | None) -> str:
    """Returns the sentence that attributes a speed-up to the measuring machine."""
    return (
        f"More than {fold(devices)} is an artefact of the machine on which the steps were measured ({device_kind}), "
        "which takes less time per sample for small batches."
    )


def fold(devices: int | None) -> str:
    """Returns "n-fold" for a number of devices, or for n."""
    return "n-fold" if devices is None else f"{devices}-fold"

"""What is projected to be more than n times as short on n devices: an artefact of the machine on which steps were measured.

On n devices alike, computation takes an n-th of the time at best, and the all-reduce is added to it. A projected epoch is
shorter than that only where the measuring machine takes less time a sample for a small batch than for a large one. A plan's
time to the target may be shorter by a batch and a learning rate too that one device did not have.
"""

import math
from collections.abc import Iterable

from gmmae.analysis import scaling
from gmmae.analysis.plan import Cell, Measured
from gmmae.base.arms import ARMS
from gmmae.report import tables
from gmmae.report.outcomes import devices_text, listed
from gmmae.report.results import Results

ROUNDING = 1.005
"""A plan's speed-up over the number of devices by more than this factor is explained."""

MACHINE, RECIPE = "‡", "§"
"""After a plan's speed-up of more than n: the measuring machine's, or the batch's and the rate's."""


def speed_up(results: Results, arm: str, devices: int) -> float:
    """Returns how many times as short a projected epoch is on n devices as on one; NaN where one of them is not projected."""
    first, nth = (next((run.epoch for run in results.group(arm, n) if run.epoch), None) for n in (1, devices))
    if results.clock.kind != "projected" or first is None or nth is None:
        return math.nan
    return first.total_s / nth.total_s


def artefacts(results: Results, arm: str) -> list[int]:
    """Returns the numbers of devices n on which an epoch of an arm is shown to be more than n times as short."""
    return [n for n in results.counts if float(tables.ratio(speed_up(results, arm, n))) > n]


def headline(results: Results, arm: str, devices: int) -> str:
    """Returns the sentence on an arm's speed-up where it is an artefact, with a space before it; otherwise nothing."""
    if devices not in artefacts(results, arm):
        return ""
    found = tables.ratio(speed_up(results, arm, devices))
    return f" **An epoch is projected to be {found} times as short on {devices_text([devices])}. {_why(results, devices)}"


def notes(results: Results, arms: Iterable[str]) -> tuple[str, ...]:
    """Returns what efficiencies above 100 % mean where some arm has them in projected epochs."""
    found = any(artefacts(results, arm) for arm in arms)
    return (f"**Above 100 %: {_why(results)}",) if found else ()


def items(results: Results) -> list[str]:
    """Returns the item of the verdict that names all arms and numbers of devices with such an epoch, or none."""
    parts = []
    for arm in results.config.arms:
        if counts := artefacts(results, arm):
            ratios = listed(tables.ratio(speed_up(results, arm, n)) for n in counts)
            parts.append(f"{ARMS[arm].label} on {devices_text(counts)} ({ratios} times)")
    return [f"**Epochs more than n times as short on n devices**: {'; '.join(parts)}. **{_why(results)}"] if parts else []


def mark(cell: Cell, measured: Measured) -> str:
    """Returns the mark of a plan's speed-up that is larger than the number of devices; otherwise nothing."""
    if cell.speedup <= ROUNDING * cell.devices:
        return ""
    share, base = cell.batch / cell.devices, measured.optim.base_batch
    return MACHINE if share < base and _sample_s(measured, share) < _sample_s(measured, base) else RECIPE


def told(cell: Cell, measured: Measured, device_kind: str) -> str:
    """Returns the sentences on a plan's speed-up where it has a mark, with a space before them; otherwise nothing."""
    found, began = mark(cell, measured), f" A speed-up of {cell.speedup:.3g} is predicted on {devices_text([cell.devices])}."
    return f"{began} {_reason(found, device_kind, cell.devices)}" if found else ""


def explained(cells: Iterable[Cell], measured: Measured, device_kind: str) -> tuple[str, ...]:
    """Returns what the marks of a plan's cells mean, a line for each kind."""
    found = {mark(cell, measured) for cell in cells}
    return tuple(f"{kind} {_reason(kind, device_kind)}" for kind in (MACHINE, RECIPE) if kind in found)


def _reason(kind: str, device_kind: str, devices: int | None = None) -> str:
    if kind == MACHINE:
        return _artefact(device_kind, devices)
    return f"More than {_fold(devices)} comes from a batch and a learning rate that one device did not have."


def _sample_s(measured: Measured, batch: float) -> float:
    """Returns the seconds of a training step over its samples, as measured on one device."""
    return float(scaling.seconds_at(measured.train, batch)) / batch


def _why(results: Results, devices: int | None = None) -> str:
    return _artefact(results.timings[0].device_kind, devices, "**")


def _artefact(device_kind: str, devices: int | None, bold: str = "") -> str:
    return (
        f"More than {_fold(devices)} is an artefact of the machine on which the steps were measured{bold} "
        f"({device_kind}), which takes less time a sample for small batches."
    )


def _fold(devices: int | None) -> str:
    return "n-fold" if devices is None else f"{devices}-fold"

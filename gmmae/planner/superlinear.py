"""Speed-ups of a plan that are larger than the number of devices, and why they are."""

from collections.abc import Iterable

from gmmae.planner.prediction import Cell, Measured
from gmmae.scaling import cost
from gmmae.sweep.report.outcomes import devices_text
from gmmae.sweep.report.superlinear import artefact, fold

ROUNDING = 1.005
"""A plan's speed-up over the number of devices by more than this factor is explained."""

MACHINE, RECIPE = "‡", "§"
"""After a plan's speed-up of more than n: the measuring machine's, or the batch's and the rate's."""


def mark(cell: Cell, measured: Measured) -> str:
    """Returns the mark of a plan's speed-up that is larger than the number of devices; otherwise nothing."""
    if cell.speedup <= ROUNDING * cell.devices:
        return ""
    share, base = cell.batch / cell.devices, measured.optim.batch_size
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
        return artefact(device_kind, devices)
    return f"More than {fold(devices)} comes from a batch and a learning rate that one device did not have."


def _sample_s(measured: Measured, batch: float) -> float:
    """Returns the seconds of a training step over its samples, as measured on one device."""
    return float(cost.seconds_at(measured.train, batch)) / batch

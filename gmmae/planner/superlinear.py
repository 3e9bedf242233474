"""Explanations of predicted speed-ups that are larger than the number of devices."""

from collections.abc import Iterable

from gmmae.planner.prediction import Measured, Prediction
from gmmae.scaling import cost
from gmmae.sweep.report.outcomes import devices_text
from gmmae.sweep.report.superlinear import artefact, fold

MIN_EXPLAINED_RATIO = 1.005
"""The ratio of speed-up to devices above which a speed-up is explained."""

MACHINE_MARK, BATCH_MARK = "‡", "§"
"""The marks of speed-ups larger than n, due to the measuring machine, or to the batch and the learning rate."""


def mark(cell: Prediction, measured: Measured) -> str:
    """Returns the mark of a speed-up that is larger than the number of devices, otherwise an empty text."""
    if cell.speedup <= MIN_EXPLAINED_RATIO * cell.devices:
        return ""
    share, base = cell.batch / cell.devices, measured.optim.batch_size
    return MACHINE_MARK if share < base and _sample_s(measured, share) < _sample_s(measured, base) else BATCH_MARK


def explanation(cell: Prediction, measured: Measured, device_kind: str) -> str:
    """Returns the sentences that explain a marked speed-up, after a space; otherwise an empty text."""
    kind, beginning = mark(cell, measured), f" A speed-up of {cell.speedup:.3g} is predicted on {devices_text([cell.devices])}."
    return f"{beginning} {_reason(kind, device_kind, cell.devices)}" if kind else ""


def explain_marks(cells: Iterable[Prediction], measured: Measured, device_kind: str) -> tuple[str, ...]:
    """Returns one line for each mark in a plan's table, with its meaning."""
    kinds = {mark(cell, measured) for cell in cells}
    return tuple(f"{kind} {_reason(kind, device_kind)}" for kind in (MACHINE_MARK, BATCH_MARK) if kind in kinds)


def _reason(kind: str, device_kind: str, devices: int | None = None) -> str:
    if kind == MACHINE_MARK:
        return artefact(device_kind, devices)
    return f"More than {fold(devices)} comes from a batch and a learning rate that one device did not have."


def _sample_s(measured: Measured, batch: float) -> float:
    """Returns the seconds of a training step for each sample, as measured on one device."""
    return float(cost.seconds_at(measured.train, batch)) / batch

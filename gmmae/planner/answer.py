"""The three lines of a plan's answer for a cluster: the choice, whether growing the batch pays, and what is not sure."""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from gmmae.planner.measure import PlanMeasurements
from gmmae.planner.prediction import BEST_BATCH, Forecast, Measured, Prediction
from gmmae.scaling import cost, strategies
from gmmae.sweep.report.outcomes import devices_text, listed

AS_MEASURED = "devices as fast as the one that measured"
"""The devices whose times a plan states if no factor to the cluster's own devices is known."""

MAX_SHARE_OF_BASE = 0.8
"""Share of the base batch's expected time on one device below which the answer names a better batch."""


class Source(NamedTuple):
    """The steps behind predicted times."""

    device_kind: str  # the device that was measured
    precision: str  # `precision` of the configuration


class Answer(NamedTuple):
    """The three lines."""

    choice: str
    growth: str
    doubts: str


def answer(forecast: Forecast, measurements: PlanMeasurements, precision: str) -> Answer:
    """Returns the three lines for a cluster.

    Args:
      forecast: the predictions for the cluster.
      measurements: the measurements behind them.
      precision: `precision` of the measured runs.
    """
    source = Source(measurements.device_kind, precision)
    doubts = f"{_failures(forecast)}{_steps_text(forecast.best, measurements.measured)}"
    return Answer(_choice(forecast, source), _growth(forecast), doubts)


def factor_text(factor: float) -> str:
    """Returns a factor with three significant digits.

    >>> factor_text(0.02), factor_text(3254.0)
    ('0.02', '3,250')
    """
    return f"{float(f'{factor:.3g}'):,.12g}"


def time_text(seconds: float) -> str:
    """Returns a time with two significant digits.

    >>> time_text(0.1234), time_text(95.4), time_text(110), time_text(5000), time_text(7800)
    ('0.12 s', '95 s', '1.8 min', '83 min', '2.2 h')
    """
    value, unit = (seconds, "s") if seconds < 99.5 else (seconds / 60, "min") if seconds < 5970 else (seconds / 3600, "h")
    return f"{value:#.2g}".rstrip(".") + f" {unit}" if value < 99.5 else f"{value:.0f} {unit}"


def interval_text(low_s: float, high_s: float) -> str:
    """Returns an interval of times, with one unit where both have the same.

    >>> interval_text(27.0, 50.0), interval_text(80.0, 130.0)
    ('27 to 50 s', '80 s to 2.2 min')
    """
    low, high = time_text(low_s), time_text(high_s)
    value, unit = low.split()
    return f"{value if high.endswith(f' {unit}') else low} to {high}"


def label(name: str) -> str:
    """Returns the label of a strategy."""
    return strategies.STRATEGIES[name].label


def times_of(forecast: Forecast, source: Source) -> str:
    """Returns the devices whose times a forecast states, and the device and precision of the measured steps.

    Step times of one kind of device are called those of another only if a factor between them is known.
    """
    cluster, measured_on = forecast.cluster, f"steps measured on {source.device_kind} in {source.precision}"
    if forecast.compute_scale != 1:
        factor_from = "--scale-compute" if forecast.scale_given else "reference_step_s in the cluster's file"
        return f"{cluster.name}, times scaled by {factor_text(forecast.compute_scale)} from {measured_on} ({factor_from})"
    if cost.same_device(cluster.device, source.device_kind):
        return f"{cluster.name}, {measured_on}"
    return f"{AS_MEASURED} ({source.device_kind} in {source.precision}), linked as in {cluster.name}"


def _choice(forecast: Forecast, source: Source) -> str:
    """Returns the recommended strategy and devices, the time with its interval, and whose time it is."""
    best, of = forecast.best, times_of(forecast, source)
    plural = "s" * (best.devices > 1)
    if of.startswith(AS_MEASURED):
        devices = f"{best.devices} device{plural} {of.removeprefix('devices ')}"
    else:
        noun = "GPU" if {"GPU", "NVIDIA"} & set(forecast.cluster.device.split()) else "device"
        devices = f"{best.devices} {noun}{plural} of {of}"
    interval = interval_text(best.seconds_low, best.seconds_high)
    return f"On {devices}: {label(best.scaling).lower()}, about {time_text(best.seconds)} ({interval}, 80 %)."


def _growth(forecast: Forecast) -> str:
    """Returns whether a batch that grows with the devices is expected to be faster than strong scaling, and on how many."""
    counts = sorted({cell.devices for cell in forecast.cells if cell.devices > 1})
    if not counts:
        return f"Only one device was planned for, so the batch has no devices to grow with.{_smaller(forecast)}"
    faster = {n: cell for n in counts if (cell := _fastest_grown(forecast, n))}
    if not faster:
        return f"Growing the batch with the devices never pays.{_smaller(forecast)}"
    first, last = min(faster), max(faster)
    onwards = [n for n in counts if n >= first] == list(faster)
    where = f"from n = {first} on" if onwards else f"on {devices_text(list(faster))} only"
    text = f"Growing the batch with the devices pays {where} ({label(faster[first].scaling).lower()})."
    strong_s = _strong_s(forecast, last)
    if math.isfinite(strong_s):
        share = f"{100 * faster[last].expected_s / strong_s:.0f} %"
        name = label(faster[last].scaling).lower()
        text += f" On {devices_text([last])} {name} takes {share} of the expected time of strong scaling."
    return text + _smaller(forecast)


def _smaller(forecast: Forecast) -> str:
    """Returns a sentence, with a space before it, if another batch is much faster on one device; otherwise nothing."""
    cells = [cell for cell in forecast.cells if (cell.scaling, cell.devices) == (BEST_BATCH, 1)]
    if not cells or cells[0].expected_s > MAX_SHARE_OF_BASE * _strong_s(forecast, 1):
        return ""
    share = 100 * cells[0].expected_s / _strong_s(forecast, 1)
    return f" On one device a batch of {cells[0].batch} takes {share:.0f} % of the base batch's expected time."


def _strong_s(forecast: Forecast, devices: int) -> float:
    """Returns the expected seconds of strong scaling; infinity if its batch has no sample for each device."""
    seconds = (cell.expected_s for cell in forecast.cells if (cell.scaling, cell.devices) == ("strong", devices))
    return next(seconds, math.inf)


def _fastest_grown(forecast: Forecast, devices: int) -> Prediction | None:
    """Returns the fastest tested strategy whose batch grows with the devices, if it is faster than strong scaling."""
    grown = [cell for cell in forecast.cells if cell.devices == devices and cell.scaling not in ("strong", BEST_BATCH)]
    faster = [cell for cell in grown if cell.tested and cell.expected_s < _strong_s(forecast, devices)]
    return min(faster, key=lambda cell: cell.expected_s, default=None)


def _failures(forecast: Forecast) -> str:
    """Returns sentences, each with a space behind it, on strategies that are likely to fail, and on untested ones."""
    several = sorted((cell for cell in forecast.cells if cell.devices > 1), key=lambda cell: cell.devices)
    if not several:
        return ""
    failing: dict[str, int] = {}
    untested: dict[str, int] = {}
    for cell in several:
        if not cell.tested:
            untested.setdefault(cell.scaling, cell.devices)
        elif cell.probability_of_failure > 0.5:
            failing.setdefault(cell.scaling, cell.devices)
    text = _from_counts(failing, "will most likely fail") or "No tested strategy is likely to fail. "
    return text + _from_counts(untested, "is untested", "are untested")


def _from_counts(first: Mapping[str, int], one: str, several: str | None = None) -> str:
    """Returns a sentence on the numbers of devices from which something holds of strategies, or an empty text."""
    by_count: dict[int, list[str]] = defaultdict(list)
    for name, devices in first.items():
        text = label(name).lower()
        by_count[devices].append(f"the {text}" if "rule" in text else text)
    parts: list[str] = []
    for devices, names in sorted(by_count.items()):
        verb = "" if parts else f" {several if several and len(names) > 1 else one}"
        parts.append(f"{listed(names)}{verb} from n = {devices} on")
    return f"{', '.join(parts)[0].upper()}{', '.join(parts)[1:]}. " if parts else ""


def _steps_text(best: Prediction, measured: Measured) -> str:
    """Returns a sentence on the steps of the choice: their interval, and the runs behind them."""
    steps = f"{best.steps:.0f} steps ({best.steps_low:.0f} to {best.steps_high:.0f}, 80 %)"
    if (best.learning_rate, best.batch) == (measured.optim.learning_rate, measured.optim.batch_size):
        return f"The choice takes {steps}, by a run at its batch and learning rate and the scatter between seeds."
    runs = sum(one is not None for one in (measured.ratios.weak, measured.ratios.rate_exponent))
    beside = f" and {runs} short run{'s' * (runs > 1)} beside it" if runs else " alone, so they are uncertain"
    return f"The choice takes {steps}, predicted from a run at batch {measured.optim.batch_size}{beside}."

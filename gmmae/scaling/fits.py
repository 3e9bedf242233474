"""The law of `gmmae.scaling.cost` fitted to measured times, with intervals. A fit that the data leave open is refused.

The law is linear in its parameters, and the noise of timings is relative. So the fit minimises the squares of residuals that
are relative to the fitted times. Residuals relative to the measured times would be biased: a time that is short by chance would
weigh more.

Intervals are Student's t-intervals of each parameter alone, not a joint region. An estimate may be negative where the data
say so: T_S and c are often close to zero.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gmmae.system.errors import InputError

LEVEL = 0.95
"""The level of the intervals."""

LARGEST_CONDITION = 1e4
"""The largest condition number of a design with columns of length 1.

Above it, a sum of the parameters moves the times 10,000 times less than another. Timings repeat to a per mille at best."""

REWEIGHTINGS = 20
"""Each shrinks the error of the weights by about the relative noise; at 30 % noise, 20 of them leave 0.3^20, or 1e-10."""


class Estimate(NamedTuple):
    """A parameter and its interval, in its own unit."""

    value: float
    low: float
    high: float


class HeldOut(NamedTuple):
    """A device count that the fit had not seen: the median of its measured times and what the fit says."""

    devices: int
    measured_s: float
    predicted_s: float


def fit_law(devices: Sequence[int], times_s: Sequence[float]) -> dict[str, Estimate]:
    """T_S, T_P and c of T(n) = T_S + T_P / n + c log2 n, as `serial_s`, `parallel_s`, `communication_s`.

    Args:
      devices: n of each measurement; repeats are separate measurements.
      times_s: seconds of each.

    Raises:
      InputError: fewer than 3 different device counts, fewer than 4 times, counts too alike, or input that is no measurement.
    """
    from scipy.special import stdtrit  # only a report of throughput needs it

    design, times = _design(devices, times_s)
    count, parameters = design.shape
    rule = f"{parameters} parameters with intervals need at least {parameters + 1} times"
    _require(count > parameters, rule, count, "repeat the measurements")
    apart = "device counts must tell T_S, T_P and c apart"
    _require(_determined(design, times), apart, devices, "spread them, as 1, 2, 4, 8")
    fitted, covariance = _fit(design, times)
    margins = stdtrit(count - parameters, (1 + LEVEL) / 2) * np.sqrt(np.diag(covariance))
    estimates = [Estimate(float(p), float(p - m), float(p + m)) for p, m in zip(fitted, margins, strict=True)]
    return dict(zip(("serial_s", "parallel_s", "communication_s"), estimates, strict=True))


def leave_one_out(devices: Sequence[int], times_s: Sequence[float]) -> list[HeldOut]:
    """The law at each device count, fitted without that count's times; counts that the fit cannot do without are left out.

    The smallest and the largest count are extrapolated to, the others interpolated.

    Raises:
      InputError: what `fit_law` refuses, except too few times or counts too alike: these give fewer predictions, or none.
    """
    design, times = _design(devices, times_s)
    counts = np.asarray(devices)
    predictions = []
    for count in np.unique(counts):
        kept = counts != count
        if np.unique(counts[kept]).size < design.shape[1] or not _determined(design[kept], times[kept]):
            continue
        predicted = design[~kept][0] @ _fit(design[kept], times[kept])[0]
        predictions.append(HeldOut(int(count), float(np.median(times[~kept])), float(predicted)))
    return predictions


def _design(devices: Sequence[int], times_s: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    n, times = np.asarray(devices, dtype=float), np.asarray(times_s, dtype=float)
    _require(n.shape == times.shape, "device counts must be as many as times", n.size, f"give {times.size}")
    whole = bool(np.all(np.isfinite(n))) and bool(np.all((n >= 1) & (n == np.floor(n))))
    _require(whole, "device counts must be whole numbers of at least 1", devices, "leave the others out")
    _require(_all_positive(times), "times must be finite and positive", times_s, "leave the others out")
    _require(np.unique(n).size >= 3, "there must be at least 3 different device counts", devices, "measure another")
    return np.stack([np.ones_like(n), 1 / n, np.log2(n)], axis=1), times


def _all_positive(values: np.ndarray) -> bool:
    return bool(np.all(np.isfinite(values) & (values > 0)))


def _require(holds: bool, rule: str, value: object, way_out: str) -> None:
    if not holds:
        raise InputError(f"{rule}; got {np.asarray(value).tolist()!r}: {way_out}")


def _determined(design: np.ndarray, times: np.ndarray) -> bool:
    relative = design / times[:, None]
    return bool(np.linalg.cond(relative / np.linalg.norm(relative, axis=0)) <= LARGEST_CONDITION)


def _fit(design: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The parameters, and their covariance, which is infinite where there are no more times than parameters."""
    from scipy.optimize import OptimizeWarning, curve_fit  # as above

    fitted, parameters, covariance = times, np.zeros(design.shape[1]), np.empty(0)
    for _ in range(REWEIGHTINGS):
        with warnings.catch_warnings(action="ignore", category=OptimizeWarning):  # of that infinity
            parameters, covariance = curve_fit(
                lambda x, *p: x @ p, design, times, parameters, sigma=fitted, jac=lambda x, *p: x
            )
        fitted = design @ parameters
        _require(_all_positive(fitted), "the model must fit positive times", fitted.min(), "these times do not follow it")
    return parameters, covariance

"""The models of `gmmae.analysis.scaling` fitted to measured times, with intervals; refused where the data leave them open.

All models are linear in their parameters (in 1/β for α and β), and the noise of timings is relative: a long time scatters in
proportion. So the relative residuals are squared and summed, relative to the fitted times: relative to the measured ones, a
time that is too short by chance would weigh more and pull the fit down.

Intervals are Student's t-intervals of each parameter alone, not a joint region. An estimate may be negative where the data
say so: T_S and c are often close to zero.
"""

import warnings
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import OptimizeWarning, curve_fit
from scipy.special import stdtrit

from gmmae.base.errors import InputError

LARGEST_CONDITION = 1e4
"""Of a design with columns of length 1. Above, some sum of the parameters moves the times 10,000 times less than others do,
while timings repeat to a per mille at best."""

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


def fit_law(devices: Sequence[int], times_s: Sequence[float], level: float = 0.95) -> dict[str, Estimate]:
    """T_S, T_P and c of T(n) = T_S + T_P / n + c log2 n, as `serial_s`, `parallel_s`, `communication_s`.

    Args:
      devices: n of each measurement; repeats are separate measurements.
      times_s: seconds of each.
      level: of the intervals.

    Raises:
      InputError: fewer than 3 different device counts, fewer than 4 times, counts too alike, or input that is no measurement.
    """
    design, times = _law_design(devices, times_s)
    _require_determined(design, times, "device counts must tell T_S, T_P and c apart", devices, "spread them, as 1, 2, 4, 8")
    return dict(zip(("serial_s", "parallel_s", "communication_s"), _estimates(design, times, level), strict=True))


def fit_all_reduce(
    devices: Sequence[int],
    sizes_bytes: Sequence[float],
    times_s: Sequence[float],
    collective: Literal["ring", "tree"] = "ring",
    level: float = 0.95,
) -> dict[str, Estimate]:
    """α and β of a ring or tree all-reduce (`gmmae.analysis.scaling`), as `alpha_s` and `beta_bytes_per_s`.

    β's interval is that of 1/β turned over; its upper end is infinite where 1/β is not different from 0. A tree takes
    ⌈log2 n⌉ of both α and bytes / β, so one message size never determines it; the ring needs two values of bytes / n.

    Args:
      devices, sizes_bytes, times_s: of each measurement, as in `gmmae.analysis.scaling.ring_s`.
      collective: "ring" or "tree".
      level: of the intervals.

    Raises:
      InputError: fewer than 3 times, sizes too alike, times that do not grow with the size, or input that is no measurement.
    """
    n, times = _measurements(devices, times_s, fewest=2)
    sizes = np.asarray(sizes_bytes, dtype=float)
    _require(sizes.shape == times.shape, "sizes must be as many as times", len(sizes_bytes), f"give {times.size}")
    _require(_all_positive(sizes), "sizes must be finite and positive", sizes_bytes, "leave the others out")
    if collective == "ring":
        design = np.stack([2 * (n - 1), 2 * (n - 1) / n * sizes], axis=1)
    elif collective == "tree":
        levels = np.ceil(np.log2(n))
        design = np.stack([2 * levels, 2 * levels * sizes], axis=1)
    else:
        raise InputError(f"collective must be one of ring, tree; got {collective!r}")
    _require_determined(design, times, "sizes must tell α and β apart", sizes_bytes, "measure small and large messages")
    alpha, inverse = _estimates(design, times, level)
    grows = "bandwidth not determined: the times do not grow with the size; 1/β must be positive"
    _require(inverse.value > 0, grows, inverse.value, "measure larger messages")
    highest = 1 / inverse.low if inverse.low > 0 else np.inf
    return {"alpha_s": alpha, "beta_bytes_per_s": Estimate(1 / inverse.value, 1 / inverse.high, highest)}


def leave_one_out(devices: Sequence[int], times_s: Sequence[float]) -> list[HeldOut]:
    """The law at each device count, fitted without that count's times; counts that the fit cannot do without are left out.

    The smallest and the largest count are extrapolated to, the others interpolated.

    Raises:
      InputError: what `fit_law` refuses, except too few times or counts too alike: these give fewer predictions, or none.
    """
    design, times = _law_design(devices, times_s)
    counts = np.asarray(devices)
    found = []
    for count in np.unique(counts):
        kept = counts != count
        if np.unique(counts[kept]).size < design.shape[1] or not _determined(design[kept], times[kept]):
            continue
        predicted = design[~kept][0] @ _fit(design[kept], times[kept])[0]
        found.append(HeldOut(int(count), float(np.median(times[~kept])), float(predicted)))
    return found


def _law_design(devices: Sequence[int], times_s: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    n, times = _measurements(devices, times_s, fewest=1)
    design = np.stack([np.ones_like(n), 1 / n, np.log2(n)], axis=1)
    _require(np.unique(n).size >= 3, "there must be at least 3 different device counts", devices, "measure another")
    return design, times


def _measurements(devices: Sequence[int], times_s: Sequence[float], fewest: int) -> tuple[np.ndarray, np.ndarray]:
    n, times = np.asarray(devices, dtype=float), np.asarray(times_s, dtype=float)
    _require(n.shape == times.shape, "device counts must be as many as times", n.size, f"give {times.size}")
    whole = bool(np.all(np.isfinite(n))) and bool(np.all((n >= fewest) & (n == np.floor(n))))
    _require(whole, f"device counts must be whole numbers of at least {fewest}", devices, "leave the others out")
    _require(_all_positive(times), "times must be finite and positive", times_s, "leave the others out")
    return n, times


def _all_positive(values: np.ndarray) -> bool:
    return bool(np.all(np.isfinite(values) & (values > 0)))


def _require(holds: bool, rule: str, value: object, way_out: str) -> None:
    if not holds:
        raise InputError(f"{rule}; got {np.asarray(value).tolist()!r}: {way_out}")


def _require_determined(design: np.ndarray, times: np.ndarray, apart: str, given: object, way_out: str) -> None:
    count, parameters = design.shape
    rule = f"{parameters} parameters with intervals need at least {parameters + 1} times"
    _require(count > parameters, rule, count, "repeat the measurements")
    _require(_determined(design, times), apart, given, way_out)


def _determined(design: np.ndarray, times: np.ndarray) -> bool:
    relative = design / times[:, None]
    return bool(np.linalg.cond(relative / np.linalg.norm(relative, axis=0)) <= LARGEST_CONDITION)


def _fit(design: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The parameters, and their covariance, which is infinite where there are no more times than parameters."""
    fitted, parameters, covariance = times, np.zeros(design.shape[1]), np.empty(0)
    for _ in range(REWEIGHTINGS):
        with warnings.catch_warnings(action="ignore", category=OptimizeWarning):  # of that infinity
            parameters, covariance = curve_fit(
                lambda x, *p: x @ p, design, times, parameters, sigma=fitted, jac=lambda x, *p: x
            )
        fitted = design @ parameters
        _require(_all_positive(fitted), "the model must fit positive times", fitted.min(), "these times do not follow it")
    return parameters, covariance


def _estimates(design: np.ndarray, times: np.ndarray, level: float) -> list[Estimate]:
    _require(0 < level < 1, "level must lie between 0 and 1", level, "give 0.95 for 95 %")
    parameters, covariance = _fit(design, times)
    margins = stdtrit(times.size - parameters.size, (1 + level) / 2) * np.sqrt(np.diag(covariance))
    return [Estimate(float(p), float(p - m), float(p + m)) for p, m in zip(parameters, margins, strict=True)]

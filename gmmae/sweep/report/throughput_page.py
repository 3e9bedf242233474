"""The report of a sweep in throughput mode: step times, throughput, efficiencies, and a fitted law of n devices.

Strong scaling keeps the global batch, weak scaling the device batch.

Source: Serebryakov, "Scaling deep learning workloads" (2017).
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gmmae.plotting import canvas, comparison, tables
from gmmae.plotting.comparison import Measured
from gmmae.plotting.document import Block, Bullets, Figure, Folded, Paragraph
from gmmae.plotting.tables import Table
from gmmae.scaling import fits
from gmmae.sweep.report import efficiency
from gmmae.sweep.report.results import Results
from gmmae.sweep.throughput import Timing
from gmmae.system.errors import InputError

MIN_DEVICE_COUNTS = 4
"""Minimum number of device counts for a fit of the law with three parameters."""


class Family(NamedTuple):
    """Step times by number of devices, for one global batch or for one device batch."""

    kind: str  # "strong" or "weak"
    batch: int
    rows: dict[int, Timing]

    @property
    def label(self) -> str:
        """The name in tables and figures."""
        return f"strong, batch {self.batch}" if self.kind == "strong" else f"weak, {self.batch} a device"

    def percent(self, devices: int) -> float:
        """Returns the efficiency, or NaN without a measurement on one device."""
        if 1 not in self.rows:
            return math.nan
        first, nth = self.rows[1].median_s, self.rows[devices].median_s
        return efficiency.strong_percent(first, nth, devices) if self.kind == "strong" else efficiency.weak_percent(first, nth)


def families(results: Results) -> list[Family]:
    """Returns the measured families: strong scaling by global batch, then weak scaling by device batch."""
    timing = results.config.timing
    by_samples = {found.devices: {row.samples: row for row in found.train} for found in results.timings}
    found = [
        Family("strong", batch, {n: rows[batch] for n, rows in by_samples.items() if batch in rows})
        for batch in sorted(timing.global_batches)
    ] + [
        Family("weak", batch, {n: rows[batch * n] for n, rows in by_samples.items() if batch * n in rows})
        for batch in sorted(timing.device_batches)
    ]
    return [family for family in found if family.rows]


def blocks(results: Results, folder: Path) -> list[Block]:
    """Returns the body of the report, with folded tables. Figures are drawn into `folder`."""
    found = families(results)
    missing = sorted(set(results.counts) - {timings.devices for timings in results.timings})
    made: list[Block] = []
    if missing:
        made.append(Paragraph(f"Not measured yet on these numbers of devices: {', '.join(map(str, missing))}."))
    failed = [f"{n.devices} devices, {what}: {why}" for n in results.timings for what, why in n.failed.items()]
    if failed:
        made += [Paragraph("**Failed measurements**"), Bullets(tuple(failed))]
    if not found:
        return [*made, Paragraph("No step time is measured yet.")]
    rates, *others = _figures(results, found, folder)
    made += [Bullets(tuple(_sentences(found))), rates]
    for kind in ("strong", "weak"):
        if rows := tuple(row for family in found if family.kind == kind for row in _rows(family)):
            columns = ("device batch", "devices", "batch", "step (ms)", "quartiles (ms)", "samples/s", "efficiency (%)")
            made.append(Folded(f"{kind.title()} scaling", (_table(results, kind, columns, rows),)))
    return [*made, Folded("Time of a step", tuple(others)), *_laws(results, found)]


def _sentences(found: list[Family]) -> Iterator[str]:
    for family in found:
        last = max(family.rows)
        percent, rate = family.percent(last), _rate(family.rows[last])
        if last > 1 and math.isfinite(percent):
            yield f"**{family.label}**: {tables.percent(percent)} % efficient on {last} devices, {rate} samples/s."
        else:
            yield f"**{family.label}**: {rate} samples/s on {last} devices. An efficiency needs one device and more."


def _rows(family: Family) -> Iterator[tuple[str, ...]]:
    for n, row in sorted(family.rows.items()):
        percent = family.percent(n)
        texts = (_ms(row.median_s), f"{_ms(row.low_s)} to {_ms(row.high_s)}", _rate(row))
        yield (str(row.device_batch), str(n), str(row.samples), *texts, "–" if math.isnan(percent) else tables.percent(percent))


def _table(results: Results, kind: str, columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> Table:
    formula = {"strong": "t1 / (N tN) at equal global batch", "weak": "t1 / tN at equal batch a device"}[kind]
    notes = (f"Efficiency: {formula}, of median step times. Quartiles are over timed blocks.", *results.clock.notes)
    return Table(f"{kind}_throughput", results.clock.titled(f"{kind.title()} scaling in throughput"), columns, rows, notes)


def _figures(results: Results, found: list[Family], folder: Path) -> list[Block]:
    rates = [
        Measured(
            family.label,
            tuple(sorted(family.rows)),
            *(tuple(row.samples / getattr(row, name) for _, row in sorted(family.rows.items())) for name in _QUARTILES),
        )
        for family in _few(found)
    ]
    steps = []
    for timings in results.timings:
        by_share = {row.device_batch: row for row in sorted(timings.train)}
        values = (
            tuple(getattr(by_share[share], name) for share in sorted(by_share)) for name in ("median_s", "low_s", "high_s")
        )
        label = "1 device" if timings.devices == 1 else f"{timings.devices} devices"
        steps += [Measured(label, tuple(sorted(by_share)), *values)] if by_share else []
    made: list[Block] = []
    for name, draw, lines, title, text in (
        (
            "throughput",
            comparison.throughput,
            rates,
            "Throughput",
            "Samples per second by number of devices. Dashed: ideal scaling.",
        ),
        (
            "step_time",
            comparison.step_time,
            _few(steps),
            "Time of a training step",
            "Time of a training step by samples per device.",
        ),
    ):
        png, svg = canvas.save_both(draw(lines, title=results.clock.titled(title)), folder / name)
        caption = f"{title}. {text} Points are medians over timed blocks, bars quartiles."
        made.append(Figure(title, results.clock.captioned(caption), png, svg))
    return made


_QUARTILES = ("median_s", "high_s", "low_s")
"""The quartiles of a time, in the order of the quartiles of its inverse."""


def _few(lines: list) -> list:
    """Returns at most as many lines as there are styles, evenly spaced."""
    most = len(comparison.STYLES)
    if len(lines) <= most:
        return lines
    return [lines[round(place * (len(lines) - 1) / (most - 1))] for place in range(most)]


def _laws(results: Results, found: list[Family]) -> list[Block]:
    made: list[Block] = []
    for family in found:
        if family.kind != "strong" or len(family.rows) < MIN_DEVICE_COUNTS:
            continue
        counts = sorted(family.rows)
        times_s = [family.rows[n].median_s for n in counts]
        try:
            law = fits.fit_law(counts, times_s)
            held_out = fits.leave_one_out(counts, times_s)
        except InputError as error:
            made.append(Paragraph(f"The law T(n) = T_S + T_P / n + c log2 n is not fitted to {family.label}: {error}"))
            continue
        names = {"serial_s": "T_S", "parallel_s": "T_P", "communication_s": "c"}
        rows = tuple((names[key], _ms(one.value), f"{_ms(one.low)} to {_ms(one.high)}") for key, one in law.items())
        title = results.clock.titled(f"The law T(n) = T_S + T_P / n + c log2 n fitted to {family.label}")
        note = ("Intervals: 95 %, Student's t, for each parameter separately.", *results.clock.notes)
        made.append(Table(f"law_{family.batch}", title, ("parameter", "estimate (ms)", "interval (ms)"), rows, note))
        tried = tuple(
            (
                str(one.devices),
                _ms(one.measured_s),
                _ms(one.predicted_s),
                f"{100 * (one.predicted_s / one.measured_s - 1):+.1f}",
            )
            for one in held_out
        )
        if tried:
            title = results.clock.titled(f"Predictions of the law for held-out step times, {family.label}")
            columns = ("devices", "measured (ms)", "predicted (ms)", "error (%)")
            made.append(Table(f"held_out_{family.batch}", title, columns, tried, results.clock.notes))
    return [Folded("The law of n devices", tuple(made))] if made else []


def _ms(time_s: float) -> str:
    return f"{1e3 * time_s:.4g}"


def _rate(row: Timing) -> str:
    return f"{row.samples / row.median_s:.4g}"

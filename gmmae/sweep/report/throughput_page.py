"""The report of a sweep in throughput mode: step times, throughput and efficiencies.

Strong scaling keeps the global batch, weak scaling the device batch.

Source: Serebryakov, "Scaling deep learning workloads" (2017).
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from gmmae.plotting import canvas, comparison, tables
from gmmae.plotting.comparison import Measured
from gmmae.plotting.document import Block, Bullets, Figure, Folded, Paragraph
from gmmae.plotting.tables import Table
from gmmae.sweep.report import efficiency
from gmmae.sweep.report.outcomes import devices_text
from gmmae.sweep.report.results import Results
from gmmae.sweep.step_times import Timing

T = TypeVar("T")


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
    by_samples = {timings.devices: {row.samples: row for row in timings.train} for timings in results.timings}
    possible = [
        Family("strong", batch, {n: rows[batch] for n, rows in by_samples.items() if batch in rows})
        for batch in sorted(timing.global_batches)
    ] + [
        Family("weak", batch, {n: rows[batch * n] for n, rows in by_samples.items() if batch * n in rows})
        for batch in sorted(timing.device_batches)
    ]
    return [family for family in possible if family.rows]


def blocks(results: Results, folder: Path) -> list[Block]:
    """Returns the body of the report, with folded tables. Figures are drawn into `folder`."""
    measured = families(results)
    lead: list[Block] = []
    if missing := sorted(set(results.counts) - {timings.devices for timings in results.timings}):
        lead.append(Paragraph(f"Not measured yet on these numbers of devices: {', '.join(map(str, missing))}."))
    failed = [f"{n.devices} devices, {what}: {why}" for n in results.timings for what, why in n.failed.items()]
    if failed:
        lead += [Paragraph("**Failed measurements**"), Bullets(tuple(failed))]
    if not measured:
        return [*lead, Paragraph("No step time is measured yet.")]
    lead += [Bullets(tuple(map(_sentence, measured))), _rates(results, measured, folder)]
    kinds = dict.fromkeys(family.kind for family in measured)
    lead += [Folded(f"{kind.title()} scaling", (_table(results, kind, measured),)) for kind in kinds]
    return [*lead, Folded("Time of a step", (_step_times(results, folder),))]


def _sentence(family: Family) -> str:
    last = max(family.rows)
    percent, rate = family.percent(last), _rate(family.rows[last])
    if last > 1 and math.isfinite(percent):
        return f"**{family.label}**: {tables.percent(percent)} % efficient on {last} devices, {rate} samples/s."
    return f"**{family.label}**: {rate} samples/s on {last} devices. An efficiency needs one device and more."


def _table(results: Results, kind: str, measured: Sequence[Family]) -> Table:
    rows = []
    for family in (family for family in measured if family.kind == kind):
        for n, row in sorted(family.rows.items()):
            percent = family.percent(n)
            times = (_ms(row.median_s), f"{_ms(row.low_s)} to {_ms(row.high_s)}", _rate(row))
            efficient = "–" if math.isnan(percent) else tables.percent(percent)
            rows.append((str(row.device_batch), str(n), str(row.samples), *times, efficient))
    columns = ("device batch", "devices", "batch", "step (ms)", "quartiles (ms)", "samples/s", "efficiency (%)")
    formula = {"strong": "t1 / (N tN) at equal global batch", "weak": "t1 / tN at equal batch a device"}[kind]
    notes = (f"Efficiency: {formula}, of median step times. Quartiles are over timed blocks.", *results.clock.notes)
    title = results.clock.titled(f"{kind.title()} scaling in throughput")
    return Table(f"{kind}_throughput", title, columns, tuple(rows), notes)


def _rates(results: Results, measured: Sequence[Family], folder: Path) -> Figure:
    lines = []
    for family in _few(measured):
        counts, rows = zip(*sorted(family.rows.items()), strict=True)
        # The first quartile of a time is the third one of its inverse.
        quartiles = (tuple(row.samples / getattr(row, name) for row in rows) for name in ("median_s", "high_s", "low_s"))
        lines.append(Measured(family.label, counts, *quartiles))
    drawn = comparison.throughput(lines, title=results.clock.titled("Throughput"))
    text = "Throughput. Samples per second by number of devices. Dashed: ideal scaling."
    return _figure(results, "Throughput", text, canvas.save_both(drawn, folder / "throughput"))


def _step_times(results: Results, folder: Path) -> Figure:
    lines = []
    for timings in (timings for timings in results.timings if timings.train):
        rows = {row.device_batch: row for row in sorted(timings.train)}
        quartiles = (tuple(getattr(rows[size], name) for size in sorted(rows)) for name in ("median_s", "low_s", "high_s"))
        lines.append(Measured(devices_text([timings.devices]), tuple(sorted(rows)), *quartiles))
    title = "Time of a training step"
    drawn = comparison.step_time(_few(lines), title=results.clock.titled(title))
    return _figure(results, title, f"{title} by samples per device.", canvas.save_both(drawn, folder / "step_time"))


def _figure(results: Results, title: str, text: str, files: tuple[Path, Path]) -> Figure:
    return Figure(title, results.clock.captioned(f"{text} Points are medians over timed blocks, bars quartiles."), *files)


def _few(lines: Sequence[T]) -> list[T]:
    """Returns at most as many lines as there are styles, evenly spaced."""
    count = min(len(lines), len(comparison.STYLES))
    return [lines[round(place)] for place in np.linspace(0, len(lines) - 1, count)]


def _ms(time_s: float) -> str:
    return f"{1e3 * time_s:.4g}"


def _rate(row: Timing) -> str:
    return f"{row.samples / row.median_s:.4g}"

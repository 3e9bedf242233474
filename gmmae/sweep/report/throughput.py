"""The report of a sweep in throughput mode: samples per second, by measured step times.

Source of the efficiencies: Serebryakov, "Scaling deep learning workloads" (2017).
"""

from pathlib import Path

from gmmae.data.grouped import Estimate
from gmmae.plotting import comparison, tables
from gmmae.plotting.comparison import Measured
from gmmae.sweep.report.cells import Results
from gmmae.sweep.report.figures import shown


def parts(results: Results, folder: Path) -> list[str]:
    """The figure and the table, or what is missing."""
    timing, rows, lines = results.config.timing, [], []
    by_samples = {timings.devices: {row.samples: row for row in timings.train} for timings in results.timings}
    families = [(f"strong, batch {batch}", batch, 1, 0) for batch in sorted(timing.global_batches)]
    families += [(f"weak, {batch} a device", batch, 0, 1) for batch in sorted(timing.device_batches)]
    for label, batch, strong, weak in families:
        found = {n: times[batch * n**weak] for n, times in by_samples.items() if batch * n**weak in times}
        rates = []
        for n, row in found.items():
            # The first quartile of a time is the third one of its inverse.
            rates.append((n, *(row.samples / time_s for time_s in (row.median_s, row.high_s, row.low_s))))
            step_ms = Estimate(*(1e3 * time_s for time_s in row[2:])).text("{:.4g}".format)
            efficiency = tables.percent(100 * found[1].median_s / row.median_s / n**strong) if 1 in found else "–"
            rows.append((label, str(n), str(row.samples), step_ms, f"{rates[-1][1]:.4g}", efficiency))
        lines += [Measured(label, *zip(*rates, strict=True))] if rates else []
    missing = ", ".join(str(n) for n in sorted(results.config.devices) if n not in by_samples)
    texts = [f"Not measured yet on these numbers of devices: {missing}."] if missing else []
    if not rows:
        return [*texts, "No step time is measured yet."]
    title = results.source.titled("Throughput")
    text = f"{title}: medians over timed blocks, bars quartiles. Dashed: ideal scaling."
    figure = shown(comparison.throughput(lines, title=title), "Figure 1", text, folder, "throughput")
    columns = ("scaling", "devices", "batch", "step (ms), quartiles", "samples/s", "efficiency (%)")
    note = "Efficiency: strong t1 / (n tn), weak t1 / tn · 100 %, of median step times."
    return [*texts, figure, tables.table(columns, rows, f"Table 1. {title}", [note])]

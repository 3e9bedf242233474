"""The findings of a sweep in a few sentences: the fastest strategy, and cautions."""

import math
from typing import NamedTuple

from gmmae.plotting import tables
from gmmae.scaling.strategies import STRATEGIES
from gmmae.sweep import step_times
from gmmae.sweep.report import efficiency
from gmmae.sweep.report.efficiency import INTERVAL_LEVEL, TimeSummary
from gmmae.sweep.report.outcomes import capped_mark, devices_text, listed, seeds_text
from gmmae.sweep.report.results import Results
from gmmae.sweep.runs import TIMED_OUT

SIGNIFICANCE_LEVEL = 0.05
"""A sign test with a smaller p, corrected for the number of comparisons, is called significant."""

MIN_SEEDS = math.ceil(1 - math.log2(1 - INTERVAL_LEVEL))
"""The minimum number of runs whose range holds the median with the probability of an interval."""

STOPPED = {
    "measured": "**Stopped by the time limit**, so slower than it: they count as infinite times",
    "virtual": "**Stopped by the time limit**, which is one of the simulation: their cells have no median, ratio or p",
}
"""What runs beyond `run_time_limit_s` count for, by mode."""


class Candidate(NamedTuple):
    """A strategy on a number of devices whose median run reached the target."""

    scaling: str
    devices: int
    summary: TimeSummary


def headline(results: Results) -> str:
    """Returns the fastest strategy and its time, and how it compares with the next one.

    A strategy wins only if its median run reached the target and its time is known. The fewest devices win among equal times.
    Strategies with the same time on the same number of devices are named together.
    """
    stop = results.config.run.stop
    if not results.runs:
        return "No run is computed yet."
    if stop.target is None:
        return "**No target was set** (`run.stop.target` is none), so there is no time to the target and no fastest strategy."
    if results.clock.kind == "unknown":
        return f"**Which strategy is the fastest is unknown.** {results.clock.note}"
    candidates = [
        Candidate(scaling, n, summary)
        for scaling, n, _ in results.groups()
        if (summary := results.seconds(scaling, n)) is not None and math.isfinite(summary.median)
    ]
    if not candidates:
        counts = devices_text(sorted({run.key.devices for run in results.runs}))
        return f"**No strategy's median run reached the target** validation {stop.monitor} of {stop.target:g} on {counts}."
    best = min(candidates, key=lambda one: (one.summary.median, one.devices))
    tied = [one for one in candidates if (one.devices, one.summary.median) == (best.devices, best.summary.median)]
    winners = {one.scaling for one in tied}
    others = [one for one in candidates if one.scaling not in winners]
    text = _winner(results, tied)
    if others:
        text += f" {_next(results, best, others, math.comb(len(candidates), 2))}"
    elif any(run.key.scaling not in winners for run in results.runs):
        text += " No other strategy's median run reached the target."
    return text


def _winner(results: Results, tied: list[Candidate]) -> str:
    best = tied[0]
    labels = listed(_label(results, one) for one in tied)
    text = f"**Fastest: {labels} on {devices_text([best.devices])}, {tables.seconds(best.summary.median)} s to the target"
    one_device = results.seconds(best.scaling, 1)
    if best.devices > 1 and one_device is not None and math.isfinite(one_device.median):
        text += f", {tables.ratio(one_device.median / best.summary.median)} times as fast as one device"
    details = f"median of {best.summary.runs} seeds" if best.summary.runs > 1 else "one seed"
    if best.summary.interval:
        details += f", interval {tables.interval_text(best.summary.interval, tables.seconds)}"
    if best.summary.reached < best.summary.runs:
        details += f", reached by {best.summary.reached}"
    clock = "measured" + (f", but {results.clock.short}" if results.clock.short else "")
    if results.clock.kind == "projected":
        clock = f"{results.clock.short}, not measured there"
    return f"{text}** ({details}; {clock})."


def _label(results: Results, candidate: Candidate) -> str:
    return STRATEGIES[candidate.scaling].label + capped_mark(results.group(candidate.scaling, candidate.devices))


def _next(results: Results, best: Candidate, others: list[Candidate], cell_pairs: int) -> str:
    """Compares the winner with the fastest other strategy, over the seeds that both have."""
    second = min(others, key=lambda one: (one.summary.median, one.devices))
    text = f"Next: {_label(results, second)} on {devices_text([second.devices])}, {tables.seconds(second.summary.median)} s"
    base, other = results.times(best.scaling, best.devices), results.times(second.scaling, second.devices)
    if not base.keys() & other.keys():
        return f"{text}, with no seed in common."
    pairs = efficiency.paired(base, other)
    text += f", slower in {pairs.slower} of {seeds_text(pairs.pairs)}"
    if pairs.p_value is None:
        return f"{text}."
    # The data have chosen these two among all cells, so any other pair might stand here: Holm's factor of the smallest p.
    corrected = min(1.0, cell_pairs * pairs.p_value)
    verdict = "significant" if corrected < SIGNIFICANCE_LEVEL else "not significant"
    corrections = f" by Holm's correction for {cell_pairs} pairs of cells" * (cell_pairs > 1)
    return f"{text} ({verdict}: sign test, p = {corrected:.2g}{corrections})."


def cautions(results: Results) -> list[str]:
    """Returns cautions on few seeds, on seen validation samples and scattering step times, and the failed processes."""
    texts = [_caution(results), *results.runs[0].record.seen_notes] if results.runs else []
    texts += _scatter(results)
    for title, limited in ((STOPPED[results.config.mode], True), ("**Failed processes**, which count nowhere", False)):
        failures = "; ".join(
            f"`{record.key.name}` {record.outcome}: {record.message or 'no output'}"
            for record in results.failed
            if (record.outcome == TIMED_OUT) == limited
        )
        texts += [f"{title}: {failures}"] if failures else []
    return texts


def _scatter(results: Results) -> list[str]:
    """Returns a caution if times are projected from step times that scatter as on a machine with other work."""
    found = step_times.spread(results.timings[0].train) if results.clock.kind == "projected" else 0.0
    if round(found, 3) <= step_times.MAX_SPREAD:
        return []
    return [
        f"**Caution**: the step times scatter, with quartiles up to {100 * found:.0f} % from their medians. So may all "
        "projected times. On an idle machine remove the folder `step_times` and repeat the sweep: its runs are kept."
    ]


def _caution(results: Results) -> str:
    seeds = max(len(runs) for _, _, runs in results.groups())
    if seeds == 1:
        return "**Caution**: one seed is an example, not a comparison."
    if seeds < MIN_SEEDS:
        return (
            f"**Caution**: {seeds} seeds are few. An interval needs {MIN_SEEDS} runs to hold the median with "
            f"{100 * INTERVAL_LEVEL:g} % probability. A single sign test needs as many pairs that all agree for "
            f"p < {SIGNIFICANCE_LEVEL:g}, and several need more."
        )
    return f"Medians and intervals are over up to {seeds} seeds. A miss counts as an infinite time."

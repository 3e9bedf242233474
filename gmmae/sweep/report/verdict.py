"""What a sweep shows, in short sentences: who reached the target, who was the fastest, how sure that is, what the paper found.

Every number is taken from the results; where they say nothing, so does the verdict.
"""

import math
from collections.abc import Iterable

from gmmae.plotting import tables
from gmmae.plotting.document import Block, Bullets, Paragraph
from gmmae.scaling.strategies import STRATEGIES
from gmmae.sweep.report import capped_batches, efficiency, superlinear
from gmmae.sweep.report.efficiency import Comparison
from gmmae.sweep.report.outcomes import CONVINCING, EXPLAINED, LEAST_SEEDS, LEVEL, devices_text, listed, misses, seeds_text
from gmmae.sweep.report.results import Results

PAPER_TARGET = 0.0016384


def verdict(results: Results) -> list[Block]:
    """The blocks at the top of a report."""
    blocks: list[Block] = []
    if results.runs:
        strategies = [scaling for scaling in results.config.scaling if any(results.group(scaling, n) for n in results.counts)]
        items = [_arm(results, scaling) for scaling in strategies] + _fastest(results)
        items += superlinear.items(results) + _against(results) + _paper(results)
        blocks.append(Bullets(tuple(items)))
        if any(not run.reached for run in results.runs):
            blocks.append(Paragraph(EXPLAINED.format(metric=results.config.run.stop.monitor)))
        blocks += _clipped(results)
        blocks.append(Paragraph(_caution(results)))
    else:
        blocks.append(Paragraph("No run is computed yet."))
    if results.failed:
        failures = "; ".join(
            f"`{record.key.name}` {record.outcome}: {record.message or 'nothing said'}" for record in results.failed
        )
        blocks.append(Paragraph(f"**Failed processes**, which say nothing of the optimisation and count nowhere: {failures}"))
    return blocks


def _arm(results: Results, scaling: str) -> str:
    counts: dict[tuple[int, int], list[int]] = {}
    missing = []
    for n in results.counts:
        runs = results.group(scaling, n)
        if runs:
            counts.setdefault((sum(run.reached for run in runs), len(runs)), []).append(n)
        else:
            missing.append(n)
    first, *others = [(f"{k} of {seeds_text(m)}", f"on {devices_text(ns)}") for (k, m), ns in counts.items()]
    told = [f"{first[0]} reached the target {first[1]}", *map(" ".join, others)]
    told += [
        f"{how[0].upper()}{how[1:]} on {devices_text(sorted({run.key.devices for run in runs}))}"
        for how, runs in misses([run for n in results.counts for run in results.group(scaling, n)])
    ]
    told += [f"Nothing computed on {devices_text(missing)}"] if missing else []
    return f"**{STRATEGIES[scaling].label}**: {'. '.join(told)}."


def _clipped(results: Results) -> list[Block]:
    parts = []
    for scaling in results.config.scaling:
        counts = [n for n in results.counts if capped_batches.mark(results.group(scaling, n))]
        parts += [f"{STRATEGIES[scaling].label} on {devices_text(counts)}"] if counts else []
    return (
        [Paragraph(f"**Clipped batches**: {'; '.join(parts)}. {' '.join(capped_batches.notes(results.runs))}")] if parts else []
    )


def _fastest(results: Results) -> list[str]:
    if results.clock.kind == "unknown":
        return ["**Fastest**: unknown, since there are no times on these devices."]
    winners: dict[str, list[int]] = {}
    for n in results.counts:
        summaries = {scaling: results.seconds(scaling, n) for scaling in results.config.scaling}
        medians = {scaling: found.median for scaling, found in summaries.items() if found}
        finite = {scaling: time for scaling, time in medians.items() if math.isfinite(time)}
        if len(medians) < 2:
            continue
        first = [scaling for scaling, time in finite.items() if time == min(finite.values())]
        winner = "no strategy, since no median run reached the target" if not first else "all strategies alike"
        if first and len(first) < len(medians):
            winner = listed(STRATEGIES[scaling].label for scaling in first)
        winners.setdefault(winner, []).append(n)
    parts = [f"{winner} on {devices_text(ns)}" for winner, ns in winners.items()]
    clock = f" ({results.clock.short})" if results.clock.short else ""
    return [f"**Fastest** by the median time to the target{clock}: {'; '.join(parts)}."] if parts else []


def comparisons(results: Results) -> Iterable[tuple[str, int, Comparison]]:
    """Each other strategy against strong scaling on each number of devices above one, where they have seeds in common.

    The comparison's base is strong scaling: its ratio is the other strategy's time over strong scaling's.
    """
    if results.clock.kind == "unknown":
        return
    for scaling in results.config.scaling:
        for n in results.counts:
            base, other = results.times("strong", n), results.times(scaling, n)
            if scaling != "strong" and n > 1 and base.keys() & other.keys():
                yield scaling, n, efficiency.paired(base, other)


def _against(results: Results) -> list[str]:
    items = []
    found = list(comparisons(results))
    for scaling in dict.fromkeys(scaling for scaling, _, _ in found):
        wins: dict[tuple[int, int], list[int]] = {}
        ratios, convincing = [], []
        for _, n, one in (entry for entry in found if entry[0] == scaling):
            wins.setdefault((one.slower, one.pairs), []).append(n)
            ratios.append(f"{tables.ratio(one.ratio)} on {n}")
            if one.p_value is not None and one.p_value < CONVINCING:
                convincing.append(n)
        told = [f"faster in {k} of {seeds_text(m)} on {devices_text(ns)}" for (k, m), ns in wins.items()]
        where = f"on {devices_text(convincing)}" if convincing else "nowhere"
        items.append(
            f"**Strong scaling against {STRATEGIES[scaling].label}**: {', '.join(told)}. The other's time over its own: "
            f"{', '.join(ratios)}. Significant (sign test, p < {CONVINCING:g}): {where}."
        )
    return items


def _paper(results: Results) -> list[str]:
    agree, differing, lines, paper = 0, [], [], results.paper
    for scaling in (scaling for scaling in results.config.scaling if scaling in paper):
        gaps = {}
        for n in (n for n in results.counts if n > 1 and n in paper[scaling]):
            runs = results.group(scaling, n)
            if not runs:
                continue
            here, there = sum(run.reached for run in runs), paper[scaling][n]
            if (2 * here > len(runs)) == math.isfinite(there):
                agree += 1
            else:
                theirs = "the paper's run did" if math.isfinite(there) else "the paper's run did not"
                differing.append(f"{STRATEGIES[scaling].label} on {n} (reached by {here} of {seeds_text(len(runs))}; {theirs})")
            ours = results.efficiency(scaling, n)
            if ours and math.isfinite(ours.percent) and math.isfinite(there):
                gaps[n] = (ours.percent, there)
        if gaps:
            lines.append(_gap(STRATEGIES[scaling].label, gaps))
    total = agree + len(differing)
    if not total:
        return []
    text = f"**The paper**: {agree} of {total} pairs of a strategy and more than one device agree with its Tables I and II on whether "
    text += "the target was reached. Here that means by more than half of the seeds."
    text += f" Other than there: {'; '.join(differing)}." if differing else ""
    return [text, *lines, _setting(results)]


def _gap(label: str, gaps: dict[int, tuple[float, float]]) -> str:
    differences = {n: ours - paper for n, (ours, paper) in gaps.items()}
    worst, mean = max(differences, key=lambda n: abs(differences[n])), sum(map(abs, differences.values())) / len(differences)
    ours, paper = (tables.percent(percent) for percent in gaps[worst])
    return (
        f"**{label} against the paper**: the efficiency differs most on {worst} devices, {ours} % here and {paper} % in the "
        f"paper. The mean difference is {mean:.1f} percentage points."
    )


def _setting(results: Results) -> str:
    run = results.config.run
    target = f"with the paper's target of {PAPER_TARGET:g}"
    if run.stop.target != PAPER_TARGET:
        ours = f"with a target of {run.stop.target:g}" if run.stop.target else "without a target"
        target = f"{ours} where the paper's is {PAPER_TARGET:g}"
    measured = "measured, " if results.clock.kind == "measured" and results.clock.short else ""
    times = f"times {measured}{results.clock.short or results.clock.kind}"
    return f"**The paper's runs**: one each, LUNA16, K80 GPUs. Here: data source {run.settings.data.source}, {target}, {times}."


def _caution(results: Results) -> str:
    seeds = max(len(results.group(scaling, n)) for scaling in results.config.scaling for n in results.counts)
    if seeds == 1:
        return "**Caution**: one seed is an example, not a comparison."
    if seeds < LEAST_SEEDS:
        return (
            f"**Caution**: {seeds} seeds are few. A sign test needs {LEAST_SEEDS} pairs that all agree for p < {CONVINCING:g}. "
            f"No interval from fewer than {LEAST_SEEDS} runs can hold the median with a probability of {100 * LEVEL:g} %."
        )
    return f"Medians and intervals are over up to {seeds} seeds. A miss counts as an infinite time."

"""How runs ended, in words: numbers of seeds, kinds of misses, and the losses where they stood."""

import math
from collections.abc import Callable, Iterable, Sequence

from gmmae.plotting import tables
from gmmae.sweep.report import efficiency
from gmmae.sweep.report.results import Results, Run
from gmmae.system import stop_reasons

EXPLAINED = (
    "Diverged: NaN or infinity in a loss. Collapsed: stuck, the validation loss no longer changes at all. Stalled: it "
    "did not get better any more. Out of epochs: the most epochs were trained. The number is the last validation "
    "{metric}, the best in parentheses."
)


LEVEL = 0.95
"""The share of the bootstrap's resamples between the bounds of an interval."""

CONVINCING = 0.05
"""A sign test whose p is below is called significant."""

LEAST_SEEDS = math.ceil(1 - math.log2(CONVINCING))
"""Pairs that a sign test needs for that, where all of them agree."""


def intervals_explained(results: Results) -> str:
    """What the intervals of a report are, and what they are not where they rest on few seeds."""
    groups = (len(results.group(scaling, n)) for scaling in results.config.scaling for n in results.counts)
    seeds = min((size for size in groups if size >= efficiency.LEAST_RUNS), default=None)
    if seeds is None:
        return f"No intervals: they need {efficiency.LEAST_RUNS} seeds."
    text = "Intervals: the percentiles 2.5 and 97.5 of a bootstrap over seeds"
    most = efficiency.most_coverage(seeds)
    if most >= LEVEL:
        return f"{text}."
    return (
        f"{text}; from {seeds} seeds they hold the true median with a probability of at most {100 * most:.3g} %, so they are "
        f"no {100 * LEVEL:g} % confidence intervals."
    )


def epochs_text(runs: Sequence[Run]) -> str:
    """Median and range of the epochs to the target; a miss counts as infinitely many and is never left out."""
    epochs = [float(run.record.epochs) if run.reached else math.inf for run in runs]

    def number(value: float) -> str:
        return f"{value:g}" if math.isfinite(value) else "not reached"

    middle = number(efficiency.median(epochs))
    return f"{middle} ({span(epochs, number)})" if len(set(epochs)) > 1 else middle


def listed(items: Iterable[object]) -> str:
    """Items with commas, and "and" before the last.

    >>> listed([1]), listed([1, 2, 4])
    ('1', '1, 2 and 4')
    """
    *first, last = map(str, items)
    return f"{', '.join(first)} and {last}" if first else last


def devices_text(counts: Sequence[int]) -> str:
    """
    >>> devices_text([1]), devices_text([1, 2])
    ('1 device', '1 and 2 devices')
    """
    return "1 device" if list(counts) == [1] else f"{listed(counts)} devices"


def seeds_text(count: int) -> str:
    """
    >>> seeds_text(1), seeds_text(6)
    ('1 seed', '6 seeds')
    """
    return "1 seed" if count == 1 else f"{count} seeds"


def span(values: Sequence[float], text: Callable[[float], str]) -> str:
    """The smallest and the largest value, or the only one; NaN and infinity are the largest.

    >>> span([3.0, 1.0, 3.0], "{:g}".format), span([2.0], "{:g}".format)
    ('1 to 3', '2')
    """
    ordered = sorted(values, key=lambda value: (value != value, value))
    low, high = text(ordered[0]), text(ordered[-1])
    return low if low == high else f"{low} to {high}"


def reached(runs: Sequence[Run], between: str = " of ") -> str:
    """How many reached the target: "2 of 3"."""
    return f"{sum(run.reached for run in runs)}{between}{len(runs)}"


def misses(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """The runs that missed the target, by how: a text for each kind, and the runs that it describes."""
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        if not run.reached:
            kinds.setdefault(run.outcome, []).append(run)
    return [(_how(kind, members), members) for kind, members in sorted(kinds.items())]


def _how(kind: str, runs: Sequence[Run]) -> str:
    records, times = [run.record for run in runs], f"{len(runs)}×"
    epochs = span([record.epochs for record in records], "{:g}".format)
    last = _losses([record.final_value for record in records])
    best = _losses([record.best_value for record in records])
    match kind:
        case stop_reasons.DIVERGED:
            return f"diverged {times} in epoch {epochs}"
        case stop_reasons.COLLAPSED:
            return f"collapsed {times} at {last}"
        case stop_reasons.MAX_EPOCHS:
            return f"out of epochs {times} at {last} (best {best})"
    return f"{kind.replace('_', ' ')} {times} after {epochs} epochs at {last} (best {best})"


def _losses(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return span(known, tables.loss) if known else "unknown"

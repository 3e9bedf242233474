"""Texts on how runs ended: numbers of seeds, kinds of misses, last losses, and capped batches."""

import math
from collections.abc import Callable, Iterable, Sequence

from gmmae.plotting import tables
from gmmae.sweep.report import efficiency
from gmmae.sweep.report.results import Results, Run
from gmmae.system import stop_reasons

EXPLANATION = (
    "Diverged: NaN or infinity in a loss. Collapsed: the validation loss no longer changes. Plateaued: it no longer improves. "
    "Out of epochs: the maximum number of epochs was trained. The number is the last validation {metric}, with the best in "
    "parentheses."
)

MISS_NAMES = {stop_reasons.MAX_EPOCHS: "out of epochs", stop_reasons.STALLED: "plateaued"}
"""The kinds of misses that have another name in a report than in a record."""

CAPPED = "†"
"""The mark of a global batch that is capped to the training set, or to the end of the strategy's rule."""


def capped_mark(runs: Iterable[Run]) -> str:
    """Returns the mark if a batch is capped, and nothing otherwise."""
    return CAPPED if any(run.record.clipped for run in runs) else ""


def capped_notes(runs: Iterable[Run]) -> tuple[str, ...]:
    """Returns the explanation of the mark for each size of a capped batch."""
    records = [run.record for run in runs if run.record.clipped]
    grown = {of.largest_batch for of in records if 0 < of.largest_batch < of.train_samples}
    sizes = {
        (max(of.global_batch, of.largest_batch), of.batch_size, of.train_samples)
        for of in records
        if of.largest_batch not in grown
    }
    return tuple(
        f"{CAPPED} Batch capped to {f'the {batch} training samples' if batch == samples else f'{batch}, where the rule ends'}. "
        f"Where the learning rate scales with the batch, k = {batch} / {base} = {batch / base:.4g}."
        for batch, base, samples in sorted(sizes)
    ) + tuple(f"{CAPPED} Batch grown to {batch}, where its doublings end." for batch in sorted(grown))


def intervals_explained(results: Results) -> str:
    """Returns the definition of a report's intervals, and their limits with few seeds."""
    sizes = (len(results.times(scaling, n)) for scaling, n, _ in results.groups())
    seeds = min((size for size in sizes if size >= efficiency.MIN_RUNS), default=None)
    if seeds is None:
        return f"No intervals: they need {efficiency.MIN_RUNS} seeds."
    text = f"Intervals: exact, of the median over seeds, with {100 * efficiency.INTERVAL_LEVEL:g} % probability at least"
    coverage = 1 - 2.0 ** (1 - seeds)  # of the whole range of the runs
    if coverage >= efficiency.INTERVAL_LEVEL:
        return f"{text}."
    return f"{text} from 6 seeds on. The whole range of {seeds} holds it with a probability of {100 * coverage:.3g} %."


def epochs_text(runs: Sequence[Run], stopped: int = 0) -> str:
    """Returns the median and range of the epochs to the target. A miss or a stopped run counts as infinitely many."""
    epochs = [float(run.record.epochs) if run.reached else math.inf for run in runs] + [math.inf] * stopped

    def number(value: float) -> str:
        return f"{value:g}" if math.isfinite(value) else "not reached"

    middle = number(efficiency.median(epochs))
    return f"{middle} ({span(epochs, number)})" if len(set(epochs)) > 1 else middle


def listed(items: Iterable[object]) -> str:
    """Returns the items with commas, and with "and" before the last.

    >>> listed([1]), listed([1, 2, 4])
    ('1', '1, 2 and 4')
    """
    *first, last = map(str, items)
    return f"{', '.join(first)} and {last}" if first else last


def devices_text(counts: Sequence[int]) -> str:
    """Returns a list of numbers of devices as text.

    >>> devices_text([1]), devices_text([1, 2])
    ('1 device', '1 and 2 devices')
    """
    return "1 device" if list(counts) == [1] else f"{listed(counts)} devices"


def seeds_text(count: int) -> str:
    """Returns a number of seeds as text.

    >>> seeds_text(1), seeds_text(6)
    ('1 seed', '6 seeds')
    """
    return "1 seed" if count == 1 else f"{count} seeds"


def span(values: Sequence[float], text: Callable[[float], str]) -> str:
    """Returns the smallest and the largest value, or the only one. NaN and infinity are the largest.

    >>> span([3.0, 1.0, 3.0], "{:g}".format), span([2.0], "{:g}".format)
    ('1 to 3', '2')
    """
    ordered = sorted(values, key=lambda value: (value != value, value))
    low, high = text(ordered[0]), text(ordered[-1])
    return low if low == high else f"{low} to {high}"


def reached(runs: Sequence[Run], stopped: int = 0) -> str:
    """Returns how many runs reached the target, such as "2 of 3". Those that the time limit stopped did not."""
    return f"{sum(run.reached for run in runs)} of {len(runs) + stopped}"


def misses(runs: Sequence[Run]) -> list[str]:
    """Returns a text for each kind of miss: the number of its runs, their epochs, and their last and best losses."""
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        if not run.reached:
            kinds.setdefault(MISS_NAMES.get(run.outcome, run.outcome.replace("_", " ")), []).append(run)
    texts = []
    for kind, members in sorted(kinds.items()):
        records = [run.record for run in members]
        epochs = span([record.epochs for record in records], "{:g}".format)
        last, best = (_losses([getattr(record, name) for record in records]) for name in ("final_value", "best_value"))
        texts.append(f"{kind} {len(members)}× after epoch {epochs} at {last} (best {best})")
    return texts


def _losses(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return span(known, tables.loss) if known else "unknown"

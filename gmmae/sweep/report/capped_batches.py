"""Runs whose global batch is clipped to the training set: their mark, and the sentence that explains it."""

from collections.abc import Iterable

from gmmae.sweep.report.results import Run

MARK = "†"


def mark(runs: Iterable[Run]) -> str:
    """The mark, or nothing where no batch is clipped."""
    return MARK if any(run.record.clipped for run in runs) else ""


def notes(runs: Iterable[Run]) -> tuple[str, ...]:
    """What the mark means, or nothing where no batch is clipped."""
    sizes = {(run.record.global_batch, run.record.batch_size) for run in runs if run.record.clipped}
    return tuple(
        f"{MARK} Batch clipped to the {batch} training samples; where the rate follows the batch, "
        f"k = {batch} / {base} = {batch / base:.4g}."
        for batch, base in sorted(sizes)
    )

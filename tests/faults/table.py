"""What was seen, in Markdown."""

import os
import platform
from collections.abc import Sequence

import jax

from tests.faults.trials import Trial


def line(number: int, trial: Trial) -> str:
    """One fault."""
    how = f"skipped: {trial.skipped}" if trial.skipped else "NOT SURVIVED" if trial.complaints else "survived"
    gone = "" if trial.gone_s is None else f"; gone after {trial.gone_s:.1f} of {trial.bound_s:g} s"
    more = "".join(f"\n    ! {text}" for text in trial.complaints) + "".join(f"\n    - {text}" for text in trial.notes)
    more += f"\n    - {len(trial.missed)} attempts before" if trial.missed else ""
    return (
        f"{number:3} {trial.kind}, {trial.moment}: {how}; moment {'hit' if trial.hit else 'MISSED'}{gone}; codes "
        f"{_codes(trial)}; struck at epoch {trial.epochs}, went on after epoch {_went_on(trial)}; {trial.wall_s:.0f} s{more}"
    )


def _went_on(trial: Trial) -> str:
    """Returns the epoch that a run resumed from, and the checkpoints that were set aside."""
    aside = ", ".join(map(str, reversed(trial.set_aside)))
    return ("–" if trial.resumed_after is None else str(trial.resumed_after)) + (f" ({aside} set aside)" if aside else "")


def _codes(trial: Trial) -> str:
    return ", ".join("none" if code is None else str(code) for code in trial.codes) or "–"


def table(trials: Sequence[Trial]) -> str:
    """Kinds and moments, each with all its trials."""
    rows = [
        "| fault | moment | trials | moment hit | survived | longest until no process was left, s | bound, s | exit codes | "
        "went on after epoch |"
    ]
    rows.append("|---|---|---|---|---|---|---|---|---|")
    tried = [trial for trial in trials if not trial.skipped]
    for kind, moment in dict.fromkeys((trial.kind, trial.moment) for trial in tried):
        same = [trial for trial in tried if (trial.kind, trial.moment) == (kind, moment)]
        gone = [trial.gone_s for trial in same if trial.gone_s is not None]
        hit, survived = sum(trial.hit for trial in same), sum(not trial.complaints for trial in same)
        codes = "; ".join(dict.fromkeys(map(_codes, same)))
        went_on = "; ".join(dict.fromkeys(map(_went_on, same)))
        longest = "–" if not gone else f"{max(gone):.1f}" if len(gone) == len(same) else "left"
        bound = f"{same[0].bound_s:g}" if gone else "–"
        rows.append(f"| {kind} | {moment} | {len(same)} | {hit} | {survived} | {longest} | {bound} | {codes} | {went_on} |")
    return "\n".join(rows)


def summary(trials: Sequence[Trial], wall_s: float) -> str:
    """Counts, and where they were counted."""
    skipped = [trial for trial in trials if trial.skipped]
    survived = sum(not trial.complaints for trial in trials) - len(skipped)
    reasons = f" ({skipped[0].skipped})" if skipped else ""
    missed = sum(not trial.hit for trial in trials if not trial.skipped) or "none"
    return (
        f"{survived} of {len(trials) - len(skipped)} faults survived, {missed} missed its moment, "
        f"{len(skipped)} skipped{reasons}; {wall_s / 60:.1f} min; "
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, jax {jax.__version__}"
    )

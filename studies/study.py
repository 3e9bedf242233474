"""docs/study.md: its numbers and tables, from the committed results.

    python -m studies.study [--check]      # writes docs/study.md from studies/study.md; --check: only whether it is that

In studies/study.md `{{name}}` stands for a number or a table that this module makes (`FACTS`): no figure is written by hand.
"""

import argparse
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from gmmae.base.arms import ARMS
from gmmae.base.stopping import TARGET_REACHED
from studies import nodules_arms, size, tables

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
TEMPLATE, PAGE = ROOT / "studies" / "study.md", ROOT / "docs" / "study.md"
PLACE = re.compile(r"\{\{(\w+)\}\}")
EXPONENTS = {"weak": "k⁰", "fourth-root": "k^¼", "sqrt": "k^½", "three-quarters": "k^¾", "linear": "k"}
"""The arms at n times the base batch without a warmup, by their factor of the rate."""

Row = Mapping[str, str]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(name: str) -> list[Row]:
    """The cells of a sweep of the study."""
    return tables.read(RESULTS / "study" / name / "cells.csv")


def reached(row: Row) -> bool:
    return row["outcome"] == TARGET_REACHED


def distinct(rows: Iterable[Row]) -> list[Row]:
    """The rows that were computed: cells may share a run."""
    return list({(row["path"], row["seed"]): row for row in rows}.values())


def middle(values: Sequence[float]) -> str:
    """The median, and the range where there is one; a miss is infinite.

    >>> middle([3.0, 1.0, 2.0]), middle([2.0, math.inf, math.inf]), middle([2.0])
    ('2 (1–3)', '– (2–∞)', '2')
    """
    low, high = min(values), max(values)
    found = float(np.median(values)) if np.isfinite(np.sort(values)[: len(values) // 2 + 1]).all() else math.inf
    text = "–" if math.isinf(found) else f"{found:.4g}"
    ends = (f"{end:.4g}" if math.isfinite(end) else "∞" for end in (low, high))
    return text if low == high else f"{text} ({'–'.join(ends)})"


def outcome(rows: Sequence[Row]) -> str:
    """How many of the seeds arrived, in how many epochs, and how the others ended.

    >>> outcome([{"outcome": "target_reached", "epochs": "21"}, {"outcome": "stalled", "epochs": "90"}])
    '1/2: 21; stalled'
    >>> outcome([{"outcome": "collapsed", "epochs": "22"}] * 2)
    '0/2: collapsed 2'
    """
    came = [float(row["epochs"]) for row in rows if reached(row)]
    missed = Counter(row["outcome"].replace("_", " ") for row in rows if not reached(row))
    words = ", ".join(f"{kind} {count}" if count > 1 else kind for kind, count in missed.most_common())
    return f"{len(came)}/{len(rows)}: " + "; ".join(filter(None, (middle(came) if came else "", words)))


def by_arm(rows: Iterable[Row], arms: Sequence[str]) -> dict[tuple[str, int], list[Row]]:
    """Cells by arm and devices, seed by seed."""
    found = defaultdict(list)
    for row in sorted(rows, key=lambda row: int(row["seed"])):
        if row["arm"] in arms:
            found[row["arm"], int(row["devices"])].append(row)
    return found


def outcomes_table(rows: Sequence[Row], arms: Sequence[str]) -> str:
    """Arms by rows, devices by columns."""
    found = by_arm(rows, arms)
    counts = sorted({n for _, n in found if n > 1})
    named = {**ARMS, **nodules_arms.ARMS}
    return table(
        ("arm", *(f"n = {n}" for n in counts)),
        ((named[arm].label, *(outcome(found[arm, n]) if (arm, n) in found else "" for n in counts)) for arm in arms),
    )


def of_report(name: str, number: int, columns: Sequence[str] | None = None) -> str:
    """One of the tables that the report of a sweep wrote."""
    rows = tables.read(RESULTS / "study" / name / f"table_{number}.csv")
    kept = list(columns or rows[0])
    return table(kept, ([row[key] for key in kept] for row in rows))


def runs(rows: Iterable[Row]) -> dict[str, str]:
    """How much was computed, on what."""
    own = distinct(rows)
    hours = sum(float(row["train_s"]) + float(row["eval_s"]) for row in own) / 3600
    machines = sorted({row["machine"] for row in own})
    return {"runs": str(len(own)), "hours": f"{hours:.1f}", "machine": "; ".join(machines), "seeds": str(len({row["seed"] for row in own}))}


def nodules() -> dict[str, str]:
    """The paper's comparison."""
    rows = cells("nodules")
    strong = [float(row["epochs"]) for row in rows if row["arm"] == "strong" and row["devices"] == "1"]
    arms = ("weak", "linear-warmup", "linear", "sqrt", "best-batch")
    one = [row for row in rows if row["arm"] == "strong" and row["devices"] == "1"]
    seconds = [float(row["train_s"]) + float(row["eval_s"]) for row in one]
    return {
        **{f"nodules_{key}": value for key, value in runs(rows).items()},
        "nodules_outcomes": outcomes_table(rows, arms),
        "nodules_table_1": of_report("nodules", 1),
        "nodules_table_2": of_report("nodules", 2),
        "nodules_signs": of_report("nodules", 8),
        "strong_epochs": middle(strong),
        "strong_seconds": middle([round(value, 1) for value in seconds]),
    }

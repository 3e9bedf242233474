"""Runs of the study's sweeps, counted and put into tables."""

import csv
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments import tables
from gmmae.plotting.tables import table
from gmmae.scaling.strategies import STRATEGIES
from gmmae.system.stop_reasons import TARGET_REACHED

RESULTS = Path(__file__).parent.parent / "results"

OTHERS = ("weak", "linear-warmup", "linear", "sqrt", "best-batch")
"""Strategies that strong scaling is compared with."""

Row = Mapping[str, str]


def cells(name: str) -> Sequence[Row]:
    """Returns the rows of a sweep of the study."""
    return tables.read(RESULTS / "study" / name / "cells.csv")


def reached(row: Row) -> bool:
    """Returns whether a run reached its target."""
    return row["outcome"] == TARGET_REACHED


def distinct(rows: Iterable[Row]) -> list[Row]:
    """Returns the computed rows. Several rows may share a run.

    >>> [row["n"] for row in distinct([{"path": path, "seed": "0", "n": n} for path, n in ("a1", "a2", "b3")])]
    ['2', '3']
    """
    return list({(row["path"], row["seed"]): row for row in rows}.values())


def middle(values: Sequence[float], form: str = ".4g") -> str:
    """Returns the median, and the range if there are several values. A miss is infinite.

    >>> middle([3.0, 1.0, 2.0]), middle([20.0, 30.0, math.inf]), middle([2.0, math.inf, math.inf]), middle([2.0])
    ('2 (1–3)', '30 (20–∞)', '– (2–∞)', '2')
    >>> middle([2.0, 1.0, 4.0], ".1f"), middle([])
    ('2.0 (1.0–4.0)', '–')
    """
    if not values:
        return "–"
    median = float(np.median(values)) if np.isfinite(np.sort(values)[: len(values) // 2 + 1]).all() else math.inf
    text = "–" if math.isinf(median) else format(median, form)
    low, high = ("∞" if math.isinf(end) else format(end, form) for end in (min(values), max(values)))
    return text if low == high else f"{text} ({low}–{high})"


def outcome(rows: Sequence[Row]) -> str:
    """Returns the number of seeds that reached the target, their epochs, and the ends of the others.

    >>> outcome([{"outcome": "target_reached", "epochs": "21"}, {"outcome": "stalled", "epochs": "90"}])
    '1/2: 21; stalled'
    >>> outcome([{"outcome": "collapsed", "epochs": "22"}] * 2)
    '0/2: collapsed 2'
    """
    came = [float(row["epochs"]) for row in rows if reached(row)]
    missed = Counter(row["outcome"].replace("_", " ") for row in rows if not reached(row))
    words = ", ".join(f"{kind} {count}" if count > 1 else kind for kind, count in missed.most_common())
    return f"{len(came)}/{len(rows)}: " + "; ".join(filter(None, (middle(came) if came else "", words)))


def by_arm(rows: Iterable[Row], scaling: Sequence[str]) -> dict[tuple[str, int], list[Row]]:
    """Returns rows by strategy and devices, seed by seed."""
    found = defaultdict(list)
    for row in sorted(rows, key=lambda row: int(row["seed"])):
        if row["scaling"] in scaling:
            found[row["scaling"], int(row["devices"])].append(row)
    return found


def arrivals(grouped: Mapping[tuple[str, int], Sequence[Row]]) -> dict[str, str]:
    """Returns the number of seeds that reached the target, by strategy and devices.

    >>> arrivals({("linear-warmup", 4): [{"outcome": "target_reached"}, {"outcome": "stalled"}]})
    {'came_linear_warmup_4': '1 of 2'}
    """
    return {
        f"came_{scaling}_{n}".replace("-", "_"): f"{sum(map(reached, of))} of {len(of)}" for (scaling, n), of in grouped.items()
    }


def on_one_device(rows: Iterable[Row]) -> list[Row]:
    """Returns strong scaling's rows on one device, whose run is the same on any number of devices."""
    return [row for row in rows if row["scaling"] == "strong" and row["devices"] == "1"]


def outcomes_table(rows: Sequence[Row]) -> str:
    """Returns the table of `OTHERS`: strategies by rows, devices by columns."""
    found = by_arm(rows, OTHERS)
    counts = sorted({n for _, n in found if n > 1})
    return table(
        ("strategy", *(f"n = {n}" for n in counts)),
        [
            (STRATEGIES[scaling].label, *(outcome(found[scaling, n]) if (scaling, n) in found else "" for n in counts))
            for scaling in OTHERS
        ],
    )


def of_report(name: str, number: int) -> str:
    """Returns a table that the report of a sweep wrote. Several of its columns may have one name."""
    with (RESULTS / "study" / name / f"table_{number}.csv").open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    return table(head, rows)


def runs(rows: Iterable[Row]) -> dict[str, str]:
    """Returns the number of runs, their hours and their machines."""
    own = distinct(rows)
    hours = sum(float(row["train_s"]) + float(row["eval_s"]) for row in own) / 3600
    return {
        "runs": str(len(own)),
        "hours": f"{hours:.1f}",
        "machine": "; ".join(sorted({row["machine"] for row in own})),
        "seeds": str(len({row["seed"] for row in own})),
    }


def arrived_epochs(row: Row) -> float:
    """Returns the epochs to the target, or infinity for a miss."""
    return float(row["epochs"]) if reached(row) else math.inf

"""Writes docs/study.md, with numbers and tables from the committed results.

    python -m experiments.study [--check]      # writes docs/study.md; --check only compares

`{{name}}` in experiments/study.md stands for a number or a table of `FACTS`. Figures whose program is gone are typed there,
with the last commit that has it.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.child import ROOT
from benchmarks.options import Parser, guarded
from experiments import machines, size, tables
from experiments import plan as plans
from experiments.machines import h100_overhead, h100_steps, longer_epoch
from experiments.outcomes import (
    RESULTS,
    Row,
    arrivals,
    arrived_epochs,
    by_arm,
    cells,
    middle,
    of_report,
    on_one_device,
    outcomes_table,
    reached,
    runs,
)
from gmmae.plotting.tables import table

TEMPLATE, PAGE = ROOT / "experiments" / "study.md", ROOT / "docs" / "study.md"
GENERATED = (
    "<!-- Made by `python -m experiments.study` from experiments/study.md and results/. Change those, not this file. -->"
)
PLACE = re.compile(r"\{\{(\w+)\}\}")
RATES = {
    "weak": "k⁰",
    "fourth-root": "k^¼",
    "sqrt": "k^½",
    "three-quarters": "k^¾",
    "linear": "k",
    "linear-warmup": "k, warmup",
}
"""Strategies at n times the base batch, by their factor of the learning rate."""


def nodules() -> dict[str, str]:
    """Returns the paper's comparison."""
    rows = cells(plans.PAPER_DATA)
    one = on_one_device(rows)
    seconds = [float(row["train_s"]) + float(row["eval_s"]) for row in one]
    grouped = by_arm(rows, list(dict.fromkeys(row["scaling"] for row in rows)))
    with_signs = tables.read(RESULTS / "study" / plans.PAPER_DATA / "table_8.csv")
    faster = {(row["against"], row["devices"].rstrip("†")): f"{row['strong faster']} of {row['seeds']}" for row in with_signs}
    return {
        **arrivals(grouped),
        **{f"faster_{scaling}_{n}".replace("-", "_"): text for (scaling, n), text in faster.items()},
        **{f"nodules_{key}": value for key, value in runs(rows).items()},
        "nodules_outcomes": outcomes_table(rows),
        "nodules_table_1": of_report(plans.PAPER_DATA, 1),
        "nodules_table_2": of_report(plans.PAPER_DATA, 2),
        "nodules_signs": of_report(plans.PAPER_DATA, 8),
        "strong_epochs": middle([float(row["epochs"]) for row in one]),
        "strong_seconds": middle([round(value, 1) for value in seconds]),
    }


def splits() -> dict[str, str]:
    """Returns the comparison on other splits of the same nodules."""
    found, linear = {}, []
    for folder in sorted((RESULTS / "study").glob("split_*")):
        rows = cells(folder.name)
        one = [float(row["epochs"]) for row in on_one_device(rows)]
        found |= {
            f"{folder.name}_outcomes": outcomes_table(rows),
            f"{folder.name}_times": table(("n", "strong faster", "weak's time over strong's"), of_split(rows)),
            f"{folder.name}_strong": middle(one),
            f"{folder.name}_seeds": str(len(one)),
        }
        linear += by_arm(rows, ("linear",))["linear", 4]
    return found | {"splits_came_linear_4": f"{sum(map(reached, linear))} of {len(linear)}"}


def of_split(rows: Sequence[Row]) -> tuple[tuple[str, ...], ...]:
    """Returns, for each number of devices, how often strong scaling was faster than weak, and the ratio of their times."""
    times = {
        (row["scaling"], int(row["devices"]), row["seed"]): float(row["time_to_target_s"]) if reached(row) else math.inf
        for row in rows
    }
    lines = []
    for n in sorted({n for scaling, n, _ in times if scaling == "weak" and n > 1}):
        ratios = [
            of / times["strong", n, seed] for (scaling, count, seed), of in times.items() if (scaling, count) == ("weak", n)
        ]
        lines.append((str(n), f"{sum(ratio > 1 for ratio in ratios)} of {len(ratios)}", middle(ratios)))
    return tuple(lines)


def rates() -> dict[str, str]:
    """Returns several learning rates at each batch, and the best of them, known afterwards, against strong scaling."""
    rows = [*cells(plans.PAPER_DATA), *(cells("rates") if (RESULTS / "study" / "rates").exists() else ())]
    tried = [scaling for scaling in RATES if any(row["scaling"] == scaling for row in rows)]
    found = by_arm(rows, tried)
    strong = {row["seed"]: float(row["epochs"]) for row in on_one_device(rows)}
    measured = machines.paper_measurements()
    lines, medians = [], defaultdict(list)
    for n in sorted({n for _, n in found if n > 1}):
        epochs = {scaling: {row["seed"]: arrived_epochs(row) for row in found[scaling, n]} for scaling in tried}
        best = {seed: min(of.get(seed, math.inf) for of in epochs.values()) for seed in epochs["weak"]}
        more = [best[seed] / strong[seed] for seed in sorted(best)]
        batch = int(found["weak", n][0]["global_batch"])
        told = []
        for name, at in machines.machines(measured, n).items():
            ratios = [ratio * longer_epoch(at, batch) for ratio in more]
            medians[name].append(float(np.median(ratios)))
            told.append(f"{middle(ratios)}; {sum(ratio > 1 for ratio in ratios)} of {len(ratios)}")
        lines.append(
            (str(n), *(middle(list(epochs[scaling].values())) for scaling in tried), middle(list(best.values())), *told)
        )
    names = (f"over strong's time, {name}" for name in machines.machines(measured, 1))
    few = min(len({row["seed"] for row in rows if row["scaling"] == scaling}) for scaling in tried)
    return {
        "rates_table": table(("n", *(RATES[scaling] for scaling in tried), "the best of them", *names), lines),
        "rates_seeds": str(few),
        **{f"rates_{name}": text for name, text in arrivals(found).items()},
        "h100_us": " and ".join(f"{1e6 * second:.0f}" for second in h100_steps().seconds),
        "h100_range": f"{min(medians[machines.H100]):.2f} to {max(medians[machines.H100]):.2f}",
        "h100_overhead": f"{h100_overhead(measured, 1):.2f}",
    }


def sizes() -> dict[str, str]:
    """Returns the results for data sets of several sizes, and the crossover ratios by the runs themselves."""
    found = {}
    for name in size.DATA:
        file = RESULTS / "study" / "size" / f"{name}.csv"
        if file.exists():
            rows = tables.read(file)
            (head, *lines), thresholds = size.summary(rows), size.thresholds(rows)
            counts = sorted({n for of in thresholds.values() for n in of})
            more = [[f"{of[n]:.2f}" if n in of else "" for n in counts] for of in thresholds.values()]
            named = (*head, *(f"crossover, n = {n}" for n in counts))
            found[f"sizes_{name}"] = table(named, [(*line, *own) for line, own in zip(lines, more, strict=True)])
            linear = [max(0.0, value) for of in size.thresholds(rows, "linear").values() for value in of.values()]
            found[f"turns_linear_{name}"] = f"{min(linear):.2f} to {max(linear):.2f}"
            found[f"machine_{name}"] = "; ".join(sorted({row["machine"] for row in rows}))
    return found


def planned() -> dict[str, str]:
    """Returns predictions beside results, with a column for each workload."""
    rows = tables.read(RESULTS / "plan" / "summary.csv")
    values = {(row["figure"], row["of"]): row for row in rows}
    columns = list(dict.fromkeys(row["of"] for row in rows))
    lines = []
    for figure in dict.fromkeys(row["figure"] for row in rows):
        found = [values.get((figure, of)) for of in columns]
        lines.append((figure, *(f"{row['value']} ({row['cells']})" if row else "" for row in found)))
    names = ("figure (cells, or clusters times cells)", *(of.replace("_", " ") for of in columns))
    return {"plan_table": table(names, lines)}


FACTS: tuple[Callable[[], dict[str, str]], ...] = (nodules, splits, rates, sizes, planned)


def page() -> str:
    """Returns the text of docs/study.md.

    Raises:
      SystemExit: the template names an unknown fact.
    """
    facts = {name: value for make in FACTS for name, value in make().items()}
    template = f"{GENERATED}\n\n{TEMPLATE.read_text(encoding='utf-8')}"
    unknown = sorted(set(PLACE.findall(template)) - facts.keys())
    if unknown:
        raise SystemExit(f"{TEMPLATE.name} may name {', '.join(sorted(facts))}; got {', '.join(unknown)}")
    return PLACE.sub(lambda match: facts[match[1]], template)


def main() -> None:
    """Writes or checks the page."""
    parser = Parser(__doc__)
    parser.add_argument("--check", action="store_true", help="whether docs/study.md is up to date; writes nothing")
    args = parser.parse_args()
    text = page()
    if args.check:
        raise SystemExit(None if PAGE.read_text(encoding="utf-8") == text else f"{PAGE} is not what the results say")
    PAGE.write_text(text, encoding="utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    guarded(main)

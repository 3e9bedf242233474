"""Writes docs/study.md, with numbers and tables from the committed results.

    python -m experiments.study [--check]      # writes docs/study.md; --check only compares

`{{name}}` in experiments/study.md stands for a number or a table of `FACTS`. No figure is typed.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.child import ROOT
from benchmarks.options import Parser, guarded
from experiments import failure, frameworks, machines, other_strategies, real_times, size, tables
from experiments import plan as plans
from experiments.machines import EARLIER_CODE, h100_overhead, h100_steps, longer_epoch
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
    outcome,
    outcomes_table,
    reached,
    runs,
    table,
)
from gmmae.planner import prediction
from gmmae.planner.prediction import Measured
from gmmae.scaling.cost import StepTimes
from gmmae.scaling.strategies import STRATEGIES
from gmmae.system.stop_reasons import MAX_EPOCHS, TARGET_REACHED

TEMPLATE, PAGE = ROOT / "experiments" / "study.md", ROOT / "docs" / "study.md"
GENERATED = (
    "<!-- Made by `python -m experiments.study` from experiments/study.md and results/. Change those, not this file. -->"
)
PLACE = re.compile(r"\{\{(\w+)\}\}")
FEW_SAMPLES, FEW_SAMPLES_US = 4, (75, 100, 150, 200, 250, 300)
"""Samples of a step that has no time with later code on an H100, and its assumed times in microseconds."""

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


def given_up() -> dict[str, str]:
    """Returns the state of runs that missed the target, by their last checkpoints."""
    rows = tables.read(RESULTS / "study" / plans.PAPER_DATA / "given_up.csv")
    grouped = by_arm(rows, list(dict.fromkeys(row["scaling"] for row in rows)))
    counts = sorted({n for _, n in grouped})
    lines = []
    for scaling in (name for name in STRATEGIES if any(scaling == name for scaling, _ in grouped)):
        kinds = (Counter(row["kind"] for row in grouped.get((scaling, n), ())) for n in counts)
        lines.append(
            (STRATEGIES[scaling].label, *(", ".join(f"{kind} {count}" for kind, count in of.most_common()) for of in kinds))
        )
    totals = Counter(row["kind"] for row in rows)
    by_cell = {(row["scaling"], row["devices"], row["seed"]): row for row in cells(plans.PAPER_DATA)}
    still_open = [(row["scaling"], row["devices"], row["seed"]) for row in rows if row["kind"] == "open"]
    continued = sum(by_cell[key]["outcome"] in (MAX_EPOCHS, TARGET_REACHED) for key in still_open)
    return {
        "given_up_arrived": str(sum(reached(by_cell[key]) for key in still_open)),
        "given_up_table": table(("strategy", *(f"n = {n}" for n in counts)), lines),
        "given_up": str(len(rows)),
        "given_up_for_good": str(totals["frozen"] + totals["blind"]),
        "least": f"{float(rows[0]['least']):.5f}",
        **{f"given_up_{kind}": str(totals[kind]) for kind in ("frozen", "blind", "open")},
        "continued": str(continued),
        "open_best": f"{min(float(by_cell[key]['best_val_loss']) for key in still_open):.5f}",
        "drift_blind": f"{max((float(row['drift']) for row in rows if row['kind'] == 'blind'), default=0.0):.0e}",
    }


def other_targets() -> dict[str, str]:
    """Returns weak scaling against strong at losses that the runs passed."""
    rows = tables.read(RESULTS / "study" / plans.PAPER_DATA / "targets.csv")
    by_run = {(row["target"], row["scaling"], int(row["devices"]), row["seed"]): row for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    counts = sorted({int(row["devices"]) for row in rows if row["scaling"] == "weak"})
    lines = []
    for target in sorted({row["target"] for row in rows}, key=float, reverse=True):
        strong = [by_run[target, "strong", 1, seed] for seed in seeds]
        cells = [f"{float(target):.4g}", middle([float(row["epochs"]) for row in strong])]
        for n in counts:
            both = [(one, by_run[target, "weak", n, one["seed"]]) for one in strong]
            more = np.median([float(weak["epochs"]) / float(one["epochs"]) for one, weak in both])
            turn = np.median([size.turning(float(one["steps"]), float(weak["steps"]), n) for one, weak in both])
            cells.append(f"{more:.2f}; {turn:.2f}")
        lines.append(cells)
    return {"targets_table": table(("target", "strong, epochs", *(f"weak, n = {n}" for n in counts)), lines)}


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
        for few_us in FEW_SAMPLES_US:
            longer = longer_epoch(
                prediction.hypothetical_group(measured, h100_overhead(measured, n, later_h100_steps(few_us)), n), batch
            )
            medians[f"{few_us} µs"].append(longer * float(np.median(more)))
        lines.append(
            (str(n), *(middle(list(epochs[scaling].values())) for scaling in tried), middle(list(best.values())), *told)
        )
    names = (f"over strong's time, {name}" for name in machines.machines(measured, 1))
    few = min(len({row["seed"] for row in rows if row["scaling"] == scaling}) for scaling in tried)
    return {
        "rates_table": table(("n", *(RATES[scaling] for scaling in tried), "the best of them", *names), lines),
        "rates_seeds": str(few),
        **{f"rates_{name}": text for name, text in arrivals(found).items()},
        "h100_us": " and ".join(f"{1e6 * second:.0f}" for second in h100_steps(EARLIER_CODE).seconds),
        "h100_range": f"{min(medians[machines.H100]):.2f} to {max(medians[machines.H100]):.2f}",
        "h100_overhead": f"{h100_overhead(measured, 1):.2f}",
        **untimed(measured, medians),
    }


def untimed(measured: Measured, medians: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Returns the time of growing batches with later code, by assumed times of a step of few samples.

    Args:
      measured: measurements of the workload.
      medians: the best growing batch's time relative to strong scaling's on 2, 4, … devices, by assumed time.
    """
    lines = []
    for few_us in FEW_SAMPLES_US:
        of = medians[f"{few_us} µs"]
        overhead = h100_overhead(measured, 1, later_h100_steps(few_us))
        lines.append((f"{few_us} µs", f"{overhead:.2f}", f"{min(of):.2f} to {max(of):.2f}"))
    time = "growing batch's time over strong's on 2 to 32"
    head = (f"if a step of {FEW_SAMPLES} took", "overhead over the samples' time", time)
    return {"h100_now_us": f"{1e6 * h100_steps('later').seconds[-1]:.0f}", "untimed_table": table(head, lines)}


def later_h100_steps(few_us: float) -> StepTimes:
    """Returns the steps of later code on an H100, with an assumed time of the step of few samples."""
    [batch], [batch_s] = h100_steps("later")
    return StepTimes((FEW_SAMPLES, batch), (1e-6 * few_us, batch_s))


def failures() -> dict[str, str]:
    """Returns the first steps of the strategies, and the results of the linear rules with one change each."""
    rows = tables.read(RESULTS / "study" / "failure" / "courses.csv")
    shown = ("alive_encoder", "gradient", "spread", "at_the_edge")
    seed, last = min(row["seed"] for row in rows), []
    for cure, change in failure.CURES.items():
        for scaling, devices in failure.COURSES:
            of = [
                row
                for row in rows
                if (row["cure"], row["scaling"], row["devices"], row["seed"]) == (cure, scaling, str(devices), seed)
            ]
            if of:
                end = of[-1]
                first = (change.label, STRATEGIES[scaling].label, str(devices), end["step"])
                numbers = (f"{float(end[key]):.2g}" for key in shown)
                last.append((*first, f"{float(end['train_loss']):.5f}", *numbers))
    columns = ("units that learn", "gradient", "standard deviation", "at the edge")
    found = {"courses_table": table(("change", "strategy", "n", "step", "training loss", *columns), last)}
    tried = {name: change for name, change in failure.CURES.items() if (RESULTS / "study" / f"cures_{name}").exists()}
    if not tried:
        return found
    lines, seeds = [], set.intersection(*({row["seed"] for row in cells(f"cures_{name}")} for name in tried))
    for name, change in {"none": failure.CURES["none"], **tried}.items():
        both = [f"{scaling}{change.scaling}" for scaling in ("linear", "linear-warmup")]
        grouped = by_arm(cells(plans.PAPER_DATA if name == "none" else f"cures_{name}"), both)
        for scaling in both:
            texts = [outcome([row for row in grouped[scaling, n] if row["seed"] in seeds]) for n in (4, 8)]
            lines.append((change.label, STRATEGIES[scaling.removesuffix(change.scaling)].label, *texts))
    return found | {"cures_table": table(("change", "strategy", "n = 4", "n = 8"), lines)}


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


def compared() -> dict[str, str]:
    """Returns the comparison with other frameworks."""
    folder = RESULTS / "study" / "frameworks"
    found = {}
    for name, summary in frameworks.SUMMARIES.items():
        head, *lines = summary(tables.read(folder / f"{name}.csv"))
        found[f"{name}_table"] = table(head, lines)
    rows = tables.read(folder / "frameworks.csv")
    return found | {
        "frameworks_machine": "; ".join(sorted({row["machine"] for row in rows})),
        "frameworks_versions": ", ".join(sorted({word for row in rows for word in re.findall(r"\S+ \S+", row["versions"])})),
        "frameworks_others": middle([float(row["others"]) for row in rows]),
    }


def unet() -> dict[str, str]:
    """Returns the results of the U-Net on all real slices, and of a small one on few."""
    rows = tables.read(RESULTS / "segmentation" / "scaling" / "reached.csv")
    lines = ([row[key] for key in ("scaling", "devices", "epochs", "epoch", "steps", "best_dice")] for row in rows)
    table_of_all = table(("strategy", "n", "epochs trained", "epoch of 98 %", "steps to it", "best Dice"), lines)
    return {"unet_table": table_of_all} | {f"unet_small_{key}": value for key, value in small_unet().items()}


def small_unet() -> dict[str, str]:
    """Returns when each strategy reached 98 % of the one-device Dice with the same seed."""
    found = by_arm(tables.read(RESULTS / "study" / "unet_small" / "reached.csv"), ("strong", "weak", "linear-warmup"))
    strong = {row["seed"]: row for row in found["strong", 1]}
    rows = cells("unet_small")
    batch = int(on_one_device(rows)[0]["global_batch"])  # strong scaling has no more devices than samples
    lines, facts = [], runs(rows)
    for (scaling, n), of in sorted(found.items(), key=lambda item: ([*STRATEGIES].index(item[0][0]), item[0][1])):
        epochs, steps = ([float(row[key] or "inf") for row in of] for key in ("epoch", "steps"))
        ones = [strong[row["seed"]] for row in of]
        more = [count / float(one["epoch"]) for count, one in zip(epochs, ones, strict=True)]
        both = zip(steps, (float(one["steps"]) for one in ones), strict=True)
        turns = [max(0.0, size.turning(one, count, min(n, batch))) for count, one in both]
        own = ("", "") if scaling == "strong" else (middle(more), middle(turns))
        best = middle([float(row["best_dice"]) for row in of])
        came = facts[f"{scaling}_{n}".replace("-", "_")] = f"{sum(map(math.isfinite, epochs))} of {len(of)}"
        lines.append((STRATEGIES[scaling].label, str(n), came, middle(epochs), middle(steps), *own, best))
    head = ("strategy", "n", "98 % reached", "epoch", "steps", "epochs over strong's", "crossover", "best Dice")
    return facts | {"table": table(head, lines)}


def planned() -> dict[str, str]:
    """Returns predictions beside results, with a column for each workload."""
    rows = tables.read(RESULTS / "plan" / "summary.csv")
    values = {(row["figure"], row["of"]): row for row in rows}
    columns = list(dict.fromkeys(row["of"] for row in rows))
    lines = []
    for figure in dict.fromkeys(row["figure"] for row in rows):
        found = [values.get((figure, of)) for of in columns]
        lines.append((figure, *(f"{row['value']} ({row['cells']})" if row else "" for row in found)))
    head, *below = real_times.summary(tables.read(real_times.OUT))
    names = ("figure (cells, or clusters times cells)", *(of.replace("_", " ") for of in columns))
    return {"plan_table": table(names, lines), "real_times_table": table(head, below)}


FACTS: tuple[Callable[[], dict[str, str]], ...] = (
    *(nodules, splits, given_up, other_targets, rates),
    *(failures, sizes, compared, unet, planned),
    *(other_strategies.optimizers, other_strategies.growth, other_strategies.unet, other_strategies.tuned),
)


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

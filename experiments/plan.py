"""Compares the predictions of `gmmae plan` with results of unseen runs, and with other policies.

    python -m experiments.plan collect FOLDER...     # work directories of plans, WORKLOAD-SEED: results/plan/measured.json
    python -m experiments.plan                       # reads results/plan, prints the table and writes summary.csv

The true results are in `results/plan/cells.csv`: workload, strategy, devices, batch, learning_rate, seed, outcome, epochs,
steps, train_s. The gradients' norms in `results/plan/measured.json` are of plans up to commit 0455873.
"""

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.options import Parser, guarded
from experiments import policies, tables
from experiments.policies import Situation, Truth
from gmmae.config.schema import OptimConfig
from gmmae.planner import prediction
from gmmae.planner.prediction import Measured, Prediction
from gmmae.planner.step_ratios import Ratios
from gmmae.plotting.tables import text_table
from gmmae.scaling import strategies
from gmmae.scaling.cost import Cluster, StepTimes
from gmmae.system.stop_reasons import TARGET_REACHED

PLACE = Path(__file__).parent.parent / "results" / "plan"
OF_STUDY = {name: PLACE.parent / "study" / name / "cells.csv" for name in ("nodules_real", "segmentation")}
"""Results of sweeps, as their reports write them, which replace those of the same workload."""
OF_A_PLAN = ("strong", "quarter", prediction.BEST_BATCH)
"""Strategies at the base rate whose batch a plan runs itself or chooses. The runs of all seeds judge their intervals."""
PAPER_DATA = "nodules_real"
RATIOS = np.logspace(-2, 2, 25)
"""Overheads of the hypothetical clusters."""
ANYWHERE = Cluster("anywhere", "", 1024, 0.0, 1e30, 0.0, 1e30)
FALSE_ALARMS = 0.1


class Case(NamedTuple):
    """Plan, and the results of its workload and seed."""

    workload: str
    measured: Measured
    noise: float | None  # the gradient's noise scale, where the plan measured it
    published: float | None  # the same, as AdaptDL takes it
    cost: float  # of measuring, in base runs, by epochs
    cost_s: float  # by seconds, compiling and all
    cells: list[Truth]  # with n > 1
    of_a_plan: list[Truth]  # of the strategies `OF_A_PLAN`, by all seeds, without the plan's own base run


def restore(found: Mapping[str, Any]) -> Measured:
    """Returns the measurements of a `plan.json`."""
    m = found["measured"]

    def table(name: str) -> StepTimes:
        rows = sorted((int(batch), float(seconds)) for batch, seconds in m[name].items())
        return StepTimes(tuple(batch for batch, _ in rows), tuple(seconds for _, seconds in rows))

    return Measured(
        samples=m["samples"],
        validation=m["validation"],
        optim=OptimConfig(
            batch_size=m["batch_size"], learning_rate=m["learning_rate"], scaling_warmup_epochs=m["scaling_warmup_epochs"]
        ),
        max_epochs=m["max_epochs"],
        steps={int(batch): count for batch, count in m["steps"].items()},
        ratios=Ratios(**m["ratios"]),
        train=table("step_s"),
        passes=table("validation_s"),
        gradient_bytes=m["gradient_bytes"],
    )


def collect(folders: Iterable[Path]) -> None:
    """Adds the measurements of some plans to those that the evaluation reads."""
    file = PLACE / "measured.json"
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for folder in sorted(folders):
        found = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        kept[folder.name] = {key: found[key] for key in ("measured", "rule", "target", "metric", "curves")}
    file.write_text(json.dumps(dict(sorted(kept.items()))) + "\n", encoding="utf-8")


def read() -> list[Case]:
    """Returns every plan that has results for comparison."""
    truths: dict[str, list[Truth]] = defaultdict(list)  # by workload and seed
    of_study = {name: tables.read(path) for name, path in OF_STUDY.items() if path.exists()}
    for row in tables.read(PLACE / "cells.csv"):
        if row["workload"] not in of_study:
            truths[f"{row['workload']}-{row['seed']}"].append(_truth(row, row["batch"]))
    for name, rows in of_study.items():
        for row in rows:
            truths[f"{name}-{row['seed']}"].append(_truth(row, row["global_batch"]))
    cases = []
    for name, found in json.loads((PLACE / "measured.json").read_text(encoding="utf-8")).items():
        cells = [cell for cell in truths[name] if cell.devices > 1 and cell.scaling not in OF_A_PLAN]
        m, workload = found["measured"], name.rpartition("-")[0]
        of_a_plan = {
            (run, cell.batch): cell
            for run in truths
            if run.rpartition("-")[0] == workload
            for cell in truths[run]
            if cell.scaling in OF_A_PLAN and (run, cell.batch) != (name, m["batch_size"])
        }
        cost, cost_s = (sum(m[unit].values()) / m["base_run"][unit] for unit in ("epochs", "seconds"))
        if cells:
            published = policies.published_scale(norms) if (norms := found.get("norms")) else None
            noise = found.get("noise_scale")
            cases.append(Case(workload, restore(found), noise, published, cost, cost_s, cells, list(of_a_plan.values())))
    return cases


def _truth(row: Mapping[str, str], batch: str) -> Truth:
    return Truth(row["scaling"], int(row["devices"]), int(batch), row["outcome"] == TARGET_REACHED, float(row["steps"]))


class Judged(NamedTuple):
    """Result of a run beside its prediction."""

    workload: str
    truth: Truth
    said: Prediction

    @property
    def error(self) -> float:
        """Returns the error of the logarithm of the steps."""
        return math.log(self.said.steps / self.truth.steps)


def judged(case: Case) -> list[Judged]:
    """Returns all results of a case, each optimisation once. Steps, intervals and failures depend on no cluster."""
    distinct = {(cell.scaling, cell.batch): cell for cell in sorted(case.cells, key=lambda cell: -cell.devices)}.values()
    names = sorted({cell.scaling for cell in case.cells})
    said = prediction.forecast(case.measured, ANYWHERE, names, sorted({cell.devices for cell in case.cells})).cells
    by_name = {(cell.scaling, cell.devices): cell for cell in said}
    return [Judged(case.workload, truth, by_name[truth.scaling, truth.devices]) for truth in distinct]


def held(case: Case, at_base: bool) -> list[bool]:
    """Returns whether the intervals hold the steps of runs with the base rate: at the base batch, or at the other batches."""
    base = strategies.resolve("strong", case.measured.optim, 1, case.measured.samples).stages[0]
    found = []
    for truth in case.of_a_plan:
        if not truth.arrived or (truth.batch == base.batch) != at_base:
            continue
        drawn = prediction.draw_run(case.measured, base._replace(batch=truth.batch)).steps
        low, high = np.quantile(drawn, ((1 - prediction.INTERVAL_LEVEL) / 2, (1 + prediction.INTERVAL_LEVEL) / 2))
        found.append(bool(low <= truth.steps <= high))
    return found


class Scatter(NamedTuple):
    """Differences of steps between seeds, as absolute differences of logarithms.

    Attributes:
      pairs: of any two seeds.
      medians: of one seed and the median of all others, for at least three seeds. No plan knows that much beforehand.
    """

    pairs: list[float]
    medians: list[float]


def scatter(cases: Sequence[Case]) -> Scatter:
    """Returns the scatter of the weak strategy's runs that reached the target."""
    counts: dict[tuple[str, int], list[float]] = defaultdict(list)
    for case in cases:
        for batch, arrived in {cell.batch: cell for cell in case.cells if cell.scaling == "weak" and cell.arrived}.items():
            counts[case.workload, batch].append(math.log(arrived.steps))
    pairs = [abs(a - b) for logs in counts.values() for a, b in itertools.combinations(logs, 2)]
    several = [logs for logs in counts.values() if len(logs) > 2]
    medians = [abs(own - float(np.median([*logs[:i], *logs[i + 1 :]]))) for logs in several for i, own in enumerate(logs)]
    return Scatter(pairs, medians)


def recall(of: Sequence[Judged]) -> float:
    """Returns the fraction of failures above a probability that at most `FALSE_ALARMS` of the successes exceed.

    It is NaN without failures.
    """
    failed = [one.said.probability_of_failure for one in of if not one.truth.arrived]
    arrived = sorted((one.said.probability_of_failure for one in of if one.truth.arrived), reverse=True)
    if not failed:
        return math.nan
    threshold = arrived[math.floor(FALSE_ALARMS * len(arrived))] if arrived else 0.0
    return float(np.mean([chance > threshold for chance in failed]))


def regrets(cases: Sequence[Case], policy: str) -> list[policies.Outcome]:
    """Returns a policy's outcomes on hypothetical clusters, with the steps of the true results."""
    found = []
    for case in cases:
        base = case.measured.optim.batch_size
        an_epoch = math.ceil(case.measured.samples / base)
        whole_epochs = float(math.ceil(case.measured.steps[base] / an_epoch) * an_epoch)
        strong = Truth("strong", 1, base, True, whole_epochs)
        for n in sorted({cell.devices for cell in case.cells}):
            truths = {"strong": strong} | {cell.scaling: cell for cell in case.cells if cell.devices == n}
            if "weak" not in truths or n > base:
                continue
            for ratio in RATIOS:
                now = Situation(case.measured, case.noise, case.published, float(ratio), n, tuple(truths))
                found.append(policies.outcome(now, policies.POLICIES[policy](now), truths))
    return found


def summary(cases: Sequence[Case]) -> list[tuple[str, ...]]:
    """Returns the figures for each workload and for all."""
    rows = [("figure", "of", "cells", "value")]
    all_of = [one for case in cases for one in judged(case)]
    for workload in (*dict.fromkeys(case.workload for case in cases), "all"):
        of = [one for one in all_of if workload in (one.workload, "all")]
        mine = [case for case in cases if workload in (case.workload, "all")]
        rows += _figures(workload, of, mine)
    for workload in (*dict.fromkeys(case.workload for case in cases), "all"):
        mine = [case for case in cases if workload in (case.workload, "all")]
        rows += [_regret(mine, policy, workload) for policy in policies.POLICIES]
    return [row for row in rows if row[2] != "0"]


def _regret(cases: Sequence[Case], policy: str, workload: str) -> tuple[str, ...]:
    found = regrets(cases, policy)
    what = f"regret of {policy}: mean / 95 % / worst / never arrives"
    if not found:
        return (what, workload, "0", "")
    times, lost = [one.regret for one in found], np.mean([not one.arrived for one in found])
    value = f"{np.mean(times):.3f} / {np.quantile(times, 0.95):.2f} / {max(times):.2f} / {100 * lost:.0f} %"
    return (what, workload, str(len(found)), value)


def _figures(name: str, of: Sequence[Judged], cases: Sequence[Case]) -> list[tuple[str, ...]]:
    weak = [abs(one.error) for one in of if one.truth.scaling == "weak" and one.truth.arrived]
    scaled = [abs(one.error) for one in of if one.truth.scaling != "weak" and one.truth.arrived]
    arrived = [one for one in of if one.truth.arrived]
    of_rules = [one.said.steps_low <= one.truth.steps <= one.said.steps_high for one in arrived]
    strong, other = ([inside for case in cases for inside in held(case, at_base)] for at_base in (True, False))
    missed = sum(not one.truth.arrived for one in of)
    rows = []
    again = scatter(cases)
    errors_of = {
        "steps, weak: |log error|, median / 90 %": weak,
        "steps, other strategies: |log error|, median / 90 %": scaled,
        "steps, weak: |log error| of the same cell with another seed": again.pairs,
        "steps, weak: |log error| of the median of its other seeds": again.medians,
    }
    for figure, errors in errors_of.items():
        if errors:
            rows.append((figure, name, str(len(errors)), f"{np.median(errors):.3f} / {np.quantile(errors, 0.9):.3f}"))
    intervals_of = {
        "": of_rules + strong + other,
        ", strategies with a batch of n times": of_rules,
        ", strong: the base run with another seed": strong,
        ", quarter and best-batch": other,
    }
    for which, inside in intervals_of.items():
        if inside:
            what = f"80 % intervals that hold the steps{which}"
            rows.append((what, name, str(len(inside)), f"{100 * np.mean(inside):.0f} %"))
    if missed:
        value = f"{recall(of):.2f} of {missed}"
        rows.append((f"failures foreseen at {100 * FALSE_ALARMS:.0f} % false alarms", name, str(len(of)), value))
    spent = f"{np.mean([case.cost for case in cases]):.2f} / {np.mean([case.cost_s for case in cases]):.1f}"
    rows.append(("cost in base runs, epochs / seconds with compiling", name, str(len(cases)), spent))
    return rows


def main() -> None:
    """Collects plans, or prints and writes the table."""
    parser = Parser(__doc__)
    parser.add_argument("command", nargs="?", choices=("judge", "collect"), default="judge")
    parser.add_argument("folders", nargs="*", type=Path)
    args = parser.parse_args()
    if args.command == "collect":
        collect(args.folders)
        return
    rows = summary(read())
    head, *below = rows
    tables.write(PLACE / "summary.csv", [dict(zip(head, row, strict=True)) for row in below])
    print(text_table(rows[0], rows[1:]))


if __name__ == "__main__":
    guarded(main)

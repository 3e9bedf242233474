"""Judges predictions of steps on the zoo, each workload by constants that were set on the others.

    python -m experiments.zoo.judge     # prints the tables; writes results/zoo/summary.csv and constants.json

An error is that of the logarithm of the steps, against the median of the seeds that were not measured. The floor is the same
error of the cell's own run with the measured seed. Cells have 2 to 16 times the base batch. Intervals are judged at the base
batch too, where strong scaling is the base run with another seed, and at a half and a quarter of it. Every workload has the
same weight in a fit, and every run in a median.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from benchmarks.options import Parser, guarded
from experiments import tables
from experiments.zoo import cases as zoo
from experiments.zoo.cases import CASES, Case, Point
from gmmae.planner import step_ratios
from gmmae.planner.prediction import INTERVAL_LEVEL
from gmmae.planner.step_ratios import INTERVAL_NORMAL, LINEAR_RUN, MAX_COSTS, WEAK_RUN, Constants, Ratios
from gmmae.plotting.tables import text_table

NOISE = CASES.with_name("noise.csv")
"""The gradient's noise scale at the target of each base run; commit 0455873 has the program that measured it."""
POWERS = {"weak": 0.0, "sqrt": 0.5, "linear": 1.0}
"""Strategies by the power of the batch's factor that is the factor of the learning rate."""
BATCHES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Those of at most the base batch have the base rate only."""
RIDGE = 0.3
"""Penalty of the squares of the constants, beside a total weight of 100 for each workload."""
DEVIATION_RIDGE = 0.01
"""The same for the deviation, beside a total weight of 1."""
SQUARED = 0.2
"""Largest error of a logarithm whose square counts."""
WEIGHT = 100.0
FALSE_ALARMS = 0.1
OVERHEADS = np.logspace(-2, 2, 25)
"""(a + c) / (b B) of the hypothetical clusters."""

Short = tuple[Point, float]
"""A short run: its batch and learning rate over the base run's, and its largest cost in base runs."""
CHOSEN: tuple[Short, Short] = ((WEAK_RUN, MAX_COSTS[0]), (LINEAR_RUN, MAX_COSTS[1]))


class Cell(NamedTuple):
    """A strategy at a batch, with what was measured beside its seed's base run.

    Attributes:
      own: logarithm of the steps of the run with the measured seed over its base run's; infinite for a miss.
      others: the same of the other seeds' runs.
      strong: the median of the other seeds' base runs, likewise.
    """

    case: Case
    scaling: str
    batch: float
    ratios: Ratios
    cost: float
    own: float
    others: list[float]
    strong: float

    @property
    def rate(self) -> float:
        """The learning rate over the base rate."""
        return self.batch ** POWERS[self.scaling]

    @property
    def middle(self) -> float:
        """The median of the other seeds, a miss counting as infinite."""
        return float(np.median(self.others))

    @property
    def failures(self) -> float:
        """The share of the other seeds that missed the target."""
        return float(np.mean([not math.isfinite(one) for one in self.others]))


def measured(case: Case) -> tuple[Ratios, float]:
    """Returns the ratios that two short runs give, and the cost of all in base runs."""
    (first, second), weak = (case.measured[short] for short in CHOSEN), None
    if first.steps and first.base_steps:
        weak = step_ratios.weak_ratio(first.steps, first.base_steps, CHOSEN[0][0][0])
    found = (second.steps, second.base_steps) if second.steps and second.base_steps else None
    exponent = step_ratios.rate_exponent(found, weak, CHOSEN[1][0])
    return Ratios(weak, exponent, case.steps, case.remaining_fall), 1 + first.cost + second.cost


def cells(cases: Sequence[Case]) -> list[Cell]:
    """Returns the cells of every case that has the chosen short runs."""
    limits = zoo.misses(list(cases))
    runs: dict[tuple[tuple[str, int, int], Point], dict[int, float]] = defaultdict(dict)
    for case in cases:
        for point, steps in case.full.items():
            late = steps > limits[case.setting, point] and point[1] > 1
            runs[case.setting, point][case.seed] = math.inf if late else steps
    found = []
    for case in cases:
        if any(short not in case.measured for short in CHOSEN):
            continue
        ratios, cost = measured(case)
        bases = [math.log(steps / case.steps) for seed, steps in runs[case.setting, (1.0, 1.0)].items() if seed != case.seed]
        strong = float(np.median(bases)) if bases else 0.0
        for scaling, power in POWERS.items():
            for batch in (batch for batch in BATCHES if batch > 1 or not power):
                of_seeds = runs.get((case.setting, (batch, batch**power)), {})
                if len(of_seeds) < 3 or case.seed not in of_seeds:
                    continue
                logs = {
                    seed: math.log(steps / case.steps) if steps < math.inf else math.inf for seed, steps in of_seeds.items()
                }
                others = [log for seed, log in logs.items() if seed != case.seed]
                found.append(Cell(case, scaling, batch, ratios, cost, logs[case.seed], others, strong))
    return found


def weights(of: Sequence[Cell]) -> np.ndarray:
    """Returns the cells' weights; those of a workload add up to `WEIGHT`."""
    counts: dict[str, int] = defaultdict(int)
    for cell in of:
        counts[cell.case.workload] += 1
    return np.array([WEIGHT / counts[cell.case.workload] for cell in of])


def solve(features: np.ndarray, values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Returns the coefficients with the least weighted squares, with the penalty `RIDGE` of their own squares."""
    penalty = RIDGE * np.eye(features.shape[1])
    return np.linalg.solve(features.T @ (features * weight[:, None]) + penalty, features.T @ (weight * values))


def robust(features: np.ndarray, values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Returns the coefficients with Huber's loss: squares of errors up to `SQUARED`, and linear beyond."""
    found = solve(features, values, weight)
    for _ in range(20):
        off = np.abs(values - features @ found)
        found = solve(features, values, weight * np.minimum(1.0, SQUARED / np.maximum(off, 1e-9)))
    return found


def fit(train: Sequence[Cell]) -> Constants:
    """Returns the constants that predict these cells best."""
    reached = [cell for cell in train if math.isfinite(cell.middle)]
    found = larger(reached)
    of_batch = [step_ratios.batch_features(cell.batch, step_ratios.known_weak(cell.ratios)) for cell in found]
    of_rate = [step_ratios.rate_features(cell.batch, cell.rate, step_ratios.known_exponent(cell.ratios)) for cell in found]
    both = robust(np.hstack([of_batch, of_rate]), np.array([cell.middle for cell in found]), weights(found)).tolist()
    count = len(of_batch[0])
    constants = Constants(tuple(both[:count]), tuple(both[count:]), (), 0.0)
    return constants._replace(deviation=_deviation(reached, constants), failure=_failure(train))


def larger(of: Sequence[Cell]) -> list[Cell]:
    """Returns the cells of more than the base batch, which set the law and are chosen from."""
    return [cell for cell in of if cell.batch > 1]


def _deviation(of: Sequence[Cell], constants: Constants) -> tuple[float, ...]:
    """Returns the constants of the deviation, whose 80 % intervals hold 80 % of the other seeds' runs.

    They have the largest likelihood of errors with a two-sided exponential distribution. Their level is set by the errors then.
    """
    pairs = [
        (
            step_ratios.deviation_features(cell.batch, cell.ratios),
            abs(one - predicted(cell, constants)),
            weight / len(cell.others),
        )
        for cell, weight in zip(of, weights(of), strict=True)
        for one in cell.others
        if math.isfinite(one)
    ]
    features, off, weight = map(np.array, zip(*pairs, strict=True))
    weight = weight / weight.sum()
    middles = np.average(features, 0, weight) * np.array([0, *[1] * (features.shape[1] - 1)])
    centred = features - middles
    found = np.zeros(features.shape[1])
    penalty = DEVIATION_RIDGE * np.diag([0.0, *[1.0] * (features.shape[1] - 1)])
    for _ in range(50):  # Fisher's scoring
        relative = off / np.exp(centred @ found)
        gradient = centred.T @ (weight * (relative - 1)) - penalty @ found
        found = found + np.linalg.solve(centred.T @ (centred * weight[:, None]) + penalty, gradient)
    relative = off / np.exp(centred @ found)
    order = np.argsort(relative)
    level = relative[order][np.searchsorted(np.cumsum(weight[order]), INTERVAL_LEVEL)] / INTERVAL_NORMAL
    found[0] += math.log(level) - middles @ found
    return tuple(found.tolist())


def _failure(of: Sequence[Cell]) -> float:
    """Returns the constant of the chance of a failure at scaled learning rates, which is not negative."""
    scaled = [cell for cell in of if cell.rate > 1]
    feature = np.array([step_ratios.failure_feature(cell.rate, cell.ratios) for cell in scaled])
    failed, weight = np.array([cell.failures for cell in scaled]), weights(scaled)
    at_base = math.log(step_ratios.FAILURE_AT_BASE_LEARNING_RATE / (1 - step_ratios.FAILURE_AT_BASE_LEARNING_RATE))

    def loss(constant: float) -> float:
        logit = at_base + constant * feature
        return float(weight @ (np.logaddexp(0, logit) - failed * logit)) + RIDGE / 2 * constant**2

    return float(minimize_scalar(loss, bounds=(0.0, 20.0), method="bounded").x)  # pyright: ignore[reportAttributeAccessIssue]


def predicted(cell: Cell, constants: Constants) -> float:
    """Returns the predicted logarithm of the steps over the base run's."""
    return step_ratios.log_ratio(cell.batch, cell.rate, cell.ratios, constants)


class Judged(NamedTuple):
    """A cell and its prediction by constants of other workloads."""

    cell: Cell
    middle: float
    half_width: float  # of the 80 % interval
    failure: float


def judged(of: Sequence[Cell]) -> list[Judged]:
    """Returns every cell with its prediction, each workload left out once."""
    found = []
    for name in dict.fromkeys(cell.case.workload for cell in of):
        constants = fit([cell for cell in of if cell.case.workload != name])
        for cell in (cell for cell in of if cell.case.workload == name):
            sigma = step_ratios.deviation(cell.batch, cell.rate, cell.ratios, constants)
            chance = step_ratios.failure_probability(cell.rate, cell.ratios, constants)
            found.append(Judged(cell, predicted(cell, constants), INTERVAL_NORMAL * sigma, chance))
    return found


class Errors(NamedTuple):
    """Absolute errors, and those of the floor."""

    errors: list[float]
    floor: list[float]

    @property
    def text(self) -> str:
        """The median and the 90 % quantile of the errors, and their median over the floor's."""
        median, high = np.quantile(self.errors, (0.5, 0.9))
        return f"{median:.3f} / {high:.2f}; {median / np.median(self.floor):.2f} times the floor, {np.median(self.floor):.3f}"


def errors(of: Sequence[Judged], scaled: bool) -> Errors:
    """Returns the errors at the base rate or at scaled ones."""
    kind = [one for one in of if one.cell.batch > 1 and (one.cell.rate > 1) == scaled and math.isfinite(one.cell.middle)]
    floor = [abs(one.cell.own - one.cell.middle) for one in kind if math.isfinite(one.cell.own)]
    return Errors([abs(one.middle - one.cell.middle) for one in kind], floor)


def coverage(of: Sequence[Judged]) -> dict[str, list[bool]]:
    """Returns whether the 80 % intervals hold the other seeds' runs that reached the target, by workload."""
    held: dict[str, list[bool]] = defaultdict(list)
    for one in of:
        inside = [abs(log - one.middle) <= one.half_width for log in one.cell.others if math.isfinite(log)]
        held[one.cell.case.workload] += inside
    return held


def _held(of: Sequence[Judged]) -> str:
    """Returns the share of runs that intervals hold: of all, the mean of the workloads, and the two worst workloads."""
    held = coverage(of)
    shares = {name: float(np.mean(inside)) for name, inside in held.items()}
    worst = ", ".join(f"{shares[name]:.2f} ({name})" for name in sorted(shares, key=lambda name: shares[name])[:2])
    return f"{np.mean(np.concatenate(list(held.values()))):.2f}; {np.mean(list(shares.values())):.2f}; {worst}"


def recall(of: Sequence[Judged]) -> tuple[float, int]:
    """Returns the share of the linear rule's failures above a probability that few successes exceed, and their number."""
    linear = [one for one in of if one.cell.scaling == "linear"]
    came = sorted((one.failure for one in linear if one.cell.failures < 0.5), reverse=True)
    failed = [one.failure for one in linear if one.cell.failures >= 0.5]
    return float(np.mean([chance > came[int(FALSE_ALARMS * len(came))] for chance in failed])), len(failed)


def steady(of: Sequence[Judged]) -> list[float]:
    """Returns the errors of cells whose seeds agree within 10 %."""
    return [
        abs(one.middle - one.cell.middle)
        for one in of
        if one.cell.batch > 1
        and all(map(math.isfinite, [*one.cell.others, one.cell.own]))
        and np.std([*one.cell.others, one.cell.own]) < 0.1
    ]


class Situation(NamedTuple):
    """What a choice may know.

    Attributes:
      guess: predicted times by strategy.
      step_s: times of a step with the base batch, and with n times that.
      case: the workload and its seed.
      n: the number of devices.
    """

    guess: dict[str, float]
    step_s: tuple[float, float]
    case: Case
    n: float


def regrets(of: Sequence[Judged], choose: Callable[[Situation], str]) -> list[float]:
    """Returns the time of a choice over the best strategy's, on hypothetical clusters, with the other seeds' steps."""
    groups: dict[tuple, list[Judged]] = defaultdict(list)
    for one in of:
        groups[id(one.cell.case), one.cell.batch].append(one)
    found = []
    for (_, n), group in groups.items():
        base = group[0].cell.case.batch
        if not 1 < n <= base:
            continue
        for overhead in OVERHEADS:
            strong_s = overhead * base + math.ceil(base / n)
            grown_s = overhead * base + base
            guess, truth = {"strong": strong_s}, {"strong": strong_s * math.exp(group[0].cell.strong)}
            for one in group:
                steps = math.exp(min(one.middle, 20.0))
                guess[one.cell.scaling] = grown_s * steps + one.failure * strong_s
                true_steps = math.exp(one.cell.middle) if math.isfinite(one.cell.middle) else math.inf
                truth[one.cell.scaling] = grown_s * true_steps
            now = Situation(guess, (strong_s, grown_s), group[0].cell.case, n)
            chosen, best = truth[choose(now)], min(truth.values())
            failed = not math.isfinite(chosen)
            found.append((grown_s + truth["strong"] if failed else chosen) / best)
    return found


def least(now: Situation) -> str:
    """Returns the strategy of the least predicted time."""
    return min(now.guess, key=lambda name: now.guess[name])


def by_goodput(scales: dict[tuple, float], grown: str) -> Callable[[Situation], str]:
    """Returns the choice of AdaptDL between strong scaling and a batch that grows (Qiao et al. 2021, arXiv 2008.12260).

    Args:
      scales: noise scales by the key of a case.
      grown: the strategy of the grown batch.
    """

    def choose(now: Situation) -> str:
        if grown not in now.guess:
            return "strong"
        scale, batch = scales[*now.case.setting, now.case.seed], now.case.batch
        gain = (1 + batch / scale) / (1 / now.n + batch / scale)  # fewer steps, by the noise scale
        return grown if now.step_s[1] < gain * now.step_s[0] else "strong"

    return choose


def figures(of: Sequence[Judged]) -> list[tuple[str, str]]:
    """Returns the summary of a method, a figure a row."""
    caught = recall(of)
    sure = steady(of)
    times = regrets(of, least)
    held = "80 % intervals that hold the runs, all; mean of the workloads; the two worst"
    return [
        ("steps, weak: abs. log error, median / 90 %", errors(of, False).text),
        ("steps, learning-rate rules", errors(of, True).text),
        (f"steps where seeds agree within 10 %, {len(sure)} cells: median", f"{np.median(sure):.3f}"),
        (held, _held(of)),
        ("the same, 2 to 16 times the batch", _held([one for one in of if one.cell.batch > 1])),
        ("the same, strong: the base run with another seed", _held([one for one in of if one.cell.batch == 1])),
        ("the same, half and a quarter of the batch", _held([one for one in of if one.cell.batch < 1])),
        (f"failures of the linear rule foreseen at 10 % false alarms, of {caught[1]}", f"{caught[0]:.2f}"),
        ("time of the choice over the best: mean / 95 %", f"{np.mean(times):.3f} / {np.quantile(times, 0.95):.2f}"),
    ]  # fmt: skip


def main() -> None:
    """Prints and writes the table, and writes the constants."""
    Parser(__doc__).parse_args()
    cases = zoo.load()
    of = cells(cases)
    ours = judged(of)
    scales = {zoo.key(row): float(row["noise_scale"]) for row in tables.read(NOISE)}
    known = [one._replace(middle=one.cell.own, failure=float(not math.isfinite(one.cell.own))) for one in ours]
    constant = {
        "the choice by the runs themselves with the measured seed": regrets(known, least),
        "always strong": regrets(ours, lambda _: "strong"),
        "always weak": regrets(ours, lambda _: "weak"),
        "AdaptDL's choice by the noise scale, base rate": regrets(ours, by_goodput(scales, "weak")),
        "AdaptDL's choice by the noise scale, linear rule": regrets(ours, by_goodput(scales, "linear")),
    }
    costs = [cell.cost for cell in of]
    rows = [("figure", "two short runs"), *figures(ours)]
    rows.append(("cost in base runs, mean / 90 %", f"{np.mean(costs):.2f} / {np.quantile(costs, 0.9):.2f}"))
    rows += [
        (f"time of {name} over the best: mean / 95 %", f"{np.mean(times):.2f} / {np.quantile(times, 0.95):.1f}")
        for name, times in constant.items()
    ]
    names = sorted({case.workload for case in cases})
    counts = (len(names), len({id(cell.case) for cell in of}), len(of), len(larger(of)))
    rows.append(("workloads, cases, cells, those above the base batch", ", ".join(map(str, counts))))
    head, *below = rows
    tables.write(CASES.with_name("summary.csv"), [dict(zip(head, row, strict=True)) for row in below])
    print(text_table(rows[0], rows[1:]))
    constants = {name: np.round(of_name, 4).tolist() for name, of_name in fit(of)._asdict().items()}
    CASES.with_name("constants.json").write_text(json.dumps(constants, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    guarded(main)

"""What a plan says of a cluster: lines that begin with the user's question, a table, and the numbers behind them."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gmmae.planner import prediction
from gmmae.planner.prediction import BEST_BATCH, MAX_TIME_RATIO, Forecast, Measured, Prediction
from gmmae.scaling import cost, strategies
from gmmae.scaling.cost import time_text

AS_MEASURED = "devices as fast as the one that measured"
"""Whose times a plan states if no factor to the cluster's own devices is known."""

LEAST_FALL = 0.03
"""Share of the loss's fall after half of the steps below which another seed may miss the target. In the zoo one base run in
twenty is as flat, and the others reach their targets."""

LIKELY_FAILURE = 0.1
"""The chance of a failure above which the first line names it."""

BEST = 3
"""Strategies in the table for each number of devices."""

CHOICE_MARK = "←"

TOO_CLOSE = "too close to tell"


class Plan(NamedTuple):
    """From runs or from curves."""

    title: str
    measured: Measured
    metric: str
    target: float
    forecasts: Sequence[Forecast]  # one for each cluster
    basis: str  # what the steps are predicted from, in words
    device_kind: str | None  # the device that measured; None: the step times are the user's
    precision: str
    facts: Sequence[str]  # sentences
    warnings: Sequence[str]
    content: Mapping[str, Any]  # further keys of the JSON file
    evidence: Mapping[str, Any]  # further keys of its object `measured`
    remark: str = ""  # the last line of the answer

    @property
    def may_miss(self) -> bool:
        """Whether the loss hardly falls any more where the base run reaches the target."""
        return self.measured.ratios.remaining_fall < LEAST_FALL


def factor_text(factor: float) -> str:
    """Three significant digits.

    >>> factor_text(0.02), factor_text(3254.0)
    ('0.02', '3,250')
    """
    return f"{float(f'{factor:.3g}'):,.12g}"


def interval_text(low_s: float, high_s: float) -> str:
    """An interval, with one unit where both times have the same.

    >>> interval_text(27.0, 50.0), interval_text(80.0, 130.0)
    ('27 to 50 s', '80 s to 2.2 min')
    """
    low, high = time_text(low_s), time_text(high_s)
    value, unit = low.split()
    return f"{value if high.endswith(f' {unit}') else low} to {high}"


def label(name: str) -> str:
    """A strategy in words."""
    return strategies.STRATEGIES[name].label


def _listed(items: Iterable[object]) -> str:
    *others, last = map(str, items)
    return f"{', '.join(others)} and {last}" if others else last


def times_of(plan: Plan, forecast: Forecast) -> str:
    """The devices whose times a forecast states, and where the steps were measured.

    Step times of one kind of device are called those of another only if a factor between them is known.
    """
    name = forecast.cluster.name
    measured_on = f"steps measured on {plan.device_kind} in {plan.precision}" if plan.device_kind else "the given step times"
    if forecast.scale_given or forecast.compute_scale != 1:
        factor_from = "--scale-compute" if forecast.scale_given else "reference_step_s in the cluster's file"
        return f"{name}, times scaled by {factor_text(forecast.compute_scale)} from {measured_on} ({factor_from})"
    if plan.device_kind is None:
        return name
    if cost.same_device(forecast.cluster.device, plan.device_kind):
        return f"{name}, {measured_on}"
    return f"{AS_MEASURED} ({plan.device_kind} in {plan.precision}), linked as in {name}"


def priced(plan: Plan, forecast: Forecast) -> cost.Cluster | None:
    """The cluster, if the times are those of its devices; a price of an hour says nothing of other times."""
    return None if times_of(plan, forecast).startswith(AS_MEASURED) else forecast.cluster


def answer(plan: Plan, forecast: Forecast) -> list[str]:
    """The lines for a cluster: keep the batch or grow it, the choice with its time, and what is not sure."""
    measured, best = plan.measured, forecast.best
    strong = {cell.devices: cell for cell in forecast.cells if cell.scaling == "strong"}
    question = _question(plan, forecast, strong)
    if best is None:
        return list(filter(None, [question, plan.remark]))
    kind, plural = times_of(plan, forecast), "s" * (best.devices > 1)
    noun = "GPU" if {"GPU", "NVIDIA"} & set(forecast.cluster.device.split()) else "device"
    where = f"device{plural} {kind.removeprefix('devices ')}" if kind.startswith(AS_MEASURED) else f"{noun}{plural} of {kind}"
    name = f"{label(best.scaling).lower()} with batch {best.batch}"
    if best.devices in strong and best.scaling != "strong":
        _, low, high = prediction.time_ratio(measured, forecast, best, strong[best.devices])
        name += f", {TOO_CLOSE} from strong scaling" * (low < 1 < high)
    within = interval_text(best.seconds_low, best.seconds_high)
    choice = f"On {best.devices} {where}: {name}, about {time_text(best.seconds)} ({within}, 80 %)."

    doubts, basis = "", f"predicted from {plan.basis}"
    several = sorted((cell for cell in forecast.cells if cell.devices > 1), key=lambda cell: -cell.devices)
    if plan.device_kind and several:
        failing = {cell.scaling: cell.devices for cell in several if cell.probability_of_failure > 0.5}
        names = [f"{label(name).lower()} from n = {n} on" for name, n in failing.items()]
        doubts = f"Will most likely fail: {_listed(names)}. " if names else "No strategy is likely to fail. "
    if plan.device_kind and (best.learning_rate, best.batch) == (measured.optim.learning_rate, measured.optim.batch_size):
        basis = "by a run at its batch and learning rate and the scatter between seeds"
    doubts += f"The choice takes {_steps(best)} steps to {plan.metric} {plan.target:g}, 80 %, {basis}."
    if plan.may_miss:
        doubts += " Another seed may miss this target: the loss hardly falls any more where the base run reaches it."
    if not (plan.device_kind and cost.same_device(forecast.cluster.device, plan.device_kind)):  # else a trial has run there
        doubts += " Memory is not checked."
    ones, enough = [cell for cell in forecast.cells if cell.devices == 1 and not cell.failed_trial], ""
    one = min(ones, key=lambda cell: cell.expected_s, default=best)
    faster, cluster = one.seconds / best.seconds, priced(plan, forecast)
    if one != best and faster < best.devices / 2:
        what = "price" if cluster and cluster.price_per_device_hour else "device time"
        enough = (
            f"One {noun} with batch {one.batch} is enough if you can wait {time_text(one.seconds)}: {best.devices} are "
            f"{faster:.1f} times as fast for {best.devices / faster:.1f} times the {what}."
        )
    return list(filter(None, [question, choice, enough, doubts, plan.remark]))


def _question(plan: Plan, forecast: Forecast, strong: Mapping[int, Prediction]) -> str:
    base, timed, most = plan.measured.optim.batch_size, forecast.best is not None, plan.measured.tested_batches[1]
    compared: dict[int, tuple[Prediction, float, float, float]] = {}
    verdicts: dict[str, list[int]] = defaultdict(list)
    for n in sorted(strong.keys() - {1}):
        grown = [cell for cell in forecast.cells if cell.devices == n and base < cell.batch <= most and not cell.failed_trial]
        if grown:
            one = min(grown, key=lambda cell: cell.expected_s if timed else cell.steps)
            ratio, low, high = prediction.time_ratio(plan.measured, forecast, one, strong[n])
            compared[n] = one, ratio, low, high
            keep = low > 1 or one.probability_of_failure > 0.5
            verdicts["keep" if keep else "grow" if high < 1 else TOO_CLOSE].append(n)
    if not compared:
        alone = max(cell.devices for cell in forecast.cells) == 1
        why = f"No number of devices can do both: share {base}, and grow it" + f" to {most:.0f} at most" * math.isfinite(most)
        why = "Only one device was planned for." if alone else f"{why}."
        return f"Keep {base} or grow? {why}"
    n = forecast.best.devices if forecast.best and forecast.best.devices in compared else max(compared)
    one, ratio, low, high = compared[n]
    name, fails = label(one.scaling).lower(), one.probability_of_failure
    name += f", which fails in {100 * fails:.0f} % of runs" * (fails > LIKELY_FAILURE)
    where = f" of {forecast.cluster.name}" * (len(plan.forecasts) > 1)
    text = (
        f"Keep {base} or grow? On {n} devices{where} growing to {one.batch} ({name}) takes {100 * ratio:.0f} % of the "
        f"{'time' if timed else 'steps'} ({100 * low:.0f} to {100 * high:.0f} %, 80 %). "
    )
    share, train = math.ceil(base / n), plan.measured.train
    first = f" Time a step at batch {share} first: that is what each of {n} devices would have."
    first *= plan.device_kind is None and (train is None or share < train.batches[0])
    first += f" More than {base} devices cannot share {base} samples." * (max(cell.devices for cell in forecast.cells) > base)
    if timed:
        said = "; ".join(f"{verdict} on {_listed(counts)}" for verdict, counts in verdicts.items())
        return f"{text}{said[0].upper()}{said[1:]} devices.{first}"
    return (
        f"{text}It pays where a device's step of {math.ceil(one.batch / n)} samples takes less than {1 / ratio:.2g} times as "
        f"long as one of {share}.{first}"
    )


def _steps(cell: Prediction) -> str:
    return f"{cell.steps:.0f} ({cell.steps_low:.0f} to {cell.steps_high:.0f})"


def shown(forecast: Forecast) -> list[Prediction]:
    """The best predictions for each number of devices, by expected time or by steps.

    The first of several strategies with one batch and learning rate stands for all, and those whose trial failed are left out
    where there are others.
    """
    found = []
    for n in dict.fromkeys(cell.devices for cell in forecast.cells):
        cells = [cell for cell in forecast.cells if cell.devices == n]
        cells = [cell for cell in cells if not cell.failed_trial] or cells
        cells.sort(key=lambda cell: (cell.expected_s if forecast.best else cell.steps, cell != forecast.best))
        found += list({(cell.batch, cell.learning_rate): cell for cell in reversed(cells)}.values())[::-1][:BEST]
    return found


def table(
    plan: Plan, forecast: Forecast, cells: Collection[Prediction], steps: bool = True
) -> tuple[list[str], list[list[str]]]:
    """Columns and rows. What a narrow screen shows without scrolling comes first."""
    rows = []
    for cell in cells:
        row = {"n": str(cell.devices), "scaling": cell.scaling + f" {CHOICE_MARK}" * (cell == forecast.best)}
        if forecast.best:
            row |= {"time": time_text(cell.seconds), "80 %": interval_text(cell.seconds_low, cell.seconds_high)}
        if plan.device_kind:
            unknown = plan.may_miss and cell.learning_rate <= plan.measured.optim.learning_rate
            chance = f"{'≥ ' * unknown}{100 * cell.probability_of_failure:.0f} %"
            row |= {"fails": chance, "expected": time_text(cell.expected_s)}
        if forecast.best:
            row["speed-up"] = f"{cell.speedup:.2f}"
            row |= cost.spent_texts(priced(plan, forecast), cell.devices * cell.seconds)
        row["batch"] = str(cell.batch)
        if plan.device_kind:
            row["rate"] = f"{cell.learning_rate:.3g}"
        if steps or not forecast.best:
            row["steps"] = _steps(cell)
        rows.append(row)
    return list(rows[0]), [list(row.values()) for row in rows]


def notes(plan: Plan, forecast: Forecast) -> list[str]:
    """Sentences on the table."""
    texts = []
    if forecast.best:
        percent = 100 * (MAX_TIME_RATIO - 1)
        texts.append(f"{CHOICE_MARK} The choice: the fewest devices within {percent:.0f} % of the least expected time.")
    if plan.device_kind:
        texts.append(
            "Expected times include runs that fail and start again with strong scaling. A run fails if it diverges, or if it "
            f"has not reached the target after {plan.measured.max_epochs} epochs (stop.max_epochs)."
        )
    return texts


def evidence(plan: Plan) -> list[str]:
    """The numbers behind the answer, in sentences."""
    measured, several = plan.measured, len(plan.forecasts) > 1
    rule, base = prediction.batch_rule(measured), measured.optim.batch_size
    ratio = f"a / (b B) = {rule.overhead_s / (rule.sample_s * base) if rule.sample_s else math.inf:.2g} on one device and "
    lines = [
        "The rule: growing the batch wins where (a + c) / (b B) > B / Bn. A step of a device's batch takes a + b · batch, and "
        f"the all-reduce c. Here {ratio if measured.train else ''}B / Bn = {base / rule.bn:.2g}.",
        f"Steps to {plan.metric} {plan.target:g}: {measured.steps[base]:.0f} at batch {base}; S(B) = {rule.smin:.0f} (1 + "
        f"{rule.bn:.3g} / B) near the base batch.",
    ]
    if measured.train:
        on = f" on {plan.device_kind} in {plan.precision}" if plan.device_kind else ""
        lines.append(f"A step takes {1e3 * rule.overhead_s:.3g} ms + {1e3 * rule.sample_s:.3g} ms a sample{on}.")
    for forecast in plan.forecasts:
        where = f" for {forecast.cluster.name}" * several
        listed = " ".join(map(str, forecast.listed))
        if listed:
            at = ", ".join(f"{batch} on {n}" for n, batch in forecast.best_batches.items())
            lines.append(f"The strategy best-batch{where}: {at}" + f"; --optim.best-batches {listed}" * bool(plan.device_kind))
        if not plan.device_kind or not (best := forecast.best):
            continue
        if times_of(plan, forecast).startswith(AS_MEASURED):
            lines.append(
                f"--scale-compute takes the factor from {plan.device_kind} to {forecast.cluster.device}. It gives times of "
                f"{forecast.cluster.name}, and their cost."
            )
        option = f" --optim.best-batches {listed}" * (best.scaling == BEST_BATCH)
        options = f"--scaling {best.scaling} --parallel.devices {best.devices}{option}"
        lines.append(f"To train the choice{where}, add to the plan's options: {options}")
    return [*lines, *plan.facts]

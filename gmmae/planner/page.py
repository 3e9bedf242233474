"""A plan as lines for a terminal, as `plan.json`, and as a page that begins with the answer."""

import json
import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gmmae.config.schema import OptimConfig
from gmmae.planner import figures, prediction, stability
from gmmae.planner.measure import PlanMeasurements
from gmmae.planner.prediction import BEST_BATCH, BatchRule, Forecast, Measured, Prediction
from gmmae.planner.steps import MAX_RESIDUAL
from gmmae.plotting import canvas, document
from gmmae.plotting.document import Block, Bullets, Figure, Heading, Paragraph
from gmmae.plotting.tables import Table
from gmmae.scaling import cost, strategies
from gmmae.scaling.cost import Cluster
from gmmae.sweep.display import grid_table
from gmmae.sweep.report import models_an_hour
from gmmae.sweep.report.outcomes import devices_text
from gmmae.sweep.report.superlinear import artefact, fold
from gmmae.system.files import write_text
from gmmae.system.provenance import git_commit, versions
from gmmae.training.workdir import writable

JSON, HTML, MARKDOWN = "plan.json", "index.html", "README.md"

AS_MEASURED = "devices as fast as the one that measured"
"""The devices whose times a plan states if no factor to the cluster's own devices is known."""

MIN_RULE_POWER = 0.9
"""The power of the law above which the rule of thumb is shown."""

RATIOS = tuple(float(ratio) for ratio in np.logspace(-2, 2, 33))
"""Overheads of the map's rows."""

MIN_EXPLAINED_RATIO = 1.005
"""The ratio of speed-up to devices above which a speed-up is explained."""

MACHINE_MARK = "‡"
"""The mark of a speed-up larger than n that is due to the measuring machine."""

BATCH_MARK = "§"
"""The mark of a speed-up larger than n that is due to the batch and the learning rate."""

OTHERWISE_IN_JSON = ("optim", "noise_scale", "train", "passes")
"""Fields of the measurements that `plan.json` holds under other names."""

SEVERAL = (
    "Models an hour: seeds side by side have a device each; runs one after another have all devices. Times are medians of runs "
    f"that reach the target. {models_an_hour.ASSUMPTION}"
)
"""The explanation of the models an hour."""

COLUMNS = ("scaling", "n", "batch", "rate", "time", "80 %", "fails", "speed-up", "efficiency")


class Plan(NamedTuple):
    """A plan: its configuration's name, its measurements, and the predictions for each cluster."""

    name: str
    measurements: PlanMeasurements
    rule: BatchRule
    forecasts: Sequence[Forecast]
    devices: Sequence[int]


def write(
    root: Path,
    name: str,
    measurements: PlanMeasurements,
    clusters: Sequence[Cluster],
    devices: Collection[int],
    compute_scale: float | None = None,
) -> list[str]:
    """Writes `plan.json` and the page; returns the lines of the answer.

    Args:
      root: the plan's work directory.
      name: name of the configuration.
      measurements: the measurements.
      clusters: the clusters to predict for.
      devices: numbers of devices. Those without a training sample for each device are left out.
      compute_scale: seconds on a cluster's device for one second measured; None takes the factor of each cluster's file.

    Raises:
      InputError: the folder cannot be written.
    """
    measured = measurements.measured
    names = planned_strategies(measured.optim)
    forecasts = [prediction.forecast(measured, cluster, names, devices, compute_scale) for cluster in clusters]
    if left_out := sorted(n for n in devices if n > measured.samples):
        note = f"{', '.join(map(str, left_out))} devices are left out: there are {measured.samples} training samples"
        measurements = measurements._replace(notes=[*measurements.notes, note])
    counts = prediction.runnable(measured.samples, devices)
    plan = Plan(name, measurements, prediction.batch_rule(measured), forecasts, counts)
    with writable(root):
        write_text(root / JSON, json.dumps(_strict_json(plan_content(plan)), indent=1, allow_nan=False) + "\n")
        for earlier in (root / "figures").glob("times_*"):
            earlier.unlink()
        blocks = _blocks(plan, root / "figures")
        write_text(root / MARKDOWN, document.markdown(blocks, root))
        write_text(root / HTML, document.html(f"Plan: {name}", blocks))
    lines = [_answer(forecast, measurements) for forecast in forecasts]
    for forecast in forecasts:
        table = grid_table([COLUMNS, *_rows(forecast, measurements)])
        lines += ["", forecast.cluster.name, table, *_marks(forecast, measurements), *_several(forecast, measurements)]
    return [*lines, "", *_evidence(plan), "", *(str(root / file) for file in (JSON, HTML))]


def time_text(seconds: float) -> str:
    """Returns a time with two significant digits.

    >>> time_text(0.1234), time_text(95.4), time_text(110), time_text(5000), time_text(7800)
    ('0.12 s', '95 s', '1.8 min', '83 min', '2.2 h')
    """
    value, unit = (seconds, "s") if seconds < 99.5 else (seconds / 60, "min") if seconds < 5970 else (seconds / 3600, "h")
    return f"{value:#.2g}".rstrip(".") + f" {unit}" if value < 99.5 else f"{value:.0f} {unit}"


def planned_strategies(optim: OptimConfig) -> list[str]:
    """Returns the strategies of a plan, whose settings are known.

    The law of the steps is for one batch and one optimiser. So strategies whose batch grows, or whose constants of the
    optimiser follow the batch, are left out.
    """
    known = strategies.STRATEGIES.items()
    predictable = [name for name, of in known if not of.grows_in_a_run and of.optimizer is strategies.constants]
    return [name for name in predictable if name != "tuned" or optim.tuned_factors]


def plan_content(plan: Plan) -> dict[str, object]:
    """Returns the content of `plan.json`."""
    measurements, measured = plan.measurements, plan.measurements.measured
    return {
        "config": plan.name,
        "clusters": {
            forecast.cluster.name: {
                "cells": [cell._asdict() for cell in forecast.cells],
                "best": forecast.best._asdict(),
                "best_batch": forecast.best_batches,
                "best_batches": forecast.listed,
                "overhead": forecast.overheads,
                "models_an_hour": hourly_models(forecast),
                "compute_scale": forecast.compute_scale,
                "scaled_by_user": forecast.scale_given,
                "times_of": times_of(forecast, measurements.device_kind),
            }
            for forecast in plan.forecasts
        },
        "rule": plan.rule._asdict(),
        "noise_scale": measured.noise_scale,
        "target": measurements.target,
        "metric": measurements.metric,
        "curves": measurements.curves,
        "measured": {
            "device": measurements.device_kind,
            **{name: value for name, value in measured._asdict().items() if name not in OTHERWISE_IN_JSON},
            **{name: getattr(measured.optim, name) for name in ("batch_size", "learning_rate", "scaling_warmup_epochs")},
            "step_s": dict(zip(*measured.train, strict=True)),
            "validation_s": dict(zip(*measured.passes, strict=True)),
            "base_run": {"epochs": measurements.base_epochs, "seconds": measurements.base_s},
            "epochs": measurements.epochs,
            "seconds": measurements.seconds,
            "notes": measurements.notes,
            "tuned_factors": measurements.tuned_factors,
            "norms": measurements.norms,
            "versions": versions(),
            "git_commit": git_commit(),
        },
    }


def hourly_models(forecast: Forecast) -> dict[int, dict[str, dict[str, float]]]:
    """Returns the predicted models an hour by number of devices n and by strategy, from the median times to the target.

    The key "side_by_side" has those of n runs at the same time, one on each device. Without predictions for one device it has
    strong scaling only. The key "one_after_another" has those of one run at a time on all n devices.
    """
    alone, hourly = _alone_s(forecast), {}
    for cell in forecast.cells:
        side_by_side = {name: models_an_hour.rate(seconds, at_once=cell.devices) for name, seconds in alone.items()}
        of_count = hourly.setdefault(cell.devices, {"side_by_side": side_by_side, "one_after_another": {}})
        of_count["one_after_another"][cell.scaling] = models_an_hour.rate(cell.seconds)
    return hourly


def _alone_s(forecast: Forecast) -> dict[str, float]:
    """Returns the median seconds on one device by strategy. Those of strong scaling, as in each speed-up, are always known."""
    first = forecast.cells[0]
    return {"strong": first.speedup * first.seconds} | {
        cell.scaling: cell.seconds for cell in forecast.cells if cell.devices == 1
    }


def _strict_json(value: object) -> object:
    """Returns a value as strict JSON allows it. A number that is not finite becomes null."""
    if isinstance(value, dict):
        return {str(key): _strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def times_of(forecast: Forecast, measured_on: str) -> str:
    """Returns the devices whose times a forecast states, and where the times come from.

    Step times of one kind of device are called those of another only if a factor between them is known.
    """
    cluster = forecast.cluster
    if forecast.compute_scale != 1:
        source = "--scale-compute" if forecast.scale_given else "reference_step_s in the cluster's file"
        return f"{cluster.name}, times scaled by {forecast.compute_scale:.3g} from steps measured on {measured_on} ({source})"
    if cost.same_device(cluster.device, measured_on):
        return f"{cluster.name}, steps measured on {measured_on}"
    return f"{AS_MEASURED} ({measured_on}), linked as in {cluster.name}"


def _answer(forecast: Forecast, measurements: PlanMeasurements) -> str:
    """Returns the recommendation for a cluster in sentences."""
    best, source = forecast.best, times_of(forecast, measurements.device_kind)
    plural = "s" * (best.devices > 1)
    if source.startswith(AS_MEASURED):
        devices = f"{best.devices} device{plural} {source.removeprefix('devices ')}"
    else:
        noun = "GPU" if {"GPU", "NVIDIA"} & set(forecast.cluster.device.split()) else "device"
        devices = f"{best.devices} {noun}{plural} of {source}"
    interval = f"{time_text(best.seconds_low)} to {time_text(best.seconds_high)}, 80 %"
    parts = [f"On {devices}: {_label(best.scaling).lower()}, about {time_text(best.seconds)} ({interval})"]
    if any(cell.devices > 1 for cell in forecast.cells):
        parts += [_growth(forecast), _failures(forecast)]
    text = f"{'; '.join(parts)}."
    if mark := _speedup_mark(best, measurements.measured):
        reason = _speedup_reason(mark, measurements.device_kind, best.devices)
        text += f" A speed-up of {best.speedup:.3g} is predicted on {devices_text([best.devices])}. {reason}"
    return text


def _growth(forecast: Forecast) -> str:
    strong = {cell.devices: cell.expected_s for cell in forecast.cells if cell.scaling == "strong"}
    grown = [cell for cell in forecast.cells if cell.devices > 1 and cell.scaling not in ("strong", BEST_BATCH)]
    faster = [cell for cell in grown if cell.tested and cell.expected_s < strong.get(cell.devices, math.inf)]
    if not faster:
        return "growing the batch with the devices never pays"
    first = min(faster, key=lambda cell: (cell.devices, cell.expected_s))
    return f"growing the batch with the devices pays from n = {first.devices} on ({_label(first.scaling).lower()})"


def _failures(forecast: Forecast) -> str:
    linear = [cell for cell in forecast.cells if cell.scaling == "linear" and cell.devices > 1]
    doubtful = [cell.devices for cell in linear if cell.tested and cell.probability_of_failure > 0.5]
    untested = [cell.devices for cell in linear if not cell.tested]
    parts = [f"the linear rule will most likely fail from n = {doubtful[0]} on"] if doubtful else []
    parts += [f"the linear rule is untested from n = {untested[0]} on"] if untested else []
    return "; ".join(parts) or "the linear rule will probably work"


def _label(name: str) -> str:
    return strategies.STRATEGIES[name].label


def _rows(forecast: Forecast, measurements: PlanMeasurements) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            cell.scaling,
            str(cell.devices),
            str(cell.batch),
            f"{cell.learning_rate:.3g}",
            time_text(cell.seconds),
            f"{time_text(cell.seconds_low)} to {time_text(cell.seconds_high)}",
            f"{100 * cell.probability_of_failure:.0f} %" if cell.tested else "untested",
            f"{cell.speedup:.2f}{_speedup_mark(cell, measurements.measured)}",
            f"{100 * cell.efficiency:.0f} %",
        )
        for cell in forecast.cells
    )


def _marks(forecast: Forecast, measurements: PlanMeasurements) -> tuple[str, ...]:
    """Returns a line with the meaning of each mark in the rows."""
    marks = {_speedup_mark(cell, measurements.measured) for cell in forecast.cells}
    return tuple(
        f"{mark} {_speedup_reason(mark, measurements.device_kind)}" for mark in MACHINE_MARK + BATCH_MARK if mark in marks
    )


def _several(forecast: Forecast, measurements: PlanMeasurements) -> tuple[str, ...]:
    """Returns a line with the models an hour for each number of devices above one."""
    alone_s = _alone_s(forecast)
    first, *others = dict.fromkeys(["strong", *(cell.scaling for cell in _strong_and_best(forecast, 1))])
    lines = []
    for n in dict.fromkeys(cell.devices for cell in forecast.cells if cell.devices > 1):
        side_by_side = f"{n} seeds side by side: {models_an_hour.text(alone_s[first], at_once=n)} models an hour with {first}"
        side_by_side += "".join(f", {models_an_hour.text(alone_s[name], at_once=n)} with {name}" for name in others)
        on_all = ", ".join(
            f"{models_an_hour.text(cell.seconds)}{_speedup_mark(cell, measurements.measured)} with {cell.scaling}"
            for cell in _strong_and_best(forecast, n)
        )
        lines.append(f"{side_by_side}; one after another on all {n}: {on_all}")
    return tuple(lines)


def _strong_and_best(forecast: Forecast, devices: int) -> list[Prediction]:
    """Returns the predictions of strong scaling and of the strategy with the least expected time on a number of devices.

    One that is both is returned once, and an impossible one not at all.
    """
    cells = [cell for cell in forecast.cells if cell.devices == devices]
    best = min((cell for cell in cells if cell.tested), key=lambda cell: cell.expected_s, default=None)
    strong = [cell for cell in cells if cell.scaling == "strong"]
    return strong if best is None or best in strong else [*strong, best]


def _speedup_mark(cell: Prediction, measured: Measured) -> str:
    """Returns the mark of a speed-up that is larger than the number of devices, otherwise an empty text."""
    if cell.speedup <= MIN_EXPLAINED_RATIO * cell.devices:
        return ""
    share, base = cell.batch / cell.devices, measured.optim.batch_size
    sample_s, base_sample_s = (float(cost.seconds_at(measured.train, batch)) / batch for batch in (share, base))
    return MACHINE_MARK if share < base and sample_s < base_sample_s else BATCH_MARK


def _speedup_reason(mark: str, device_kind: str, devices: int | None = None) -> str:
    if mark == MACHINE_MARK:
        return artefact(device_kind, devices)
    return f"More than {fold(devices)} comes from a batch and a learning rate that one device did not have."


def _evidence(plan: Plan) -> list[str]:
    """Returns the lines with the numbers behind the answer."""
    measurements, rule = plan.measurements, plan.rule
    measured, kind = measurements.measured, measurements.device_kind
    law = f"S(B) = {rule.smin:.0f} (1 + {rule.bn:.3g} / B)" + (f"^{rule.power:.2g}" if rule.power < 1 else "")
    steps = ", ".join(f"{count:.0f} at batch {batch}" for batch, count in sorted(measured.steps.items()))
    lines = [
        _limit(plan),
        f"Steps to {measurements.metric} {measurements.target:g}: {steps}; {law}. A step takes "
        f"{1e3 * rule.overhead_s:.3g} ms + {1e3 * rule.sample_s:.3g} ms a sample on {kind}.",
    ]
    for forecast in plan.forecasts:
        cluster = f", {forecast.cluster.name}" * (len(plan.forecasts) > 1)
        batches = ", ".join(f"{batch} on {n}" for n, batch in forecast.best_batches.items())
        lines.append(f"The strategy best-batch{cluster}: {batches}; --optim.best-batches {' '.join(map(str, forecast.listed))}")
    lines += [
        f"--scale-compute takes the factor from {kind} to {forecast.cluster.device}. It gives times of {forecast.cluster.name}."
        for forecast in plan.forecasts
        if times_of(forecast, kind).startswith(AS_MEASURED)
    ]
    if measured.noise_scale is not None:
        lines.append(f"The gradient's noise scale is {measured.noise_scale:.3g} samples.")
    if measurements.tuned_factors:
        factors = " ".join(f"{factor:g}" for factor in measurements.tuned_factors)
        lines.append(f"For the strategy tuned: --optim.tuned-factors {factors}")
    lines += [SEVERAL] if plan.devices and max(plan.devices) > 1 else []
    lines += [_stable_rates(measured), _effort(measurements)]
    if rule.residual > MAX_RESIDUAL:
        lines.append(
            f"warning: the steps must follow {law}; the fit's residual is {rule.residual:.2f}, above "
            f"{MAX_RESIDUAL}: do not trust batches that were not run"
        )
    elif math.isfinite(rule.residual):
        lines.append(f"The fit's residual is {rule.residual:.2f}.")
    return [*lines, *(f"warning: {note}" for note in measurements.notes)]


def _limit(plan: Plan) -> str:
    """Returns a sentence on what limits training: noise and overhead, or the learning rate."""
    rule, base, speedups = plan.rule, plan.measurements.measured.optim.batch_size, plan.measurements.measured.speedups
    if rule.power <= MIN_RULE_POWER:
        factor = max(speedups)
        return f"The base rate limits training: {factor:g} times the rate goes {speedups[factor]:.2g} times as fast."
    ratio = rule.overhead_s / (rule.sample_s * base) if rule.sample_s else math.inf
    return (
        f"The rule: growing the batch wins where (a + c) / (b B) > B / Bn. Here a / (b B) = {ratio:.2g} on one device and "
        f"B / Bn = {base / rule.bn:.2g}."
    )


def _effort(measurements: PlanMeasurements) -> str:
    """Returns a sentence on what the measurements cost, relative to the base run."""
    seconds, epochs = sum(measurements.seconds.values()), sum(measurements.epochs.values())
    base_epochs, base_s = measurements.base_epochs, measurements.base_s
    return (
        f"Measuring took {epochs:.0f} epochs and {time_text(seconds)}: {epochs / base_epochs:.1f} times the base run's "
        f"{base_epochs} epochs, {seconds / base_s:.1f} times its {time_text(base_s)}, compiling included."
    )


def _stable_rates(measured: Measured) -> str:
    """Returns a sentence on the learning rates that the trials allow."""
    factor, largest = stability.max_stable_factor(measured.progress), max(measured.progress)
    if factor <= largest:
        text = f"The learning rate may be {factor:.2g} times the base rate before an epoch at the base batch fails"
    elif largest > 1:
        text = f"No trial failed, up to {largest:g} times the base rate"
    else:
        text = "No trial of a higher learning rate was made"
    shares = ", ".join(
        f"{100 * share:.0f} % at {factor:g} η" for factor, share in sorted(measured.active_unit_fractions.items())
    )
    return f"{text}; units that still learn after the linear rule's first steps: {shares}." if shares else f"{text}."


def _blocks(plan: Plan, folder: Path) -> list[Block]:
    answers = [_answer(forecast, plan.measurements) for forecast in plan.forecasts]
    blocks: list[Block] = [Heading(f"Plan: {plan.name}", 1), *(Paragraph(f"**{answer}**") for answer in answers)]
    for place, forecast in enumerate(plan.forecasts, start=1):
        source = times_of(forecast, plan.measurements.device_kind)
        blocks += [
            Heading(forecast.cluster.name, 2),
            _times(forecast, source, folder / f"times_{place}"),
            _table(forecast, source, place, plan.measurements),
            *_several_blocks(forecast, plan.measurements),
        ]
    return [
        *blocks,
        Heading("The best strategy by overhead", 2),
        _map(plan, folder / "map"),
        Heading("Evidence", 2),
        Bullets(tuple(_evidence(plan))),
    ]


def _times(forecast: Forecast, source: str, stem: Path) -> Figure:
    cells: dict[str, list[Prediction]] = defaultdict(list)
    for cell in forecast.cells:
        cells[_label(cell.scaling)].append(cell)
    figure = figures.times(cells, title=f"Predicted time to the target: {source}")
    caption = (
        f"Times of {source}. Median, and the interval for 80 % of the runs that reach the target; "
        "training and validation, without compiling."
    )
    return Figure("Times", caption, *canvas.save_both(figure, stem))


def _table(forecast: Forecast, source: str, place: int, measurements: PlanMeasurements) -> Table:
    best, percent = forecast.best, 100 * (prediction.MAX_TIME_RATIO - 1)
    note = (
        f"The choice is {best.scaling} on {best.devices}: the fewest devices within {percent:.0f} % of the least expected "
        "time. It includes the time of runs that fail and start again with strong scaling."
    )
    rows, marks = _rows(forecast, measurements), _marks(forecast, measurements)
    return Table(f"plan_{place}", f"Predicted for {source}", COLUMNS, rows, (note, *marks))


def _several_blocks(forecast: Forecast, measurements: PlanMeasurements) -> list[Block]:
    lines = _several(forecast, measurements)
    return [Paragraph("**For several models**, predicted:"), Bullets(lines)] if lines else []


def _map(plan: Plan, stem: Path) -> Figure:
    measured, devices = plan.measurements.measured, plan.devices
    names = planned_strategies(measured.optim)
    others = [name for name in names if name != BEST_BATCH]  # it would always be the best
    best = [[_label(name) for name in row] for row in prediction.overhead_map(measured, others, devices, RATIOS)]
    overheads = {forecast.cluster.name: [forecast.overheads[n] for n in devices] for forecast in plan.forecasts}
    figure = figures.best_strategies(best, [*map(_label, names)], devices, RATIOS, overheads, title="The best strategy")
    caption = (
        "The strategy with the least expected time, by the number of devices and by (a + c) / (b B). It is the overhead "
        "of a step over the time of the base batch's samples. Black: the clusters of this plan."
    )
    return Figure("Map", caption, *canvas.save_both(figure, stem))

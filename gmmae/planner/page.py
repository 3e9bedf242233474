"""A plan as lines for a terminal, as `plan.json`, and as a page that begins with the answer."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gmmae.config.schema import OptimConfig
from gmmae.planner import figures as pictures
from gmmae.planner import prediction, stability, superlinear
from gmmae.planner.figures import Band, Here
from gmmae.planner.measure import Found
from gmmae.planner.prediction import BEST_BATCH, Cell, Forecast, Measured, Rule
from gmmae.planner.steps import WARN_RESIDUAL
from gmmae.plotting import canvas, document
from gmmae.plotting.document import Block, Bullets, Figure, Heading, Paragraph
from gmmae.plotting.tables import Table
from gmmae.scaling import cost, strategies
from gmmae.scaling.cost import Cluster
from gmmae.sweep.display import grid_table
from gmmae.system.errors import InputError
from gmmae.system.files import write_text
from gmmae.system.provenance import git_commit, versions

JSON, HTML, MARKDOWN = "plan.json", "index.html", "README.md"

AS_MEASURED = "devices as fast as the one that measured"
"""The devices whose times a plan states if no factor to the cluster's own devices is known."""

RULE_HOLDS = 0.9
"""The power of the law above which the rule of thumb is shown."""

RATIOS = tuple(float(ratio) for ratio in np.logspace(-2, 2, 33))
"""Overheads of the map's rows."""

COLUMNS = ("scaling", "n", "batch", "rate", "time", "80 %", "fails", "speed-up", "efficiency")


def write(
    root: Path, name: str, found: Found, clusters: Sequence[Cluster], devices: Collection[int], compute_scale: float = 0.0
) -> list[str]:
    """Writes `plan.json` and the page; returns the lines of the answer.

    Args:
      root: the plan's work directory.
      name: name of the configuration.
      found: the measurements.
      clusters: the clusters to predict for.
      devices: numbers of devices. Those without a training sample for each device are left out.
      compute_scale: seconds on a cluster's device for one second measured; None takes the factor of each cluster's file.

    Raises:
      InputError: the folder cannot be written.
    """
    names, samples = planned(found.measured.optim), found.measured.samples
    forecasts = [prediction.forecast(found.measured, cluster, names, devices, compute_scale) for cluster in clusters]
    if left_out := sorted(n for n in devices if n > samples):
        note = f"{', '.join(map(str, left_out))} devices are left out: there are {samples} training samples"
        found = found._replace(notes=[*found.notes, note])
    devices = prediction.runnable(samples, devices)
    rule = prediction.rule(found.measured)
    lines = [line for one, cluster in zip(forecasts, clusters, strict=True) for line in _answer(one, cluster, found)]
    try:
        write_text(
            root / JSON,
            json.dumps(_plain(as_json(name, found, rule, forecasts, clusters)), indent=1, allow_nan=False) + "\n",
        )
        for earlier in (root / "figures").glob("times_*"):
            earlier.unlink()
        blocks = _blocks(name, found, rule, forecasts, clusters, devices, root / "figures")
        write_text(root / MARKDOWN, document.markdown(blocks, root))
        write_text(root / HTML, document.html(f"Plan: {name}", blocks))
    except OSError as error:
        raise InputError(f"workdir must be a folder that can be written; got {root} ({error.strerror or error})") from error
    for one, cluster in zip(forecasts, clusters, strict=True):
        lines += ["", cluster.name, grid_table([COLUMNS, *_rows(one, found)]), *_marks(one, found)]
    return [*lines, "", *_rests_on(found, rule, forecasts, clusters), "", *(str(root / each) for each in (JSON, HTML))]


def time_text(seconds: float) -> str:
    """Returns a time with two significant digits.

    >>> time_text(0.1234), time_text(95.4), time_text(110), time_text(5000), time_text(7800)
    ('0.12 s', '95 s', '1.8 min', '83 min', '2.2 h')
    """
    value, unit = (seconds, "s") if seconds < 99.5 else (seconds / 60, "min") if seconds < 5970 else (seconds / 3600, "h")
    return f"{value:#.2g}".rstrip(".") + f" {unit}" if value < 99.5 else f"{value:.0f} {unit}"


def planned(optim: OptimConfig) -> list[str]:
    """Returns the strategies of a plan: all but those whose settings are not known yet."""
    return [name for name in strategies.STRATEGIES if name != "tuned" or optim.tuned_factors]


def as_json(
    name: str,
    found: Found,
    rule: Rule,
    forecasts: Sequence[Forecast],
    clusters: Sequence[Cluster],
) -> dict[str, Any]:
    """Returns the content of `plan.json`."""
    m = found.measured
    return {
        "config": name,
        "clusters": {
            cluster.name: {
                "cells": [cell._asdict() for cell in one.cells],
                "best": one.best._asdict(),
                "best_batch": one.best_batches,
                "best_batches": one.listed,
                "overhead": one.overheads,
                "compute_scale": one.compute_scale,
                "scaled_by_user": one.scale_given,
                "times_of": times_of(one, cluster, found.device_kind),
            }
            for one, cluster in zip(forecasts, clusters, strict=True)
        },
        "rule": rule._asdict(),
        "noise_scale": m.noise_scale,
        "target": found.target,
        "metric": found.metric,
        "curves": found.curves,
        "measured": {
            "device": found.device_kind,
            "samples": m.samples,
            "validation": m.validation,
            "batch_size": m.optim.batch_size,
            "learning_rate": m.optim.learning_rate,
            "scaling_warmup_epochs": m.optim.scaling_warmup_epochs,
            "max_epochs": m.max_epochs,
            "steps": m.steps,
            "seed_sigma": m.seed_sigma,
            "step_s": dict(zip(m.train.batches, m.train.seconds, strict=True)),
            "validation_s": dict(zip(m.passes.batches, m.passes.seconds, strict=True)),
            "gradient_bytes": m.gradient_bytes,
            "progress": m.progress,
            "vitality": m.vitality,
            "pace": m.pace,
            "base_run": {"epochs": found.base_epochs, "seconds": found.base_s},
            "epochs": found.epochs,
            "seconds": found.seconds,
            "notes": found.notes,
            "tuned_factors": found.tuned_factors,
            "norms": found.norms,
            "versions": versions(),
            "git_commit": git_commit(),
        },
    }


def _plain(value: Any) -> Any:
    """Returns a value as strict JSON allows it. A number that is not finite becomes null."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def times_of(one: Forecast, cluster: Cluster, measured_on: str) -> str:
    """Returns the devices whose times a forecast states, and where the times come from.

    Step times of one kind of device are called those of another only if a factor between them is known.
    """
    if one.compute_scale != 1:
        source = "--scale-compute" if one.scale_given else "reference_step_s in the cluster's file"
        return f"{cluster.name}, times scaled by {one.compute_scale:.3g} from steps measured on {measured_on} ({source})"
    if cost.same_device(cluster.device, measured_on):
        return f"{cluster.name}, steps measured on {measured_on}"
    return f"{AS_MEASURED} ({measured_on}), linked as in {cluster.name}"


def _answer(one: Forecast, cluster: Cluster, found: Found) -> list[str]:
    """Returns the recommendation in sentences."""
    best, whose = one.best, times_of(one, cluster, found.device_kind)
    if whose.startswith(AS_MEASURED):
        on = f"{best.devices} device{'s' * (best.devices > 1)} {whose.removeprefix('devices ')}"
    else:
        what = "GPU" if {"GPU", "NVIDIA"} & set(cluster.device.split()) else "device"
        on = f"{best.devices} {what}{'s' * (best.devices > 1)} of {whose}"
    span = f"{time_text(best.seconds)} ({time_text(best.seconds_low)} to {time_text(best.seconds_high)}, 80 %)"
    answer = f"On {on}: {_label(best.scaling).lower()}, about {span}"
    told = [answer, *([_growth(one), _failures(one)] if any(cell.devices > 1 for cell in one.cells) else [])]
    return [f"{'; '.join(told)}.{superlinear.told(best, found.measured, found.device_kind)}"]


def _growth(one: Forecast) -> str:
    strong = {cell.devices: cell.expected_s for cell in one.cells if cell.scaling == "strong"}
    grown = [cell for cell in one.cells if cell.devices > 1 and cell.scaling not in ("strong", BEST_BATCH)]
    pays = [cell for cell in grown if cell.tested and cell.expected_s < strong.get(cell.devices, math.inf)]
    if not pays:
        return "growing the batch with the devices never pays"
    first = min(pays, key=lambda cell: (cell.devices, cell.expected_s))
    return f"growing the batch with the devices pays from n = {first.devices} on ({_label(first.scaling).lower()})"


def _failures(one: Forecast) -> str:
    linear = [cell for cell in one.cells if cell.scaling == "linear" and cell.devices > 1]
    doubtful = [cell.devices for cell in linear if cell.tested and cell.probability_of_failure > 0.5]
    untested = [cell.devices for cell in linear if not cell.tested]
    told = [
        *([f"the linear rule will most likely fail from n = {doubtful[0]} on"] if doubtful else []),
        *([f"the linear rule is untested from n = {untested[0]} on"] if untested else []),
    ]
    return "; ".join(told) or "the linear rule will rather work"


def _label(name: str) -> str:
    return strategies.STRATEGIES[name].label


def _row(cell: Cell, measured: Measured) -> tuple[str, ...]:
    return (
        cell.scaling,
        str(cell.devices),
        str(cell.batch),
        f"{cell.learning_rate:.3g}",
        time_text(cell.seconds),
        f"{time_text(cell.seconds_low)} to {time_text(cell.seconds_high)}",
        f"{100 * cell.probability_of_failure:.0f} %" if cell.tested else "untested",
        f"{cell.speedup:.2f}{superlinear.mark(cell, measured)}",
        f"{100 * cell.efficiency:.0f} %",
    )


def _rows(one: Forecast, found: Found) -> tuple[tuple[str, ...], ...]:
    return tuple(_row(cell, found.measured) for cell in one.cells)


def _marks(one: Forecast, found: Found) -> tuple[str, ...]:
    """Returns the meaning of the marks in the rows."""
    return superlinear.explained(one.cells, found.measured, found.device_kind)


def _rests_on(found: Found, rule: Rule, forecasts: Sequence[Forecast], clusters: Sequence[Cluster]) -> list[str]:
    """Returns the lines with the numbers behind the answer."""
    m, base = found.measured, found.measured.optim.batch_size
    threshold = base / rule.bn
    ratio = rule.overhead_s / (rule.sample_s * base) if rule.sample_s else math.inf
    several = len(clusters) > 1
    steps = ", ".join(f"{count:.0f} at batch {batch}" for batch, count in sorted(m.steps.items()))
    spent, epochs = sum(found.seconds.values()), sum(found.epochs.values())
    law = f"S(B) = {rule.smin:.0f} (1 + {rule.bn:.3g} / B)" + (f"^{rule.power:.2g}" if rule.power < 1 else "")
    lines = [
        f"The rule: growing the batch wins where (a + c) / (b B) > B / Bn. Here a / (b B) = {ratio:.2g} on one device and "
        f"B / Bn = {threshold:.2g}."
        if rule.power > RULE_HOLDS
        else f"The base rate limits training: {max(m.pace):g} times the rate goes {m.pace[max(m.pace)]:.2g} times as fast.",
        f"Steps to {found.metric} {found.target:g}: {steps}; {law}. A step takes "
        f"{1e3 * rule.overhead_s:.3g} ms + {1e3 * rule.sample_s:.3g} ms a sample on {found.device_kind}.",
        *(
            f"The strategy best-batch{f', {cluster.name}' * several}: "
            f"{', '.join(f'{batch} on {n}' for n, batch in one.best_batches.items())}; "
            f"--optim.best-batches {' '.join(map(str, one.listed))}"
            for one, cluster in zip(forecasts, clusters, strict=True)
        ),
        *(
            f"--scale-compute takes the factor from {found.device_kind} to {cluster.device}, and gives times of {cluster.name}."
            for one, cluster in zip(forecasts, clusters, strict=True)
            if times_of(one, cluster, found.device_kind).startswith(AS_MEASURED)
        ),
        *([f"The gradient's noise scale is {m.noise_scale:.3g} samples."] if m.noise_scale is not None else []),
        *([f"For the strategy tuned: --optim.tuned-factors {_numbers(found.tuned_factors)}"] if found.tuned_factors else []),
        _edge(m.progress)
        + (f"; units that still learn after the linear rule's first steps: {_shares(m.vitality)}." if m.vitality else "."),
        f"Measuring took {epochs:.0f} epochs and {time_text(spent)}: {epochs / found.base_epochs:.1f} times the base run's "
        f"{found.base_epochs} epochs, {spent / found.base_s:.1f} times its {time_text(found.base_s)}, compiling included.",
    ]
    if rule.residual > WARN_RESIDUAL:
        lines.append(
            f"warning: the steps must follow {law}; the fit's residual is {rule.residual:.2f}, above "
            f"{WARN_RESIDUAL}: do not trust batches that were not run"
        )
    elif math.isfinite(rule.residual):
        lines.append(f"The fit's residual is {rule.residual:.2f}.")
    return [*lines, *(f"warning: {note}" for note in found.notes)]


def _edge(progress: Mapping[float, float]) -> str:
    """Returns a sentence on the largest learning rate that the trials at the base batch allow."""
    edge, largest = stability.edge(progress), max(progress, default=1.0)
    if edge <= largest:
        return f"The rate may be {edge:.2g} times the base rate before an epoch at the base batch fails"
    if largest > 1:
        return f"No trial failed, up to {largest:g} times the base rate"
    return "No trial of a higher rate was made"


def _numbers(values: Sequence[float]) -> str:
    """Returns values in the form of the command line."""
    return " ".join(f"{value:g}" for value in values)


def _shares(vitality: Mapping[float, float]) -> str:
    return ", ".join(f"{100 * share:.0f} % at {factor:g} η" for factor, share in sorted(vitality.items()))


def _blocks(
    name: str,
    found: Found,
    rule: Rule,
    forecasts: Sequence[Forecast],
    clusters: Sequence[Cluster],
    devices: Sequence[int],
    folder: Path,
) -> list[Block]:
    blocks: list[Block] = [Heading(f"Plan: {name}", 1)]
    blocks += [
        Paragraph(f"**{line}**")
        for one, cluster in zip(forecasts, clusters, strict=True)
        for line in _answer(one, cluster, found)
    ]
    for place, (one, cluster) in enumerate(zip(forecasts, clusters, strict=True)):
        blocks += [
            Heading(cluster.name, 2),
            _times(one, cluster, found.device_kind, folder / f"times_{place + 1}"),
            _table(one, times_of(one, cluster, found.device_kind), place + 1, found),
        ]
    blocks += [
        Heading("Where each strategy is the best", 2),
        _map(found, forecasts, clusters, devices, folder / "map"),
        Heading("What it rests on", 2),
        Bullets(tuple(_rests_on(found, rule, forecasts, clusters))),
    ]
    return blocks


def _times(one: Forecast, cluster: Cluster, measured_on: str, stem: Path) -> Figure:
    bands = [
        _band(name, [cell for cell in one.cells if cell.scaling == name])
        for name in dict.fromkeys(c.scaling for c in one.cells)
    ]
    whose = times_of(one, cluster, measured_on)
    drawn = pictures.times(bands, title=f"Predicted time to the target: {whose}")
    caption = (
        f"Times of {whose}. Median, and the interval for 80 % of the runs that reach the target; "
        "training and validation, without compiling."
    )
    return Figure("Times", caption, *canvas.save_both(drawn, stem))


def _band(name: str, cells: Sequence[Cell]) -> Band:
    return Band(
        _label(name),
        *zip(
            *((c.devices, c.seconds, c.seconds_low, c.seconds_high, c.probability_of_failure > 0.5) for c in cells), strict=True
        ),
    )


def _table(one: Forecast, whose: str, place: int, found: Found) -> Table:
    best = one.best
    note = (
        f"The choice is {best.scaling} on {best.devices}: the fewest devices within {100 * (prediction.NEAR - 1):.0f} % of the "
        "least expected time, in which a run that fails is begun again with strong scaling."
    )
    return Table(f"plan_{place}", f"Predicted for {whose}", COLUMNS, _rows(one, found), (note, *_marks(one, found)))


def _map(
    found: Found, forecasts: Sequence[Forecast], clusters: Sequence[Cluster], devices: Sequence[int], stem: Path
) -> Figure:
    every = planned(found.measured.optim)
    names = [name for name in every if name != BEST_BATCH]  # which is the best by its making
    best = prediction.overhead_map(found.measured, names, devices, RATIOS)
    here = [
        Here(cluster.name, tuple(devices), tuple(one.overheads[n] for n in devices))
        for one, cluster in zip(forecasts, clusters, strict=True)
    ]
    labels = [_label(name) for name in every]
    drawn = pictures.best_arms(
        [[_label(name) for name in row] for row in best], labels, devices, RATIOS, here, title="The best strategy"
    )
    caption = (
        "The strategy with the least expected time, by the number of devices and by (a + c) / (b B): what a step takes apart from "
        "its samples, over the time of the base batch's samples. Black: you are here."
    )
    return Figure("Map", caption, *canvas.save_both(drawn, stem))

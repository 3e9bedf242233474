"""A plan as lines for a terminal, as `plan.json`, and as a page: the answer first, then what it rests on."""

import itertools
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gmmae.analysis import failure, plan
from gmmae.analysis.plan import BEST_BATCH, Cell, Forecast, Rule
from gmmae.analysis.scaling import Cluster
from gmmae.analysis.steps import WARN_RESIDUAL
from gmmae.base import arms
from gmmae.base.arms import OptimConfig
from gmmae.base.errors import InputError
from gmmae.base.provenance import git_commit, versions
from gmmae.base.records import write_text
from gmmae.figures import canvas
from gmmae.figures import plan as pictures
from gmmae.figures.plan import Band, Here
from gmmae.report import document
from gmmae.report.document import Block, Bullets, Figure, Heading, Paragraph
from gmmae.report.tables import Table
from gmmae.sweep.display import grid_table
from gmmae.sweep.measuring import Found

JSON, HTML, MARKDOWN = "plan.json", "index.html", "README.md"

RULE_HOLDS = 0.9
"""A power of the law above which the rule of thumb is told."""

RATIOS = tuple(float(ratio) for ratio in np.logspace(-2, 2, 33))
"""Rows of the map."""

COLUMNS = ("arm", "n", "batch", "rate", "time", "80 %", "fails", "speed-up", "efficiency")


def write(root: Path, name: str, found: Found, clusters: Sequence[Cluster], devices: Collection[int]) -> list[str]:
    """Writes `plan.json` and the page; returns the lines of the answer.

    Args:
      root: the plan's work directory.
      name: of the configuration.
      found: what was measured.
      clusters: that are asked about.
      devices: numbers of them.

    Raises:
      InputError: the folder cannot be written.
    """
    names = planned(found.measured.optim)
    forecasts = [plan.forecast(found.measured, cluster, names, devices) for cluster in clusters]
    rule = plan.rule(found.measured)
    lines = [line for one, cluster in zip(forecasts, clusters, strict=True) for line in _answer(one, cluster, found)]
    try:
        write_text(
            root / JSON, json.dumps(_plain(as_json(name, found, rule, forecasts, clusters)), indent=1, allow_nan=False) + "\n"
        )
        blocks = _blocks(name, found, rule, forecasts, clusters, sorted(devices), root / "figures")
        write_text(root / MARKDOWN, document.markdown(blocks, root))
        write_text(root / HTML, document.html(f"Plan: {name}", blocks))
    except OSError as error:
        raise InputError(f"workdir must be a folder that can be written; got {root} ({error.strerror or error})") from error
    for one, cluster in zip(forecasts, clusters, strict=True):
        lines += ["", cluster.name, grid_table([COLUMNS, *map(_row, one.cells)])]
    return [*lines, "", *_rests_on(found, rule, forecasts), "", *(str(root / each) for each in (JSON, HTML))]


def time_text(seconds: float) -> str:
    """Two significant digits of a time.

    >>> time_text(0.1234), time_text(95.4), time_text(110), time_text(5000), time_text(7800)
    ('0.12 s', '95 s', '1.8 min', '83 min', '2.2 h')
    """
    value, unit = (seconds, "s") if seconds < 99.5 else (seconds / 60, "min") if seconds < 5970 else (seconds / 3600, "h")
    return f"{value:#.2g}".rstrip(".") + f" {unit}" if value < 99.5 else f"{value:.0f} {unit}"


def planned(optim: OptimConfig) -> list[str]:
    """The arms that a plan is about: all but those that want what has not been found yet."""
    return [name for name in arms.ARMS if name != "tuned" or optim.tuned_factors]


def as_json(name: str, found: Found, rule: Rule, forecasts: Sequence[Forecast], clusters: Sequence[Cluster]) -> dict[str, Any]:
    """Everything that a program may want."""
    m = found.measured
    return {
        "config": name,
        "clusters": {
            cluster.name: {
                "cells": [cell._asdict() for cell in one.cells],
                "best": one.best._asdict(),
                "best_batch": one.best_batches,
                "overhead": one.overheads,
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
            "base_batch": m.optim.base_batch,
            "learning_rate": m.optim.learning_rate,
            "warmup_epochs": m.optim.warmup_epochs,
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
            "versions": versions(),
            "git_commit": git_commit(),
        },
    }


def _plain(value: Any) -> Any:
    """What strict JSON can say; a number that is not finite becomes null."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _answer(one: Forecast, cluster: Cluster, found: Found) -> list[str]:
    """What to do, in sentences."""
    best = one.best
    what = "GPU" if {"GPU", "NVIDIA"} & set(cluster.device.split()) else "device"
    on = f"{best.devices} {what}{'s' * (best.devices > 1)} of {cluster.name}"
    span = f"{time_text(best.seconds)} ({time_text(best.seconds_low)} to {time_text(best.seconds_high)}, 80 %)"
    answer = f"On {on}: {_label(best.arm).lower()}, about {span}"
    return [f"{answer}; {_growth(one)}; {_failures(one)}."]


def _growth(one: Forecast) -> str:
    strong = {cell.devices: cell.expected_s for cell in one.cells if cell.arm == "strong"}
    grown = [cell for cell in one.cells if cell.devices > 1 and cell.arm not in ("strong", BEST_BATCH)]
    pays = [cell for cell in grown if cell.expected_s < strong.get(cell.devices, math.inf)]
    if not pays:
        return "growing the batch with the devices never pays"
    first = min(pays, key=lambda cell: (cell.devices, cell.expected_s))
    return f"growing the batch with the devices pays from n = {first.devices} on ({_label(first.arm).lower()})"


def _failures(one: Forecast) -> str:
    doubtful = [cell.devices for cell in one.cells if cell.arm == "linear" and cell.probability_of_failure > 0.5]
    if not doubtful:
        return "the linear rule will rather work"
    return f"the linear rule will most likely fail from n = {doubtful[0]} on"


def _label(name: str) -> str:
    return arms.ARMS[name].label


def _row(cell: Cell) -> tuple[str, ...]:
    return (
        cell.arm,
        str(cell.devices),
        str(cell.batch),
        f"{cell.learning_rate:.3g}",
        time_text(cell.seconds),
        f"{time_text(cell.seconds_low)} to {time_text(cell.seconds_high)}",
        f"{100 * cell.probability_of_failure:.0f} %",
        f"{cell.speedup:.2f}",
        f"{100 * cell.efficiency:.0f} %",
    )


def _rests_on(found: Found, rule: Rule, forecasts: Sequence[Forecast]) -> list[str]:
    """The numbers behind the answer."""
    m, base = found.measured, found.measured.optim.base_batch
    threshold = base / rule.bn
    ratio = rule.overhead_s / (rule.sample_s * base) if rule.sample_s else math.inf
    scale = "not found" if m.noise_scale is None else f"{m.noise_scale:.3g} samples"
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
        "Best batch at the base rate: "
        + "; ".join(", ".join(f"{b} on {n}" for n, b in one.best_batches.items()) for one in forecasts)
        + f". The gradient's noise scale is {scale}.",
        f"For the arm best-batch: --optim.best-batches {_listed(forecasts[0].best_batches)}"
        + (
            f". For the arm tuned: --optim.tuned-factors {' '.join(f'{f:g}' for f in found.tuned_factors)}"
            * bool(found.tuned_factors)
        ),
        f"The rate may be {failure.edge(m.progress):.2g} times the base rate before an epoch at the base batch fails"
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


def _listed(batches: Mapping[int, int]) -> str:
    """Those on 1, 2, 4, … devices, as the command line takes them."""
    powers = itertools.takewhile(batches.__contains__, (2**i for i in itertools.count()))
    return " ".join(str(batches[n]) for n in powers)


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
            _times(one, cluster, folder / f"times_{place + 1}"),
            _table(one, cluster, place + 1),
        ]
    blocks += [
        Heading("Where each arm is the best", 2),
        _map(found, forecasts, clusters, devices, folder / "map"),
        Heading("What it rests on", 2),
        Bullets(tuple(_rests_on(found, rule, forecasts))),
    ]
    return blocks


def _times(one: Forecast, cluster: Cluster, stem: Path) -> Figure:
    bands = [_band(name, [cell for cell in one.cells if cell.arm == name]) for name in dict.fromkeys(c.arm for c in one.cells)]
    drawn = pictures.times(bands, title=f"Foretold time to target on {cluster.name}")
    caption = "Median, and the interval for 80 % of the runs that arrive; training and validation, without compiling."
    return Figure("Times", caption, *canvas.save_both(drawn, stem))


def _band(name: str, cells: Sequence[Cell]) -> Band:
    return Band(
        _label(name),
        *zip(
            *((c.devices, c.seconds, c.seconds_low, c.seconds_high, c.probability_of_failure > 0.5) for c in cells), strict=True
        ),
    )


def _table(one: Forecast, cluster: Cluster, place: int) -> Table:
    best = one.best
    note = (
        f"The choice is {best.arm} on {best.devices}: the fewest devices within {100 * (plan.NEAR - 1):.0f} % of the least "
        "expected time, in which a run that fails is begun again with strong scaling."
    )
    return Table(f"plan_{place}", f"Foretold for {cluster.name}", COLUMNS, tuple(map(_row, one.cells)), (note,))


def _map(
    found: Found, forecasts: Sequence[Forecast], clusters: Sequence[Cluster], devices: Sequence[int], stem: Path
) -> Figure:
    every = planned(found.measured.optim)
    names = [name for name in every if name != BEST_BATCH]  # which is the best by its making
    best = plan.overhead_map(found.measured, names, devices, RATIOS)
    here = [
        Here(cluster.name, tuple(devices), tuple(one.overheads[n] for n in devices))
        for one, cluster in zip(forecasts, clusters, strict=True)
    ]
    labels = [_label(name) for name in every]
    drawn = pictures.best_arms(
        [[_label(name) for name in row] for row in best], labels, devices, RATIOS, here, title="The best arm"
    )
    caption = (
        "The arm with the least expected time, by the number of devices and by (a + c) / (b B): what a step takes apart from "
        "its samples, over the time of the base batch's samples. Black: you are here."
    )
    return Figure("Map", caption, *canvas.save_both(drawn, stem))

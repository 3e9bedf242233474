"""A plan as lines for a terminal, as a JSON file, and as a page."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from gmmae.planner import answer, prediction
from gmmae.planner.answer import Plan, times_of
from gmmae.planner.prediction import Forecast, Prediction
from gmmae.plotting import canvas, comparison, document, tables
from gmmae.plotting.comparison import Measured
from gmmae.plotting.tables import literal
from gmmae.scaling import cost
from gmmae.system.files import write_text
from gmmae.system.provenance import git_commit, versions
from gmmae.training.workdir import os_errors_as_input_errors

FILES = ("plan.json", "README.md", "index.html")

OTHERWISE_IN_JSON = ("optim", "train", "passes", "whole_epochs", "tested_batches")
"""Fields of the measurements that the JSON file holds under other names, or not."""


def write(root: Path, plan: Plan, files: tuple[str, str, str] = FILES) -> list[str]:
    """Writes the JSON and the page; returns the lines of the answer, the tables and the evidence."""
    json_file, markdown, html = (root / name for name in files)
    measured, several = plan.measured, len(plan.forecasts) > 1
    answers = {forecast.cluster.name: answer.answer(plan, forecast) for forecast in plan.forecasts}
    evidence, warnings = answer.evidence(plan), [f"Warning: {text}" for text in plan.warnings]
    lines = [line for of_cluster in answers.values() for line in ("", *of_cluster)][1:] + warnings
    bullets = [
        f"- **{literal(first)}**\n" + "".join(f"- {literal(line)}\n" for line in others) for first, *others in answers.values()
    ]
    text, folds = ["".join([*bullets, *(f"- {literal(line)}\n" for line in warnings)]).rstrip()], []
    with os_errors_as_input_errors(root):
        for earlier in (root / "figures").glob("times_*"):
            earlier.unlink()
        for place, forecast in enumerate(plan.forecasts, start=1):
            times = times_of(plan, forecast)
            columns, rows = answer.table(plan, forecast, answer.shown(forecast), steps=False)
            title, notes = f"Predicted, the best for each number of devices: {times}", answer.notes(plan, forecast)
            text += [f"## {literal(forecast.cluster.name)}"] if several else []
            if forecast.best:
                drawn = comparison.time_to_target(_lines(forecast), title=f"Predicted time to the target: {times}")
                caption = (
                    f"Predicted times to the target: {literal(times)}. Strong and weak scaling, and the strategies of the "
                    "table, where they are likely to reach it. Medians and intervals for 80 % of the runs that do, without "
                    "compiling."
                )
                stem = root / "figures" / f"times_{place}"
                text.append(document.figure("Times", caption, *canvas.save_both(drawn, stem), markdown.parent))
            text.append(tables.table(columns, rows, title, notes))
            lines += ["", title, tables.text_table(columns, rows), *notes]
            where = f", {forecast.cluster.name}" * several
            folds.append(document.folded(f"All strategies{where}", tables.table(*answer.table(plan, forecast, forecast.cells))))
        folds.append(document.folded("Evidence", "\n".join(f"- {literal(line)}" for line in evidence)))
        document.write(plan.title, "\n\n".join([*text, *folds]), markdown, html)
        content = {
            "clusters": {
                forecast.cluster.name: {
                    "answer": answers[forecast.cluster.name],
                    "cells": [_json(plan, forecast, cell) for cell in forecast.cells],
                    "best": forecast.best and _json(plan, forecast, forecast.best),
                    "best_batch": forecast.best_batches,
                    "best_batches": forecast.listed,
                    "compute_scale": forecast.compute_scale,
                    "scaled_by_user": forecast.scale_given,
                    "times_of": times_of(plan, forecast),
                }
                for forecast in plan.forecasts
            },
            "rule": prediction.batch_rule(plan.measured)._asdict(),
            "target": plan.target,
            "metric": plan.metric,
            **plan.content,
            "measured": {
                **{name: value for name, value in measured._asdict().items() if name not in OTHERWISE_IN_JSON},
                **{name: getattr(measured.optim, name) for name in ("batch_size", "learning_rate", "scaling_warmup_epochs")},
                "ratios": measured.ratios._asdict(),
                "step_s": dict(zip(*measured.train, strict=True)) if measured.train else None,
                "validation_s": dict(zip(*measured.passes, strict=True)) if measured.passes else None,
                **plan.evidence,
                "notes": plan.warnings,
                "versions": versions(),
                "git_commit": git_commit(),
            },
        }
        strict = json.loads(json.dumps(content), parse_constant=lambda _: None)
        write_text(json_file, json.dumps(strict, indent=1) + "\n")
    return [*lines, "", "Details", *evidence, "", str(json_file), str(html)]


def _json(plan: Plan, forecast: Forecast, cell: Prediction) -> Mapping[str, object]:
    rate = {} if plan.device_kind else {"learning_rate": plan.evidence["learning_rate"]}
    return cell._asdict() | rate | cost.spent(answer.priced(plan, forecast), cell.devices * cell.seconds)


def _lines(forecast: Forecast) -> list[Measured]:
    names, lines = {"strong", "weak", *(cell.scaling for cell in answer.shown(forecast))}, []
    for name in dict.fromkeys(cell.scaling for cell in forecast.cells if cell.scaling in names):
        cells = [cell for cell in forecast.cells if cell.scaling == name]
        middle = tuple(cell.seconds if cell.probability_of_failure <= 0.5 else math.inf for cell in cells)
        ends = ((cell.seconds_low, cell.seconds_high) for cell in cells)
        lines.append(Measured(answer.label(name), tuple(cell.devices for cell in cells), middle, *zip(*ends, strict=True)))
    return lines

"""A plan from curves as lines for a terminal, as `plan_curves.json`, and as a page that begins with the answer."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gmmae.planner import curves, figures
from gmmae.planner import steps as steps_law
from gmmae.planner.curves import Evidence, Interval, Machine, RunPrediction
from gmmae.planner.figures import TargetCurve
from gmmae.planner.prediction import BEST_BATCH
from gmmae.planner.steps import MAX_RESIDUAL
from gmmae.plotting import canvas, document, tables
from gmmae.plotting.document import Block, Bullets, Figure, Heading, Paragraph
from gmmae.plotting.tables import Table
from gmmae.scaling import cost, strategies
from gmmae.sweep.display import grid_table
from gmmae.system.files import write_text
from gmmae.system.provenance import git_commit, versions

JSON, HTML, MARKDOWN = "plan_curves.json", "plan_curves.html", "plan_curves.md"
"""The files, whose names differ from those of a plan from runs in the same folder."""

KEYS = {
    "metric": "name of the metric",
    "mode": "whether lower (min) or higher (max) values are better",
    "target": "value to reach",
    "target_given": "whether `--target` gave it",
    "smooth": "number of validations of the running median",
    "samples": "samples of the training set, if they are known",
    "learning_rate": "learning rate of the curves, if it is known",
    "base_batch": "base batch B of strong and weak scaling",
    "smin": "the fewest steps to the target: an interval",
    "bn": "batch that takes twice as many steps: an interval",
    "least_squares": "both numbers by least squares",
    "residual": "residual of that fit, a root mean square of logarithms",
    "seed_sigma": "standard deviation over seeds of the logarithm of the steps",
    "steps": "steps to the target by batch",
    "curves": "file, batch, steps to the target and validations of each curve",
    "machines": "predictions by machine: cells, the best of them, overheads and all-reduces",
    "cannot_say": "limits of the plan",
    "warnings": "warnings",
    "versions": "versions of the libraries",
    "git_commit": "commit of the code",
}
"""The keys of `plan_curves.json` with their meanings."""

SURE = 0.9
"""The share of the law's draws above which one of two strategies is said to be faster."""

BEYOND_MARK = "†"
"""The mark of a batch outside those of the curves."""


class CurvesPlan(NamedTuple):
    """A plan from curves."""

    metric: str
    mode: str
    smooth: int  # number of validations of the running median
    samples: int | None  # of the training set
    learning_rate: float | None  # of all curves; None if it is not known
    evidence: Evidence
    devices: Sequence[int]
    machines: dict[str, Machine]  # by name; one without step times if they are not known

    @property
    def timed(self) -> bool:
        """Whether step times are known."""
        return any(machine.step_times for machine in self.machines.values())

    def predictions(self, machine: Machine) -> list[RunPrediction]:
        """Returns the predictions for one machine."""
        names = ("strong", "weak", *([BEST_BATCH] if machine.step_times else []))
        return curves.predict(self.evidence, machine, self.devices, self.samples, names)


def write(root: Path, plan: CurvesPlan) -> list[str]:
    """Writes the JSON and the page. Returns the lines of the answer.

    Args:
      root: the work directory, which exists.
      plan: the plan.
    """
    cells = {name: plan.predictions(machine) for name, machine in plan.machines.items()}
    answer, limits = _answer(plan, cells), _limits(plan)
    warnings = [f"warning: {text}" for text in _warnings(plan)]
    printed = [_table(plan, place, name, cells[name]) for place, name in enumerate(cells, start=1)]
    text = json.dumps(_strict(_content(plan, cells)), indent=1, allow_nan=False)
    blocks = _blocks(plan, answer, printed, limits, warnings, root / "figures")
    write_text(root / JSON, text + "\n")
    write_text(root / MARKDOWN, document.markdown(blocks, root))
    write_text(root / HTML, document.html("Plan from curves", blocks))
    lines = list(answer)
    for table in printed:
        lines += ["", table.title, grid_table([table.columns, *table.rows]), *table.notes]
    lines += ["", "It cannot say:", *(f"- {limit}" for limit in limits), *warnings]
    return [*lines, "", *(str(root / file) for file in (JSON, HTML))]


def _interval(of: Interval, digits: int = 3) -> str:
    return f"{of.low:.{digits}g} to {of.high:.{digits}g}"


def _steps_text(of: Interval) -> str:
    return f"{of.low:.0f} to {of.high:.0f}"


def _answer(plan: CurvesPlan, cells: dict[str, list[RunPrediction]]) -> list[str]:
    """Returns the sentences of the answer: the choice if step times are known, then the law and the rule."""
    lines = []
    for name, of_machine in cells.items():
        if (best := curves.recommended(of_machine)) is not None:
            assert best.seconds is not None
            label = strategies.STRATEGIES[best.scaling].label.lower()
            plural = "s" * (best.devices > 1)
            lines.append(
                f"On {best.devices} device{plural}, {name}: {label} with batch {best.batch}, about "
                f"{tables.seconds(best.seconds.median)} s ({tables.seconds(best.seconds.low)} to "
                f"{tables.seconds(best.seconds.high)} s, 80 %)."
            )
    return [*lines, _law_text(plan), _growth_text(plan), *_rule_texts(plan)]


def _law_text(plan: CurvesPlan) -> str:
    evidence = plan.evidence
    smin, bn = curves.interval(evidence.law.smin), curves.interval(evidence.law.bn)
    source = "" if evidence.target_given else ", the hardest level that all curves pass by a margin"
    return (
        f"To {plan.metric} {evidence.target:g}{source}: at least Smin = {smin.median:.0f} steps ({_steps_text(smin)}, 80 %). "
        f"Twice as many at the batch Bn = {bn.median:.3g} ({_interval(bn)}, 80 %)."
    )


def _growth_text(plan: CurvesPlan) -> str:
    base = plan.evidence.base_batch
    gains = curves.speedups(plan.evidence, (2, 4, 8))
    text = ", ".join(f"{gain.median:.2f} at batch {k * base} ({_interval(gain)})" for k, gain in gains.items())
    return f"Fewer steps than at batch {base}, at the same learning rate, by a factor of {text}."


def _rule_texts(plan: CurvesPlan) -> list[str]:
    """Returns the crossover ratio against B / Bn in words, for each machine."""
    evidence = plan.evidence
    threshold = curves.interval(evidence.base_batch / evidence.law.bn)
    rule = (
        "The rule: growing the batch with the devices beats dividing it where (a + c) / (b B) > B / Bn. A step of a device's "
        f"batch takes a + b · batch, the all-reduce c. Here B / Bn = {threshold.median:.3g} ({_interval(threshold)}, 80 %)."
    )
    texts = [_ratios_text(plan, name, machine) for name, machine in plan.machines.items() if machine.step_times]
    texts += [_reduce_text(plan, name, machine) for name, machine in plan.machines.items() if not machine.step_times]
    return [rule, *filter(None, texts)]


def _ratios_text(plan: CurvesPlan, name: str, machine: Machine) -> str:
    evidence, base = plan.evidence, plan.evidence.base_batch
    several = [n for n in plan.devices if n > 1] or [2]
    ratios = {n: machine.overhead(base, n) for n in several}
    verdicts: dict[str, list[int]] = {}
    for n in several:
        share = curves.growing_wins(evidence, machine, n)
        verdict = "growing wins" if share >= SURE else "dividing wins" if share <= 1 - SURE else "the two are too close to tell"
        verdicts.setdefault(verdict, []).append(n)
    words = "; ".join(f"{verdict} on {', '.join(map(str, counts))}" for verdict, counts in verdicts.items())
    texts = [_ratio(ratio) for ratio in ratios.values()]
    values = texts[0] if len(set(texts)) == 1 else ", ".join(f"{text} on {n}" for text, n in zip(texts, several, strict=True))
    return f"{name}: (a + c) / (b B) is {values}. So {words} devices."


def _ratio(ratio: float) -> str:
    return f"{ratio:.2g}" if math.isfinite(ratio) else "infinite"


def _reduce_text(plan: CurvesPlan, name: str, machine: Machine) -> str:
    """Returns the compute time below which growing wins for certain, for a cluster without step times."""
    if machine.cluster is None:
        return ""
    several = [n for n in plan.devices if n > 1] or [2]
    threshold = plan.evidence.base_batch / float(np.median(plan.evidence.law.bn))
    limits = ", ".join(
        f"{_milliseconds(machine.all_reduce_s(n) / threshold)} on {n} (c = {_milliseconds(machine.all_reduce_s(n))})"
        for n in several
    )
    return f"{name}: growing wins for certain if the samples of a base batch take less time on one device than {limits}."


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _columns(plan: CurvesPlan) -> tuple[str, ...]:
    epochs = ("epochs",) if plan.samples else ()
    times = ("time (s)", "80 % (s)", "speed-up") if plan.timed else ()
    return ("scaling", "devices", "batch", "steps", "80 % (steps)", *epochs, *times)


def _table(plan: CurvesPlan, place: int, name: str, cells: Sequence[RunPrediction]) -> Table:
    alone = next((cell for cell in cells if cell.devices == 1 and cell.scaling == "strong"), None)
    rows = tuple(_row(cell, alone.seconds if alone else None) for cell in cells)
    notes = []
    if any(cell.extrapolated for cell in cells):
        of_curves = plan.evidence.points
        notes.append(
            f"{BEYOND_MARK} No curve has such a batch. Those of the curves go from {min(of_curves)} to {max(of_curves)}."
        )
    if plan.timed:
        notes.append("Times are those of training steps, without validation, start and compilation.")
        smallest = min(times.batches) if (times := plan.machines[name].step_times) else 0
        if any(math.ceil(cell.batch / cell.devices) < smallest for cell in cells):
            notes.append(
                f"A device with fewer than {smallest} samples is taken to need the time of {smallest}. It may need less."
            )
        if plan.machines[name].cluster is None and max(plan.devices) > 1:
            notes.append("Without --clusters the all-reduce takes no time. Times on several devices are the best case.")
    return Table(f"plan_{place}", f"Predicted: {name}", _columns(plan), rows, tuple(notes))


def _row(cell: RunPrediction, alone: Interval | None) -> tuple[str, ...]:
    row = [
        cell.scaling,
        str(cell.devices),
        f"{cell.batch}{BEYOND_MARK * cell.extrapolated}",
        f"{cell.steps.median:.0f}",
        _steps_text(cell.steps),
    ]
    if cell.epochs:
        row.append(f"{cell.epochs.median:.3g}")
    if cell.seconds:
        low, middle, high = map(tables.seconds, cell.seconds)
        row += [middle, f"{low} to {high}", f"{alone.median / cell.seconds.median:.2f}" if alone else "–"]
    return tuple(row)


def _limits(plan: CurvesPlan) -> list[str]:
    """Returns sentences on questions that the curves leave open."""
    known = plan.learning_rate is not None
    rate = f"have the learning rate {plan.learning_rate:g}" if known else "are taken to have one learning rate"
    texts = [
        f"The linear and the square-root rule, with or without warmup. All curves {rate}.",
        "Failures. A curve that reaches its target tells nothing about a higher learning rate.",
        f"Batches far from those of the curves ({', '.join(map(str, plan.evidence.points))}).",
        "Strategies whose batch grows in a run, and rules that change the optimiser's constants.",
        "Another target: steps and Bn are those of this one. Set --target.",
    ]
    if plan.samples is None:
        texts.append("Epochs, and the largest batch. Set --samples to the number of training samples.")
    if not plan.timed:
        texts.append("Times, and the best batch. Set --step-times to the seconds of a step at two batches or more.")
    elif all(machine.cluster is None for machine in plan.machines.values()):
        texts.append("The time of the all-reduce. Set --clusters and --parameters.")
    return texts


def _warnings(plan: CurvesPlan) -> list[str]:
    """Returns sentences on evidence that is weak."""
    evidence = plan.evidence
    texts = []
    if coarse := [run for run in evidence.reached if run.validations < curves.MIN_VALIDATIONS]:
        names = ", ".join(f"{run.curve.name} ({run.validations})" for run in coarse)
        texts.append(
            f"each curve should have {curves.MIN_VALIDATIONS} validations or more before the target; got {names}. Intervals "
            "are wide because of that: validate more often"
        )
    if len(evidence.points) == 2:
        texts.append("two batches fit any law of this form: a third batch would test it")
    if evidence.residual > MAX_RESIDUAL:
        texts.append(
            f"the steps must follow the law; the fit's residual is {evidence.residual:.2f}, above {MAX_RESIDUAL}: do not trust "
            "batches without a curve"
        )
    if set(evidence.seeds.values()) == {1}:
        texts.append("each batch has one seed, so the scatter between seeds is estimated from the curves' own scatter")
    return texts


def _facts(plan: CurvesPlan) -> list[str]:
    """Returns sentences on the computation."""
    evidence = plan.evidence
    smin, bn = steps_law.fit(evidence.points)
    residual = f"Its residual is {evidence.residual:.2f}. " if len(evidence.points) > 2 else ""
    facts = [
        f"The least-squares fit is S(B) = {smin:.0f} (1 + {bn:.3g} / B). {residual}The intervals are of a posterior. Its "
        f"prior of Bn has its median at the base batch, {evidence.base_batch}.",
        f"The standard deviation of the logarithm of the steps over seeds is {evidence.seed_sigma:.2f}, from "
        f"{len(evidence.reached)} curves of {len(evidence.points)} batches.",
        "Each curve is interpolated linearly between two validations where it first reaches the target.",
    ]
    if plan.smooth > 1:
        facts.append(f"Before that, each value is replaced by the median of {plan.smooth} successive ones (--smooth).")
    if plan.samples:
        whole = curves.epoch_steps(evidence, plan.samples, evidence.base_batch)
        rounding = (
            "Steps are rounded up to whole epochs, because all" if whole else "Steps are not rounded to epochs, because not all"
        )
        facts.append(f"{rounding} validations of the curves follow whole epochs of {plan.samples} samples.")
    for name, machine in plan.machines.items():
        if machine.step_times:
            a, b = cost.affine(machine.step_times)
            facts.append(f"{name}: a step takes a = {_milliseconds(a)} and b = {_milliseconds(b)} a sample on one device.")
    return facts


def _curves_table(plan: CurvesPlan) -> Table:
    rows = tuple(
        (
            run.curve.name,
            str(run.curve.batch),
            f"{run.steps:.0f}",
            str(run.validations),
            f"{_best(run.smoothed, plan.mode):.4g}",
        )
        for run in sorted(plan.evidence.reached, key=lambda run: run.curve.batch)
    )
    columns = ("curve", "batch", "steps to target", "validations before it", "best value")
    return Table("curves", f"Curves of {plan.metric}", columns, rows)


def _best(values: Sequence[float], mode: str) -> float:
    return max(values) if mode == "max" else min(values)


def _blocks(
    plan: CurvesPlan,
    answer: Sequence[str],
    printed: Sequence[Table],
    limits: Sequence[str],
    warnings: Sequence[str],
    folder: Path,
) -> list[Block]:
    first, *others = answer
    return [
        Heading("Plan from curves", 1),
        Paragraph(f"**{first}**"),
        *map(Paragraph, others),
        *([Bullets(tuple(warnings))] if warnings else []),
        Heading("Predictions", 2),
        *printed,
        Heading("What the curves cannot say", 2),
        Bullets(tuple(limits)),
        Heading("Evidence", 2),
        _law_figure(plan, folder / "curves_law"),
        _curves_figure(plan, folder / "curves"),
        _curves_table(plan),
        Bullets(tuple(_facts(plan))),
    ]


def _law_figure(plan: CurvesPlan, stem: Path) -> Figure:
    evidence = plan.evidence
    batches = np.geomspace(min(evidence.points) / 4, max(evidence.points) * 8, 60)
    quantiles = np.quantile([evidence.law.at(batch) for batch in batches], curves.QUANTILES, axis=1)
    measured = [(run.curve.batch, run.steps) for run in evidence.reached]
    figure = figures.steps_by_batch(batches.tolist(), quantiles, measured, title=f"Steps to {plan.metric} {evidence.target:g}")
    return Figure("Steps by batch", "Steps to the target by batch, and the law.", *canvas.save_both(figure, stem))


def _curves_figure(plan: CurvesPlan, stem: Path) -> Figure:
    of_runs = [TargetCurve(run.curve.batch, run.curve.steps, run.smoothed, run.steps) for run in plan.evidence.reached]
    figure = figures.curves_with_target(of_runs, plan.metric, plan.evidence.target)
    return Figure(
        "Curves", "The curves after the running median. Marks: the target is reached.", *canvas.save_both(figure, stem)
    )


def _content(plan: CurvesPlan, cells: dict[str, list[RunPrediction]]) -> dict[str, Any]:
    evidence = plan.evidence
    smin, bn = steps_law.fit(evidence.points)
    return {
        "metric": plan.metric,
        "mode": plan.mode,
        "target": evidence.target,
        "target_given": evidence.target_given,
        "smooth": plan.smooth,
        "samples": plan.samples,
        "learning_rate": plan.learning_rate,
        "base_batch": evidence.base_batch,
        "smin": curves.interval(evidence.law.smin)._asdict(),
        "bn": curves.interval(evidence.law.bn)._asdict(),
        "least_squares": {"smin": smin, "bn": bn},
        "residual": evidence.residual,
        "seed_sigma": evidence.seed_sigma,
        "steps": evidence.points,
        "curves": [
            {"file": run.curve.name, "batch": run.curve.batch, "steps": run.steps, "validations": run.validations}
            for run in evidence.reached
        ],
        "machines": {name: _machine_content(plan, machine, cells[name]) for name, machine in plan.machines.items()},
        "cannot_say": _limits(plan),
        "warnings": _warnings(plan),
        "versions": versions(),
        "git_commit": git_commit(),
    }


def _machine_content(plan: CurvesPlan, machine: Machine, cells: Sequence[RunPrediction]) -> dict[str, Any]:
    several = [n for n in plan.devices if n > 1]
    best = curves.recommended(cells)
    content: dict[str, Any] = {"cells": [_cell_content(cell) for cell in cells], "best": best and _cell_content(best)}
    if machine.step_times:
        content["overheads"] = {n: machine.overhead(plan.evidence.base_batch, n) for n in plan.devices}
        content["growing_wins"] = {n: curves.growing_wins(plan.evidence, machine, n) for n in several}
    content["all_reduce_s"] = {n: machine.all_reduce_s(n) for n in plan.devices}
    return content


def _cell_content(cell: RunPrediction) -> dict[str, Any]:
    return {key: value._asdict() if isinstance(value, Interval) else value for key, value in cell._asdict().items()}


def _strict(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the content as strict JSON allows it. A number that is not finite becomes null."""
    return json.loads(json.dumps(content), parse_constant=lambda _: None)

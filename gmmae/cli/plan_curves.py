"""`gmmae plan --curves`: a plan from the loss curves of runs that any program made."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from statistics import median

from gmmae.cli.options import CurvesArguments
from gmmae.config.rules import require
from gmmae.config.schema import OptimConfig, StopConfig
from gmmae.config.toml import differences
from gmmae.planner import page, prediction, step_ratios
from gmmae.planner.answer import Plan
from gmmae.planner.curve_files import Columns, read_curves
from gmmae.planner.curves import read_evidence
from gmmae.planner.measurements import claimed
from gmmae.planner.prediction import BEST_BATCH, Measured
from gmmae.planner.step_ratios import CONSTANTS
from gmmae.scaling.cost import Cluster, StepTimes, read_cluster
from gmmae.system.errors import InputError
from gmmae.training.fingerprint import read as read_fingerprint
from gmmae.training.workdir import WorkDir

FILES = ("plan_curves.json", "plan_curves.md", "plan_curves.html")
"""Unlike those of a plan from runs in the same folder."""

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Of a number of the gradient."""

WITHOUT_LINKS = Cluster("a cluster with free links", "", 1, 0.0, 1e30, 0.0, 1e30)
"""Its all-reduce takes no time."""

MAX_BATCH_RATIO = 16
"""The largest batch that is proposed over that of the curves. The law was not tested further away."""

FROM_LOGS = (
    "Step times are those of the logs, perhaps with some validation in them, and are taken as those of one device and of runs "
    "that were not resumed. --step-times replaces them."
)

MAX_LOG_RATIO = 100
"""A given step time above it is of another unit: the log's step has validation in it, and devices differ by less."""

FLAT = 0.95
"""Least time of a batch over that of a smaller one. A fast device needs the same time for both, but for noise."""

USUAL_STEP_S = (1e-5, 5.0)
"""Times beyond are of another unit, or of a log that was written after the training."""

MAY_DIFFER = re.compile(
    r"scaling|seed|workload|compilation_cache|optim\.(batch_size|learning_rate)|data\.(?!augment$).*"
    r"|(stop|parallel|distributed|checkpoint|log)\..*"
)
"""Keys that change no step, or are known otherwise: by the logs, or by the hashes of the data and of the workload's file."""

ANY = 10**12
"""Samples or epochs where there is no limit."""


def command(options: CurvesArguments) -> None:
    """Reads the curves, prints the answer, writes the page."""
    columns = Columns(options.step_column, options.loss_column, options.batch_column, options.learning_rate_column)
    # A cluster's `reference_step_s` is that of another model.
    clusters = [replace(read_cluster(cluster), reference_step_s=0.0) for cluster in options.clusters]
    require(len({cluster.name for cluster in clusters}) == len(clusters), "--clusters", "of different names", options.clusters)
    if clusters and options.parameters is None:
        raise InputError("--parameters must be given with --clusters, because the all-reduce depends on them; got none")
    curves = read_curves(options.curves, columns, options.batches, options.samples, options.different_rates)
    known = [(curve.batch, curve.step_s) for curve in curves if curve.step_s]
    logged = dict(known)
    of_logs = _rising({batch: median(step_s for of, step_s in known if of == batch) for batch in logged})
    times = step_times(options.step_times, of_logs) if options.step_times else of_logs
    if clusters and times is None:
        got = "logs whose times fall with the batch: has each curve its batch?" if len(logged) > 1 else "none"
        raise InputError(f"--step-times must be given with --clusters, because an all-reduce alone is no time; got {got}")
    stop = StopConfig(target=options.target, mode=options.mode)
    found = read_evidence(curves, stop, options.smooth, options.batch_size)
    base, largest = found.base_batch, max(found.steps)
    if options.samples and max(options.devices) > options.samples:
        raise InputError(f"--devices must be at most the {options.samples} samples; got {max(options.devices)}")
    if options.samples and largest > options.samples:
        raise InputError(f"--samples must be at least the curves' largest batch, {largest}; got {options.samples}")
    rates = [curve.learning_rate for curve in curves]
    rate = None if None in rates or options.different_rates else rates[0]
    scheduled = any(curve.has_schedule for curve in curves)
    measured = Measured(
        samples=options.samples or ANY,
        validation=0,
        optim=OptimConfig(batch_size=found.base_batch, learning_rate=rate or OptimConfig.learning_rate),
        max_epochs=ANY,
        steps=found.steps | {base: step_ratios.steps_at(base, 1.0, base, found.steps, found.ratios, CONSTANTS)},
        ratios=found.ratios,
        train=times,
        passes=None,
        gradient_bytes=float(BYTES[options.precision] * (options.parameters or 0)),
        whole_epochs=False,
        tested_batches=(min(found.steps), (1 if options.different_rates or scheduled else MAX_BATCH_RATIO) * largest),
    )
    names = ["strong", "weak", *[BEST_BATCH] * bool(times and found.follows_law)]
    metric, batches = curves[0].metric, ", ".join(map(str, found.steps))
    source = "" if options.target is not None else ", the hardest level that all curves pass by a margin"
    have = f"have the learning rate {rate:g}" if rate else "are taken to have one learning rate"
    kept = f"The learning rate stays that of the curves{f', {rate:.3g}' if rate else ''}."
    if options.different_rates:
        have = "have learning rates of their own"
        of_curves = {curve.batch: f"{curve.learning_rate:.3g} at {curve.batch}" for curve in curves if curve.learning_rate}
        kept = f"The curves' learning rates are {', '.join(of_curves.values()) or 'not in the logs'}."
    limits = [
        f"The linear and the square-root rule, with or without warmup: all curves {have}.",
        "Failures: a curve that reaches its target tells nothing about a higher learning rate.",
        f"Batches far from those of the curves ({batches}), and strategies whose batch grows in a run.",
        "Another target: steps are those of this one. Set --target.",
        *["The largest batch. Set --samples to the number of training samples."] * (options.samples is None),
        *["Times. Set --step-times to the seconds of a step at two batches or more."] * (times is None),
        *["The time of the all-reduce. Set --clusters and --parameters."] * bool(times and not clusters),
    ]
    facts = [
        f"The target is {metric} {found.target:g}{source}. Steps to it by batch: "
        f"{', '.join(f'{steps:.0f} at {batch}' for batch, steps in found.steps.items())}.",
        *(f"{curve.name} has the batch {curve.batch} and takes {steps:.0f} steps." for curve, steps, _ in found.reached),
        *["Times are those of training steps, without validation, start and compilation."] * bool(options.step_times),
        *(f"It cannot say: {limit[0].lower()}{limit[1:]}" for limit in limits),
    ]
    runs = [
        {key: value for key, value in run.read_config().items() if not MAY_DIFFER.fullmatch(key)}
        | getattr(read_fingerprint(run.root), "digests", {})
        for run in map(WorkDir, options.curves)
        if run.config.is_file()
    ]
    changes = next((words for run in runs if (words := differences(runs[0], run))), "")
    doubts = [
        f"step times must be in seconds, and taken while the run trained; got {seconds:.3g} at batch {batch}"
        + (f", {seconds / logged[batch]:.3g} times the log's step" if seconds != logged.get(batch, seconds) else "")
        for batch, seconds in (zip(*times, strict=True) if times else ())
        if seconds > MAX_LOG_RATIO * logged.get(batch, math.inf) or not USUAL_STEP_S[0] < seconds < USUAL_STEP_S[1]
    ]
    doubts += [
        text
        for holds, text in (
            (
                scheduled,
                "learning rates fall in the logs: a schedule over epochs is over at fewer steps with a larger batch, and steps "
                "of other batches are then not those predicted; compare runs at a constant rate, or of one schedule in steps",
            ),
            (
                len({cluster.device for cluster in clusters}) > 1,
                "one set of step times stands for devices of all clusters: plan each kind with step times of its own",
            ),
            (
                options.different_rates,
                "each batch has its own learning rate, so this plan holds only where the rate follows the batch as in these "
                "runs",
            ),
            (
                not rate and not options.different_rates,
                "not every log has its learning rate (--learning-rate-column): all runs are taken to have one",
            ),
            (
                re.search(r"(?<![^\W_])train", metric, re.IGNORECASE),  # and no constraint
                f"{metric} is a loss of training batches, whose noise depends on the batch: name a validation loss by "
                "--loss-column",
            ),
            (
                times is of_logs and times and times.seconds[-1] < 1.1 * times.seconds[0],
                "a step of the logs takes hardly longer at a larger batch: if a run was on several devices, give --step-times",
            ),
            (bool(changes), f"the runs of gmmae among these curves differ, which changes the steps too: {changes}"),
            (
                found.base_batch < min(found.steps),
                f"the batch {found.base_batch} is below those of the curves: its noise may keep it from the target for ever",
            ),
        )
        if holds
    ]
    plan = Plan(
        title="Plan from curves",
        measured=measured,
        metric=metric,
        target=found.target,
        forecasts=[
            prediction.forecast(measured, cluster, names, options.devices, options.scale_compute)
            for cluster in clusters or [WITHOUT_LINKS if times else replace(WITHOUT_LINKS, name="any devices")]
        ],
        basis=f"curves at the batches {batches}",
        device_kind=None,
        precision=options.precision,
        facts=facts,
        warnings=[*doubts, *found.warnings],
        content={"mode": options.mode, "target_given": options.target is not None, "cannot_say": limits},
        remark=" ".join([kept, *[FROM_LOGS] * bool(of_logs and len(options.step_times) < 2)]),
        evidence={
            "samples": options.samples,
            "max_epochs": None,
            "learning_rate": rate,
            "smooth": options.smooth,
            "steps": found.steps,
            "curves": [
                {"file": curve.name, "batch": curve.batch, "steps": steps, "validations": validations}
                for curve, steps, validations in found.reached
            ],
        },
    )
    with claimed(options.workdir):
        lines = page.write(options.workdir, plan, FILES)
    print(*lines, sep="\n")


def _rising(seconds: Mapping[int, float]) -> StepTimes | None:
    batches = tuple(sorted(seconds))
    highest = tuple(accumulate((seconds[batch] for batch in batches), max))
    falls = any(seconds[batch] < FLAT * high for batch, high in zip(batches, highest, strict=True))
    return StepTimes(batches, highest) if len(batches) > 1 and not falls else None


def step_times(words: tuple[str, ...], of_logs: StepTimes | None = None) -> StepTimes:
    """Step times of `32=0.0021`, the batch of a device and a step's seconds. A single one joins those of the logs.

    >>> step_times(("128=0.006", "32=0.002"))
    StepTimes(batches=(32, 128), seconds=(0.002, 0.006))
    """
    seconds: dict[int, float] = {}
    for word in words:
        batch, _, value = word.partition("=")
        try:
            size, time = int(batch), float(value)
        except ValueError:
            size, time = 0, 0.0
        if size < 1 or not 0 < time < math.inf:
            raise InputError(f"--step-times must be batches with positive seconds, such as 32=0.0021 128=0.0060; got {word!r}")
        if size in seconds:
            raise InputError(f"--step-times must be of different batches; got {size} twice")
        seconds[size] = time
    if len(seconds) < 2 and of_logs:
        seconds = dict(zip(*of_logs, strict=True)) | seconds
    if len(seconds) < 2:
        raise InputError(f"--step-times must be of two batches or more, to tell a from b; got {' '.join(words)}: time another")
    if (times := _rising(seconds)) is None:
        raise InputError(f"--step-times must not fall with the batch; got {' '.join(words)}: time them again")
    return times

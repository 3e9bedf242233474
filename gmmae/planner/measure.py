"""The measurements of `gmmae plan`, on one device: runs to the target, step times, and trials.

A resumed plan gives the same answer as a fresh one: nothing depends on what the folder already holds.
"""

import json
import math
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from gmmae.config.schema import Config, changed
from gmmae.planner import prediction, step_ratios
from gmmae.planner.answer import Plan
from gmmae.planner.measurements import (
    VALIDATIONS_AN_EPOCH,
    VERSION,
    PlanInterruptedError,
    TargetRun,
    read_kept,
    validation_spacing,
)
from gmmae.planner.prediction import BEST_BATCH, Measured, Prediction, runnable
from gmmae.planner.step_ratios import LEVEL_SHARE, LINEAR_RUN, MAX_COSTS, WEAK_RUN, Ratios
from gmmae.scaling import strategies
from gmmae.scaling.cost import Cluster, StepTimes, as_in_runs, seconds_range, time_text
from gmmae.scaling.identity import identity_fields
from gmmae.sweep import step_times, throughput
from gmmae.sweep.grid import TimingConfig
from gmmae.sweep.step_times import Timings
from gmmae.system import stop_reasons
from gmmae.system.errors import InputError
from gmmae.system.files import write_text
from gmmae.system.guard import as_input_error
from gmmae.training import loop, preparation, programs
from gmmae.training.preparation import RunCache
from gmmae.training.stopping import StopMonitor, until_stop
from gmmae.training.terminal import Plain
from gmmae.training.workdir import WorkDir, begins_with

MIN_BASE_EPOCHS = 2
"""Below it the zoo says nothing of the steps."""

TRIAL_SHARE = 10
"""Epochs of the base run for each epoch of a trial."""

BLOCK_S = 0.25
"""Seconds of a timed block of the base batch: a dispatch takes milliseconds, which the steps of an epoch share."""


def trial_epochs(base: int, growth: float, warmup: int = 0) -> int:
    """The epochs of a trial: a tenth of the base run's, unless the warmup or the base run's first validation is later.

    >>> trial_epochs(60, 8), trial_epochs(20, 16), trial_epochs(20, 2, warmup=5)
    (6, 4, 6)
    """
    return max(base // TRIAL_SHARE, math.ceil(growth / VALIDATIONS_AN_EPOCH), warmup + (warmup > 0))


def measure(
    name: str,
    config: Config,
    root: Path,
    display: Callable[[], Plain],
    devices: Collection[int],
    clusters: Collection[Cluster] = (),
    compute_scale: float | None = None,
) -> Plan:
    """Makes the missing measurements of a plan called `name` in a `claimed` folder, and plans.

    The configuration has one device. Where the trial of the recommended run fails, the next is tried.

    Raises:
      InputError: the base run does not reach the target, the data have too few samples, or the folder is of another plan.
      PlanInterruptedError: a signal stopped a run.
    """
    stop, batch = config.stop, config.optim.batch_size
    if stop.target is None:
        raise InputError("stop.target must be given for a plan; got none: set --stop.target")
    config = changed(config, scaling="strong")
    work = _Work(config, root, display)
    if batch > work.samples:
        raise InputError(
            f"optim.batch_size must be at most the {work.samples} training samples; got {batch}: set a smaller "
            "--optim.batch-size"
        )
    max_devices = runnable(work.samples, devices)[-1]
    base, steps = work.base_run()
    references = {one.reference_batch for one in clusters if one.reference_step_s and compute_scale is None}
    times = work.step_times(references, max_devices)
    first = work.short_run(base, steps, *WEAK_RUN, MAX_COSTS[0])
    second = work.short_run(base, steps, *LINEAR_RUN, MAX_COSTS[1])
    curve, weak, exponent = base.curve(stop), None, None
    if first and (found := step_ratios.steps_at_equal_loss(curve, steps, first.curve(stop))):
        weak = step_ratios.weak_ratio(*found)
    if second:
        found = step_ratios.steps_at_equal_loss(curve, steps, second.curve(stop))
        factor = second.record.global_batch / batch
        exponent = step_ratios.rate_exponent(found, weak, (factor, factor))
    ratios = Ratios(weak, exponent, steps, step_ratios.remaining_fall(curve, steps, stop.cost(stop.target)))
    blocks, seen = step_times.table(times.train), {one.record.global_batch: one.step_s for one in (base, first, second) if one}
    measured = Measured(
        samples=work.samples,
        validation=work.validation,
        optim=config.optim,
        max_epochs=stop.max_epochs,
        validate_every_steps=stop.validate_every_steps,
        steps={batch: steps},
        ratios=ratios,
        train=as_in_runs(blocks, _without_validations(blocks, seen, work.samples, stop.validate_every_steps)),
        passes=step_times.table(times.validation),
        gradient_bytes=float(base.record.parameters * (8 if config.precision == "float64" else 4)),
    )
    tried: set[tuple[int, float, bool]] = {(batch, config.optim.learning_rate, False)}
    names = prediction.planned_strategies()
    while True:
        forecasts = [prediction.forecast(measured, cluster, names, devices, compute_scale) for cluster in clusters]
        untried = {cell.attempt: cell for one in forecasts if (cell := one.best) and cell.attempt not in tried}
        failed = tuple(attempt for attempt, cell in untried.items() if not work.trial(base, cell))
        if not failed:
            break
        tried.update(untried)
        measured = measured._replace(failed_trials=(*measured.failed_trials, *failed))
    spread, base_s = step_times.spread(times.train), base.rows[-1].train_s + base.rows[-1].eval_s
    busy = (
        "the step times scatter as on a machine with other work, and so may all predicted times: plan again in another "
        "--workdir when it is idle"
    )
    total, total_s = sum(work.epochs.values()), sum(work.seconds.values())
    facts = [
        f"The quartiles of the step times are within {100 * spread:.0f} % of the medians.",
        *([f"Steps at equal loss: twice the batch takes {math.exp(weak):.2f} of the base run's."] if weak is not None else []),
        *([f"Twice the learning rate takes {2**exponent:.2f} of the steps."] if exponent is not None else []),
        *([f"Trials: {'; '.join(work.trials)}."] if work.trials else []),
        f"Measuring took {total:.0f} epochs and {time_text(total_s)}: {total / len(base.epochs):.1f} times the base run's "
        f"{len(base.epochs)} epochs, {total_s / base_s:.1f} times its {time_text(base_s)}, compiling included.",
    ]
    warnings = [busy] * (spread > step_times.MAX_SPREAD) + work.warnings
    if left_out := sorted(n for n in devices if n > work.samples):
        warnings.append(f"{', '.join(map(str, left_out))} devices are left out: there are {work.samples} training samples")
    runs = sum(one is not None for one in (weak, exponent))
    beside = f" and {runs} short run{'s' * (runs > 1)} beside it" if runs else " alone, so they are uncertain"
    return Plan(
        title=f"Plan: {name}",
        measured=measured,
        metric=stop.monitor,
        target=stop.target,
        forecasts=forecasts,
        basis=f"a run at batch {batch}{beside}",
        device_kind=work.device_kind,
        precision=config.precision,
        facts=facts,
        warnings=warnings,
        content={
            "config": name,
            "precision": config.precision,
            "curves": {batch: [row.value(stop.monitor) for row in base.epochs]},
        },
        evidence={
            "device": work.device_kind,
            "precision": config.precision,
            "base_run": {"epochs": len(base.epochs), "seconds": base_s},
            "epochs": work.epochs,
            "seconds": work.seconds,
        },
    )


def _without_validations(blocks: StepTimes, seen: Mapping[int, float], samples: int, asked: int | None) -> Mapping[int, float]:
    """Seconds of a step, by batch with the base first, without the validations that the plan adds where none are `asked` for.

    Each ends a call, which is why steps take longer than in a block.
    """
    if asked:
        return seen
    least = {batch: float(seconds_range(blocks, batch)[0]) for batch in seen}
    base, every = next(iter(seen)), {batch: validation_spacing(samples, batch) for batch in seen}
    call_s = max(0.0, seen[base] - least[base]) * every[base]
    more = {batch: 1 / every[batch] - 1 / math.ceil(samples / batch) for batch in seen}  # calls in a step
    return {batch: max(step_s - call_s * more[batch], min(step_s, least[batch])) for batch, step_s in seen.items()}


class _Work:
    def __init__(self, config: Config, root: Path, display: Callable[[], Plain]):
        self.config, self.root, self.display, self.say = config, root, display, display().say
        self._cache = RunCache()
        setup = preparation.prepare(config, cache=self._cache)
        self.samples, self.validation = setup.train_plan.samples, setup.eval_plan.samples
        self.device_kind, self.memory_bytes = setup.devices.kind, setup.devices.memory_bytes
        shared = {
            "version of gmmae": VERSION,
            "configuration": json.loads(json.dumps(identity_fields(config))),
            "data": setup.fingerprint.digests,
            "spacing of validations": config.stop.validate_every_steps,
            **begins_with(config),
            "device": setup.devices.kind,
        }
        self._kept = read_kept(root / "measured.json", shared)
        self.trials: list[str] = []
        self.epochs: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.warnings: list[str] = []

    def _run(self, config: Config, folder: str, name: str, max_epochs: int) -> TargetRun:
        stop, n = self.config.stop, config.parallel.simulate_devices or 1
        batch = strategies.resolve(config.scaling, config.optim, n, self.samples).stages[0].batch
        config = changed(
            config,
            stop__max_epochs=max_epochs,
            stop__validate_every_steps=stop.validate_every_steps or validation_spacing(self.samples, batch),
        )
        workdir = WorkDir(self.root / "runs" / folder)
        record = workdir.read_record()
        rows, reason = until_stop(workdir.read_rows() if record and record.stop_reason else (), config.stop)
        if record is None or reason is None:
            record = loop.run(config, workdir.root, self.display(), cache=self._cache)
            if record.stop_reason in stop_reasons.INTERRUPTED:
                raise PlanInterruptedError(record.stop_reason)
            rows, reason = until_stop(workdir.read_rows(), config.stop)
        run = TargetRun(rows, reason or record.stop_reason or stop_reasons.MAX_EPOCHS, record)
        self.epochs[name], self.seconds[name] = len(run.epochs), rows[-1].total_s
        return run

    def base_run(self) -> tuple[TargetRun, float]:
        batch, stop = self.config.optim.batch_size, self.config.stop
        self.say(f"training to the target at the base batch, {batch}")
        base = self._run(self.config, f"batch_{batch}", f"batch {batch}", stop.max_epochs)
        self.epoch_s = (base.rows[-1].train_s + base.rows[-1].eval_s) / len(base.epochs)
        self.step_s = base.rows[-1].train_s / base.rows[-1].steps
        if base.reason != stop_reasons.TARGET_REACHED:
            values = [value for row in base.epochs if math.isfinite(value := row.value(stop.monitor))]
            best = f"{min(values, key=stop.cost):g}" if values else "no finite value"
            raise InputError(
                f"the base run must reach stop.target, {stop.monitor} {stop.target:g}; got {best} at best in "
                f"{len(base.epochs)} epochs ({base.reason}): set an easier --stop.target, another --optim.learning-rate, more "
                "epochs (--stop.max-epochs), or more time (--stop.time-limit-s)"
            )
        if len(base.epochs) < MIN_BASE_EPOCHS:
            few = (
                f"the base run takes {len(base.epochs)} epoch, fewer than the {MIN_BASE_EPOCHS} of the runs that set the "
                "constants: the steps are less sure than their intervals say. Set a harder --stop.target"
            )
            self.say(few)
            self.warnings.append(few)
        self.warnings += base.record.seen_notes
        # By the epochs, or by a validation inside the last one.
        steps = StopMonitor(stop, base.epochs).target_step() or StopMonitor(stop, base.rows).target_step()
        assert steps is not None
        return base, steps

    def step_times(self, references: Collection[int], max_devices: int) -> Timings:
        """Times steps of parts of the base batch, and validation passes. The runs tell the times of larger batches."""
        batch = self.config.optim.batch_size
        fits = max(2, round(BLOCK_S / self.step_s))
        timing = TimingConfig(steps=min(fits, TimingConfig.steps, math.ceil(self.samples / batch)), blocks=5)
        parts = (math.ceil(batch / 4**i) for i in range(batch.bit_length()))
        batches = {1, batch, *references} | {part for part in parts if part > 2}
        validation = {math.ceil(self.validation / n) for n in (1, max_devices)}
        file, seconds = self.root / "step_times.json", self._kept["seconds"]
        if (kept := step_times.read(file)) and kept.timing["steps"] * kept.timing["blocks"] < timing.steps * timing.blocks:
            kept = None
        train, passes, failed = (kept.train, kept.validation, kept.failed) if kept else ([], [], {})
        missing = sorted(batches - {row.samples for row in train}), sorted(validation - {row.samples for row in passes})
        if kept is None or any(missing):
            if "step times" not in seconds:
                self.say("measuring step times")
            began = time.perf_counter()
            found = throughput.measure(preparation.prepare(self.config, cache=self._cache), *missing, timing)
            train, passes = sorted(train + found.train), sorted(passes + found.validation)
            kept = found._replace(train=train, validation=passes, failed=failed | found.failed)
            step_times.write(file, kept)
            seconds["step times"] = seconds.get("step times", 0.0) + time.perf_counter() - began
            write_text(self.root / "measured.json", json.dumps(self._kept, indent=1) + "\n")
        train = [row for row in train if row.samples in batches]
        passes = [row for row in passes if row.samples in validation]
        if not train or not passes:
            raise InputError(f"{file} must hold step times; got none: {'; '.join(kept.failed.values()) or 'delete it'}")
        steps = max(timing.warmup_steps, timing.steps) + timing.steps * timing.blocks
        self.epochs["step times"] = sum(batches) * steps / self.samples
        self.seconds["step times"] = seconds.get("step times", 0.0)
        return kept._replace(train=train, validation=passes)

    def short_run(self, base: TargetRun, steps: float, factor: float, rate: float, most: float) -> TargetRun | None:
        """Trains at a multiple of the batch and of the learning rate, unless there are too few samples.

        If they are too few for the second run only, all of them are its batch, and its rate is that of the linear rule.
        """
        samples, at_base = self.samples, base.record.global_batch
        batch, epochs = int(factor * at_base), max(1, math.floor(most * len(base.epochs)))
        if rate > 1 and WEAK_RUN[0] * at_base <= samples < batch:
            batch, rate = samples, samples / at_base
        words = f"batch {batch}" + f" and {rate:g} times the learning rate" * (rate != 1)
        if batch > samples:
            self.warnings.append(f"no short run at {words}: there are {samples} training samples")
            return None
        self.say(f"training most of the way at {words}, at most {time_text(max(1.0, epochs * self.epoch_s))}")
        stop = self.config.stop
        config = changed(
            self.config,
            optim__batch_size=batch,
            optim__learning_rate=rate * self.config.optim.learning_rate,
            stop__target=stop.cost(base.curve(stop).lowest_by(LEVEL_SHARE * steps)),
        )
        folder = f"batch_{batch}" + f"_rate_{rate:g}" * (rate != 1)
        name = f"batch {batch}" + f", {rate:g} times the learning rate" * (rate != 1)
        return self._run(config, folder, name, min(stop.max_epochs, epochs))

    def trial(self, base: TargetRun, cell: Prediction) -> bool:
        """Trains the beginning of a recommended run, and returns whether it went well and fitted into memory.

        With a scaled learning rate it must have come as far as the base run after as many steps. At the base rate, where no run
        of the zoo failed, its loss must only be finite.
        """
        stop, best = self.config.stop, cell.scaling == BEST_BATCH
        config = changed(
            self.config,
            scaling="strong" if best else cell.scaling,
            parallel__simulate_devices=None if best else cell.devices,
            optim__batch_size=cell.batch if best else self.config.optim.batch_size,
        )
        warmup = strategies.resolve(config.scaling, config.optim, cell.devices, self.samples).stages[0].scaling_warmup_epochs
        epochs = trial_epochs(len(base.epochs), cell.batch / base.record.global_batch, warmup)
        words = f"{cell.scaling} with batch {cell.batch} and learning rate {cell.learning_rate:.3g}"
        memory = ""
        if self.memory_bytes < math.inf:
            share = math.ceil(cell.batch / cell.devices)
            sized = changed(self.config, optim__batch_size=share)
            needed = programs.needed_bytes(preparation.prepare(sized, cache=self._cache))
            memory = f"; {share} samples on a device need {needed / 1e9:.2g} of {self.memory_bytes / 1e9:.2g} GB"
            if needed > self.memory_bytes:
                self.trials.append(f"{words} does not fit{memory}")
                return False
        self.say(f"trying {words}, at most {time_text(max(1.0, epochs * self.epoch_s))}")
        name = f"trial_{cell.scaling}_{cell.batch if best else cell.devices}"
        try:
            run = self._run(config, name, f"trial of {words}", min(stop.max_epochs, epochs))
        except Exception as error:
            known = as_input_error(error)
            if known is None or known is error:
                raise
            self.trials.append(f"{words} did not fit into the memory of one device{memory}")
            return False
        last = run.rows[-1]
        passed = math.isfinite(last.value(stop.monitor))
        if cell.learning_rate > self.config.optim.learning_rate:
            passed = passed and bool(run.curve(stop).costs[-1] <= base.curve(stop).lowest_by(last.steps))
        self.trials.append(f"{len(run.epochs)} epochs of {words} went {'well' if passed else 'too slowly'}{memory}")
        return passed

"""The host's part of training: from a configuration and a work directory to a record."""

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gmmae.config.schema import LOSS, Config, absolute
from gmmae.config.toml import to_toml
from gmmae.multihost.distributed import ALONE, Group
from gmmae.scaling.identity import identity_fields
from gmmae.system import stop_reasons
from gmmae.system.clock import Clock
from gmmae.system.errors import InputError
from gmmae.system.files import write_text
from gmmae.system.interrupts import Interrupts
from gmmae.system.null_object import IDLE
from gmmae.training import checkpoint, fingerprint, preparation, programs
from gmmae.training.beginning import (
    first_parameters,
    new_record,
    require_same_optimization,
    require_sequel,
    resume_warnings,
    run_summary,
)
from gmmae.training.checkpoint import Checkpoint, CheckpointManager
from gmmae.training.preparation import RunCache, TrainSetup
from gmmae.training.records import Epoch, Progress, Record, from_plain, plain
from gmmae.training.run_logger import RunLogger, TensorBoard, training_s
from gmmae.training.step import TrainState
from gmmae.training.stopping import StopMonitor, finished
from gmmae.training.terminal import Plain
from gmmae.training.workdir import WorkDir, claim, os_errors_as_input_errors, storage
from gmmae.workloads import registry
from gmmae.workloads.interface import Events
from gmmae.workloads.sources import Fetcher


def run(config: Config, root: Path, display: Plain, group: Group = ALONE, cache: RunCache | None = None) -> Record:
    """Trains to the end, or resumes what an earlier process left in the work directory; the first process of `group` writes.

    Raises:
      InputError: the configuration does not fit the machine, the data or the work directory.
      StorageError: the work directory cannot be written any more.
    """
    with ExitStack() as held:
        workdir = held.enter_context(claim(config, root)) if group.primary else WorkDir(root)
        earlier = workdir.read_record() if group.primary and workdir.begun else None
        try:
            ended = earlier is not None and finished(earlier, config.stop, workdir.read_rows)
        except InputError:
            if not any(workdir.checkpoints.glob("*")):
                raise
            ended = False  # the history goes on from the rows of the checkpoint, or is refused there
        record, ended = group.all_gather((plain(earlier) if earlier else None, ended))[0]
        earlier = from_plain(record) if record else None
        if earlier and ended:
            if group.primary:
                fingerprint.warn_of_file(config, earlier.data, root)
            display.say(f"{root} holds a finished run: {earlier.stop_reason} after {earlier.epochs} epochs")
            return earlier
        setup = preparation.prepare(config, cache=cache)
        group.assert_equal(setup.fingerprint.digests)
        manager = None
        if group.primary:
            now = setup.fingerprint
            if workdir.begun:
                now = fingerprint.checked(root, now)
            if not any(workdir.checkpoints.glob("*")):  # else `init_from` is not read
                now = fingerprint.descended(config, now)
            setup = setup._replace(fingerprint=now)
            with os_errors_as_input_errors(root):
                manager = held.enter_context(checkpoint.opened(workdir.checkpoints, config.checkpoint.keep))
        held.callback(display.close)
        held.enter_context(preparation.precision_context(config))
        fetcher = held.enter_context(Fetcher(config.parallel.fetch_threads))
        interrupts = held.enter_context(Interrupts())
        return Run(setup, workdir, manager, display, group, earlier, fetcher).train(interrupts)


class Run:
    """A run from its newest checkpoint on, with compiled programs and a first validation."""

    def __init__(
        self,
        setup: TrainSetup,
        workdir: WorkDir,
        manager: CheckpointManager | None,
        display: Plain,
        group: Group,
        earlier: Record | None,
        fetcher: Fetcher,
    ):
        self.setup, self.workdir, self.manager, self.display, self.group = setup, workdir, manager, display, group
        start, config = preparation.initial_state(setup), setup.config
        self.record = new_record(setup, start)
        if earlier:
            require_same_optimization(earlier, self.record)
            for line in resume_warnings(config, earlier, self.record):
                display.say(line)
        with storage(workdir.root):
            saved = checkpoint.restore(manager, start, display.say) if manager else None
        epoch = group.all_gather(saved.progress.epoch if saved else None)[0]
        if not manager and epoch is not None:
            with checkpoint.opened(workdir.checkpoints) as reader:
                saved = checkpoint.read(reader, epoch, start, "put the workdir on a file system that all hosts share")
        if earlier:
            require_sequel(earlier, bool(saved), workdir.checkpoints, config.init_from)
        origin = earlier.init_from if earlier else {}
        if not saved:
            start, origin = first_parameters(setup, start, group)
        self.record = dataclasses.replace(self.record, init_from=origin, run_id=(earlier or self.record).run_id)
        self.clock = Clock(saved.progress.clocks if saved else None)
        self.monitor = StopMonitor(config.stop, workdir.read_rows_of(saved.progress) if saved else ())
        self.history = self.monitor.epochs
        self.saved_s = self.clock.read()["total_s"]  # of the last checkpoint, or of the start
        self.best_epoch = saved.progress.best_epoch if saved else 0
        self.best = saved.best if saved else start.params
        self.state: TrainState = setup.devices.replicate(saved.state if saved else start)
        done, most = len(self.history), config.stop.max_epochs
        display.start(run_summary(setup, self.record, workdir.root, done), max_epochs=most, done=done)
        with self.clock.section("compile_s"):
            # Compiles the schedule even if the cache has the programs.
            programs.epoch_learning_rates(setup.schedule, 1, setup.train_plan.steps)
            # Setup, program and parts of each stage that is still run.
            setups = preparation.setups_by_stage(setup)
            self.programs = [
                (of_stage, programs.training(of_stage, self.state, fetcher), programs.epoch_parts(of_stage))
                for of_stage, after in zip(setups, [*setups[1:], None], strict=True)
                if of_stage.stage.first_epoch <= most and (after is None or after.stage.first_epoch > done + 1)
            ]
            self.validate = programs.validation(setup, self.state.params, fetcher)
            self.describe = programs.description(setup, self.state.params)
        # Gloo's first operation waits 30 s, and a cache of compiled programs serves process 0 alone.
        group.all_gather(None)
        self.validation = self.validate(self.state.params)
        if done and group.primary:
            fingerprint.warn_of_change(self.validation[LOSS], self.history[-1].val_loss)
        if config.stop.monitor not in self.validation:
            raise InputError(
                f"stop.monitor must be one of {', '.join(self.validation)}, which this workload's validation gives; got "
                f"{config.stop.monitor!r}"
            )
        self.events: Callable[..., Events] | None = getattr(registry.load(config.workload), "events", None)
        self.logger = self._begin_files()

    def _begin_files(self) -> RunLogger:
        """A start that fails earlier leaves the work directory as it was."""
        if not self.group.primary:
            return IDLE
        config, record, workdir = self.setup.config, self.record, self.workdir
        with os_errors_as_input_errors(workdir.root):
            workdir.snapshots.mkdir(parents=True, exist_ok=True)
            write_text(workdir.config, to_toml(absolute(config)))
            fingerprint.write(self.setup.fingerprint, workdir.root)
        parameters = identity_fields(config) | {
            "stop.target": record.target,
            "stop.monitor": record.monitor,
            "stop.mode": record.mode,
            "Strategy": record.scaling,
            "Devices": record.devices,
            "Batch": record.global_batch,
            "Learning rate": record.learning_rate,
            "Seed": record.seed,
        }
        board = IDLE
        if config.log.tensorboard:
            board = TensorBoard(workdir.tensorboard, parameters, len(self.history), record.monitor)
        logger = RunLogger(workdir, board)
        logger.begin(self.monitor.rows, [name for name in self.validation if name != LOSS])
        return logger

    def train(self, interrupts: Interrupts) -> Record:
        """Trains to the end or to an interrupt."""
        self._write_record(None)
        reason, _ = self._agree(None)
        self._show(last=reason is not None)
        if reason == stop_reasons.TARGET_REACHED and (at_target := self.monitor.at_target):
            stop, where = self.setup.config.stop, "inside" if at_target.train_loss is None else "after"
            reached = f"validation {stop.monitor} {at_target.value(stop.monitor):g} reached {where} epoch {at_target.epoch}"
            self.display.say(f"{reached} of {len(self.history)} earlier ones")
        while reason is None:
            self._train_epoch()
            end, interrupt = self._agree(interrupts.reason)
            self._show(last=end is not None)
            reason = end or interrupt
            if reason or len(self.history) % self.setup.config.checkpoint.every_epochs == 0:
                self._save(reason)
                self.group.all_gather(None)  # in a collective operation the others would wait as long as JAX does
        record = self._write_record(reason)
        self.logger.end(record)
        return record

    def _agree(self, interrupt: str | None) -> tuple[str | None, str | None]:
        """The end that the first process sees, by its clock, and the first interrupt of any process."""
        if self.group is ALONE:
            return self.monitor.reason(), interrupt
        of_each = self.group.all_gather((self.monitor.reason(), interrupt))
        self.group.epoch_ended()
        return of_each[0][0], next((reason for _, reason in of_each if reason), None)

    def _train_epoch(self) -> None:
        epoch, before = len(self.history) + 1, self.history[-1].steps if self.history else 0
        if len(self.programs) > 1 and self.programs[1][0].stage.first_epoch == epoch:
            self.programs.pop(0)
        setup, train, parts = self.programs[0]
        plan, steps, losses = setup.train_plan, setup.train_plan.steps, []
        if epoch > 1 and epoch == setup.stage.first_epoch:
            self.display.say(f"the global batch is {plan.batch} from epoch {epoch} on")
        rates = programs.epoch_learning_rates(setup.schedule, epoch, steps)
        for part in parts:
            with jax.transfer_guard("disallow"):  # copies to the devices and back are explicit
                with self.clock.section("train_s"):
                    self.state, of_part = train(self.state, epoch, part)
                with self.clock.section("eval_s"):
                    self.validation = self.validate(self.state.params)
            losses.append(of_part)
            metrics = dict(self.validation)
            row = Epoch(
                epoch=epoch,
                steps=before + part.stop,
                samples=(epoch - 1) * plan.samples + min(part.stop * plan.batch, plan.samples),
                lr=rates[part.stop - 1].item(),
                train_loss=plan.mean(np.concatenate(losses)) if part.stop == steps else None,
                val_loss=metrics.pop(LOSS),
                **self.clock.read(),
                batch=plan.batch,
                metrics=metrics,
            )
            self.monitor.add(row)
            self.logger.row(row)
        self.display.epoch(self.history[-1])
        if self.monitor.costs[epoch] < self.monitor.costs[self.best_epoch]:
            self.best, self.best_epoch = jax.device_get(self.state.params), epoch

    def _save(self, reason: str | None) -> None:
        """Amid a run the record omits epochs without a checkpoint, because they may be lost."""
        config = self.setup.config.checkpoint
        due = config.at_end or reason in stop_reasons.INTERRUPTED
        if reason is None:
            interval_s = 0.0 if config.min_interval_s == "auto" else config.min_interval_s
            due = self.clock.read()["total_s"] - self.saved_s >= interval_s
        if not (self.manager and due):
            return
        with self.clock.section("checkpoint_s"):
            progress = Progress(
                len(self.history), self.best_epoch, self.clock.read(), len(self.monitor.rows), self.logger.sha256()
            )
            state, best = jax.device_get((self.state, self.best))
            checkpoint.save(self.manager, Checkpoint(state, best, progress))
        self.saved_s = self.clock.read()["total_s"]
        if reason is None:
            self._write_record(None)

    def _write_record(self, reason: str | None) -> Record:
        results: dict[str, Any] = {}
        history = self.history
        for name, epoch in {"final": len(history), "best": self.best_epoch}.items():
            if epoch:
                row = history[epoch - 1]
                results |= {f"{name}_val_loss": row.val_loss, f"{name}_metrics": dict(row.metrics)}
        if reason == stop_reasons.TARGET_REACHED and (at_target := self.monitor.target_epoch()):
            results |= {"target_epoch": at_target.epoch, "time_to_target_s": training_s(at_target)}
            results |= {"target_step": self.monitor.target_step()}
        self.record = dataclasses.replace(
            self.record,
            **results,
            stop_reason=reason,
            epochs=len(history),
            final_train_loss=history[-1].train_loss if history else None,
            best_epoch=self.best_epoch or None,
            clocks=self.clock.read(),
            growth=[
                [stage.first_epoch, stage.batch]
                for stage in self.setup.strategy.stages[1:]
                if stage.first_epoch <= len(history)
            ],
        )
        self.logger.record(self.record)
        return self.record

    def _show(self, *, last: bool) -> None:
        epoch, log = len(self.history), self.setup.config.log
        in_figure = last or epoch in log.figure_epochs
        in_tensorboard = last or epoch % log.every_epochs == 0
        if not self.group.primary or self.describe is None or not (in_figure or in_tensorboard):
            return
        arrays = self.describe(self.state.params)
        if in_tensorboard and self.events:
            self.logger.events(epoch, self.events(arrays))
        if in_figure:
            loss, best = self.validation[LOSS], self.best_epoch
            if last and best:  # the figure ends with the parameters that are kept
                epoch, loss, arrays = best, self.history[best - 1].val_loss, self.describe(self.best)
            self.logger.snapshot(epoch, loss, arrays)

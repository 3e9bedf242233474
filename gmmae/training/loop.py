"""The host's part of training: from a configuration and a work directory to a record.

Each epoch is one dispatch for training and one for validation, or several of both with `stop.validate_every_steps`. Between
epochs the host keeps clocks, history, checkpoints and logs, and decides whether to stop.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from gmmae.config.schema import LOSS, Config
from gmmae.multihost.distributed import ALONE, Group
from gmmae.scaling.identity import identity_fields
from gmmae.system import stop_reasons
from gmmae.system.clock import Clock
from gmmae.system.interrupts import Interrupts
from gmmae.system.null_object import IDLE
from gmmae.training import checkpoint, compilation, fingerprint, per_sample, programs
from gmmae.training.checkpoint import Checkpoint, CheckpointManager
from gmmae.training.compilation import TrainSetup
from gmmae.training.finetune import first_parameters, require_same_origin
from gmmae.training.growth import Growth
from gmmae.training.records import Epoch, Progress, Record, from_plain, plain
from gmmae.training.run_cache import RunCache
from gmmae.training.run_logger import RunLogger, storage
from gmmae.training.run_summary import (
    new_record,
    require_checkpoint,
    require_metric,
    require_same_optimization,
    resume_warnings,
    run_summary,
)
from gmmae.training.step import TrainState
from gmmae.training.stopping import StopMonitor, finished
from gmmae.training.terminal import Display
from gmmae.training.workdir import WorkDir, begin, claim, writable
from gmmae.workloads import registry
from gmmae.workloads.interface import Events, Params
from gmmae.workloads.sources import Fetcher

if TYPE_CHECKING:
    from gmmae.training.tensorboard import TensorBoard


def run(config: Config, root: Path, display: Display, group: Group = ALONE, cache: RunCache | None = None) -> Record:
    """Trains to the end, or resumes what an earlier process left in the work directory.

    Args:
      config: the run.
      root: its work directory; it may hold an earlier part of the same run, or its end.
      display: where a person looks.
      group: the processes that train together. Only the first one writes.
      cache: data and programs of earlier runs in this process.

    Returns:
      The record, as it is in `record.json`; its `stop_reason` is never None.

    Raises:
      InputError: the configuration does not fit the machine, the data or the work directory.
      StorageError: the work directory cannot be written any more.
    """
    with opened(config, root, display, group, cache) as start:
        if isinstance(start, Record):
            return start
        with Interrupts() as interrupts:
            return start().train(interrupts)


@contextmanager
def opened(
    config: Config, root: Path, display: Display, group: Group = ALONE, cache: RunCache | None = None
) -> Iterator["Record | Callable[[], Run]"]:
    """Holds a run's work directory, and yields its record where it is finished, or a function that returns the run.

    Args and errors are those of `run`.
    """
    with claim(config, root) if group.primary else nullcontext(WorkDir(root)) as workdir:
        earlier = workdir.read_record() if group.primary and workdir.begun else None
        ended = earlier is not None and finished(earlier, config.stop, workdir.read_rows())
        record, ended = group.all_gather((plain(earlier) if earlier is not None else None, ended))[0]
        earlier = from_plain(record) if record is not None else None
        if earlier is not None and ended:
            display.say(f"{root} holds a finished run: {earlier.stop_reason} after {earlier.epochs} epochs")
            yield earlier
            return
        setup = compilation.prepare(config, cache=cache)
        group.assert_equal(setup.fingerprint.digests)
        if group.primary:
            now = setup.fingerprint
            setup = setup._replace(
                fingerprint=fingerprint.checked(root, now) if workdir.begun else fingerprint.descended(config, now)
            )
        with writable(root):
            checkpoints = checkpoint.opened(workdir.checkpoints, config.checkpoint.keep) if group.primary else None
        try:
            with compilation.precision_context(config), Fetcher(config.parallel.fetch_threads) as fetcher:
                yield lambda: Run(setup, workdir, checkpoints, display, group, earlier, fetcher)
        finally:
            display.close()
            if checkpoints:
                checkpoints.close()


class Run:
    """The state of the host's loop, restored from the newest checkpoint when it is made.

    Attributes:
      state: the newest state.
      best: the parameters of the best epoch.
      growth: the stages of the run, each with its own batch, and the epochs at which they begin.
    """

    def __init__(
        self,
        setup: TrainSetup,
        workdir: WorkDir,
        checkpoints: CheckpointManager | None,
        display: Display,
        group: Group,
        earlier: Record | None,
        fetcher: Fetcher,
    ):
        self.setup, self.workdir, self.checkpoints, self.display, self.group = setup, workdir, checkpoints, display, group
        self.fetcher = fetcher
        start = compilation.initial_state(setup)
        self.record = new_record(setup, start)
        require_same_optimization(earlier, self.record)
        for line in resume_warnings(setup.config, earlier, self.record):
            display.say(line)
        saved = self._restore(start)
        require_checkpoint(earlier, saved is not None, workdir.checkpoints)
        if saved is None:
            start, origin = first_parameters(setup, start, group)
        else:
            origin = require_same_origin(earlier.init_from, setup.config.init_from) if earlier else {}
        run_id = earlier.run_id if earlier else self.record.run_id
        self.record = dataclasses.replace(self.record, init_from=origin, run_id=run_id)
        self.clock = Clock(saved.progress.clocks if saved else None)
        self.monitor = StopMonitor(setup.config.stop, workdir.read_rows_of(saved.progress) if saved else ())
        self.saved_s = self.clock.read()["total_s"]  # of the last checkpoint, or of the start
        self.best_epoch = saved.progress.best_epoch if saved else 0
        self.best = saved.best if saved else start.params
        self.state: TrainState = setup.devices.replicate(saved.state if saved else start)
        self.logger: RunLogger = IDLE
        self.growth = Growth(setup)
        self.train_part: dict[int, programs.Train] = {}  # by stage
        self.evaluate: programs.Validate
        self.describe: Callable[[Params], dict[str, np.ndarray]] | None = None
        self.events: Callable[..., Events] | None = getattr(registry.load(setup.config.workload), "events", None)

    def _restore(self, like: TrainState) -> Checkpoint | None:
        """Returns the newest checkpoint that the first process can read; all processes go on from it."""
        with storage(self.workdir.root):
            saved = checkpoint.restore(self.checkpoints, like, self.display.say) if self.checkpoints else None
        epoch = self.group.all_gather(saved.progress.epoch if saved else None)[0]
        if self.checkpoints or epoch is None:
            return saved
        with checkpoint.opened(self.workdir.checkpoints) as manager:
            return checkpoint.read(manager, epoch, like, "put the workdir on a file system that all hosts share")

    @property
    def history(self) -> list[Epoch]:
        """The epochs so far."""
        return self.monitor.epochs

    def train(self, interrupts: Interrupts) -> Record:
        """Trains to the end or to an interrupt, and returns the record."""
        reason = self.begin()
        while reason is None:
            self._advance()
            reason = self.after_epochs(interrupts.reason)
        return self.end(reason)

    def begin(self) -> str | None:
        """Compiles the programs and writes the first files. Returns the reason to stop where there is one already."""
        setup, stop, done = self.setup, self.setup.config.stop, len(self.history)
        self.display.start(run_summary(setup, self.record, self.workdir.root, done), max_epochs=stop.max_epochs, done=done)
        with self.clock.section("compile_s"):
            programs.epoch_values(setup, 1)  # compiles the schedule, also where the cache has the programs
            self.train_part = {i: programs.training(of, self.state, self.fetcher) for i, of in self.growth.from_epoch(done + 1)}
            self.evaluate = programs.validation(setup, self.state.params, self.fetcher)
            self.describe = programs.description(setup, self.state.params)
        # Gloo's first operation waits 30 s, and a cache of compiled programs serves process 0 alone.
        self.group.all_gather(None)
        validation = self.history[-1].validation if done else self.evaluate(self.state.params)
        require_metric(stop, validation)
        self._begin([name for name in validation if name != LOSS])
        reason, _ = self._agree(self.monitor.reason(), None)
        self._show(validation[LOSS], last=reason is not None)
        if reason == stop_reasons.TARGET_REACHED and (at_target := self.monitor.at_target):
            where = "inside" if at_target.train_loss is None else "after"
            value = f"{at_target.value(stop.monitor):g}"
            self.display.say(
                f"validation {stop.monitor} {value} reached {where} epoch {at_target.epoch} of {done} earlier ones"
            )
        return reason

    def after_epochs(self, interrupt: str | None) -> str | None:
        """Writes what is due after the last epochs. Returns the reason to stop, or None to go on."""
        end, interrupt = self._agree(self.monitor.reason(), interrupt)
        self._show(self.history[-1].val_loss, last=end is not None)
        reason = end or interrupt
        if reason or len(self.history) % self.setup.config.checkpoint.every_epochs == 0:
            if self._saves(reason):
                self._save()
                self._write_record(reason)
            self.group.all_gather(None)  # the others wait here: in a collective operation their patience is JAX's
        return reason

    def end(self, reason: str) -> Record:
        """Writes the record of a run that has ended, and returns it."""
        record = self._write_record(reason)
        self.logger.end(record)
        return record

    def _begin(self, metrics: Sequence[str]) -> None:
        """Writes the first files; a start that fails earlier leaves the work directory as it was."""
        if self.group.primary:
            begin(self.setup.config, self.workdir)
            with writable(self.workdir.root):
                fingerprint.write(self.setup.fingerprint, self.workdir.root)
            self.logger = RunLogger(self.workdir, self._tensorboard())
        self.logger.begin(self.monitor.rows, metrics)
        self._write_record(None)

    def _agree(self, end: str | None, interrupt: str | None) -> tuple[str | None, str | None]:
        """Returns the end that the first process sees, by its clock, and the first interrupt of any process."""
        of_each = self.group.all_gather((end, interrupt))
        self.group.epoch_ended()
        return of_each[0][0], next((reason for _, reason in of_each if reason), None)

    def _advance(self) -> None:
        """Trains one epoch, with a validation after each part."""
        epoch, before = len(self.history) + 1, self.history[-1].steps if self.history else 0
        setup, train, losses = self.growth.setup(epoch), self.train_part[self.growth.stage(epoch)], []
        plan = setup.train_plan
        for part in programs.epoch_parts(setup):
            with self.clock.section("train_s"):
                self.state, of_part = train(self.state, epoch, part)
            losses.append(of_part)
            with self.clock.section("eval_s"):
                validation = self.evaluate(self.state.params)
            row = Epoch(
                epoch=epoch,
                steps=before + part.stop,
                samples=(epoch - 1) * plan.samples + min(part.stop * plan.batch, plan.samples),
                lr=np.asarray(setup.schedule((epoch - 1) * plan.steps + part.stop - 1)).item(),
                train_loss=per_sample.mean_over_steps(np.concatenate(losses), plan) if part.stop == plan.steps else None,
                val_loss=validation[LOSS],
                **self.clock.read(),
                batch=plan.batch,
                metrics={name: value for name, value in validation.items() if name != LOSS},
            )
            self.monitor.add(row)
            self.logger.row(row)
        self.display.epoch(self.history[-1])
        if self.monitor.cost(epoch) < self.monitor.cost(self.best_epoch):
            self.best, self.best_epoch = jax.device_get(self.state.params), epoch
        if epoch + 1 in self.growth.starts and self.monitor.reason() is None:
            self.display.say(f"the global batch is {self.growth.setup(epoch + 1).train_plan.batch} from epoch {epoch + 1} on")

    def _saves(self, reason: str | None) -> bool:
        """Returns whether a checkpoint is due. Without one the record says nothing of these epochs, as they may be lost."""
        config = self.setup.config.checkpoint
        if reason is not None:
            return config.at_end or reason in stop_reasons.INTERRUPTED
        interval_s = 0.0 if config.min_interval_s == "auto" else config.min_interval_s
        return self.clock.read()["total_s"] - self.saved_s >= interval_s

    def _save(self) -> None:
        if not self.checkpoints:
            return
        with self.clock.section("checkpoint_s"):
            rows = len(self.monitor.rows)
            progress = Progress(len(self.history), self.best_epoch, self.clock.read(), rows, self.logger.sha256())
            state, best = jax.device_get((self.state, self.best))
            checkpoint.save(self.checkpoints, Checkpoint(state, best, progress))
        self.saved_s = self.clock.read()["total_s"]

    def _write_record(self, reason: str | None) -> Record:
        last = self.history[-1] if self.history else None
        best = self.history[self.best_epoch - 1] if self.best_epoch else None
        reached = reason == stop_reasons.TARGET_REACHED
        at_target = self.monitor.target_epoch() if reached else None
        self.record = dataclasses.replace(
            self.record,
            stop_reason=reason,
            epochs=len(self.history),
            final_train_loss=last.train_loss if last else None,
            final_val_loss=last.val_loss if last else None,
            final_metrics=dict(last.metrics) if last else {},
            best_val_loss=best.val_loss if best else None,
            best_metrics=dict(best.metrics) if best else {},
            best_epoch=self.best_epoch or None,
            target_epoch=at_target.epoch if at_target else None,
            target_step=self.monitor.target_step() if reached else None,
            time_to_target_s=at_target.train_s + at_target.eval_s if at_target else None,
            clocks=self.clock.read(),
            growth=self.growth.batches(len(self.history)),
        )
        self.logger.record(self.record)
        return self.record

    def _tensorboard(self) -> "TensorBoard":
        if not self.setup.config.log.tensorboard:
            return IDLE
        from gmmae.training.tensorboard import TensorBoard

        parameters = identity_fields(self.setup.config) | {
            "stop.target": self.record.target,
            "stop.monitor": self.record.monitor,
            "stop.mode": self.record.mode,
            "devices": self.record.devices,
            "global_batch": self.record.global_batch,
            "peak_learning_rate": self.record.learning_rate,
        }
        return TensorBoard(self.workdir.tensorboard, parameters, len(self.history), self.record.monitor)

    def _show(self, val_loss: float, *, last: bool) -> None:
        epoch, log = len(self.history), self.setup.config.log
        in_figure = last or epoch in log.figure_epochs
        in_tensorboard = last or epoch % log.every_epochs == 0
        if not self.group.primary or self.describe is None or not (in_figure or in_tensorboard):
            return
        arrays = self.describe(self.state.params)
        if in_tensorboard and self.events:
            self.logger.events(epoch, self.events(arrays))
        if in_figure:
            self.logger.snapshot(epoch, val_loss, arrays)

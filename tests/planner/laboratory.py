"""Training and timings that take no time, for tests of plans.

A run's loss depends on its batch, learning rate and epoch. A step's time depends on its batch. Runs lie in ordinary
work directories, stop by the ordinary rules, and can be resumed.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from gmmae.config.schema import Config
from gmmae.planner import measure, prediction
from gmmae.scaling import strategies
from gmmae.scaling.batches import BatchPlan
from gmmae.sweep import step_times
from gmmae.sweep.grid import RunKey
from gmmae.sweep.step_times import Timing, Timings
from gmmae.system import stop_reasons
from gmmae.training import fingerprint, stopping
from gmmae.training.records import Epoch, to_json
from gmmae.training.run_logger import write_history
from gmmae.training.workdir import WorkDir
from gmmae.workloads.interface import Splits
from tests import sweeps
from tests.small import SMALL

SAMPLES, VALIDATION = 100, 40
FAILS_AT = 8.0
"""The factor of the learning rate at which training diverges."""


def step_s(batch: int):
    """The seconds of a training step."""
    return 0.01 + 0.001 * batch


class Laboratory:
    """Replaces the modules that measure, and stops when `breaks_at` results are made.

    `memory` is the largest batch, and `known_memory` the memory of a device, in GB, of which a sample needs one.
    """

    def __init__(self, breaks_at: int = 0, memory: float = math.inf, known_memory: float = math.inf):
        self.made, self.breaks_at, self.memory, self.known_memory = 0, breaks_at, memory, known_memory

    def __enter__(self):
        patch = self._patch = pytest.MonkeyPatch()
        patch.setattr(measure, "preparation", SimpleNamespace(prepare=self.prepare))
        patch.setattr(measure, "loop", SimpleNamespace(run=self.run))
        patch.setattr(measure.throughput, "measure", self.step_times)
        patch.setattr(measure.programs, "needed_bytes", lambda setup: 1e9 * setup.train_plan.batch)
        patch.setattr(prediction, "DRAWS", 50)
        return self

    def __exit__(self, *_: object):
        self._patch.undo()

    def count(self):
        self.made += 1
        if self.made == self.breaks_at:
            raise KeyboardInterrupt

    def prepare(self, config: Config, **_: object):
        data = (np.arange(SAMPLES), np.arange(VALIDATION))
        return SimpleNamespace(
            fingerprint=fingerprint.of(config, Splits(*data)),
            train_plan=BatchPlan(SAMPLES, config.optim.batch_size, 1),
            eval_plan=BatchPlan(VALIDATION, VALIDATION, 1),
            devices=SimpleNamespace(kind="cpu", memory_bytes=1e9 * self.known_memory),
        )

    def run(self, config: Config, root, display, **_: object):
        devices = config.parallel.simulate_devices or 1
        workdir, stage = WorkDir(root), strategies.resolve(config.scaling, config.optim, devices, SAMPLES).stages[0]
        batch, rate = stage.batch, stage.learning_rate / SMALL.optim.learning_rate
        if batch > self.memory:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes")
        workdir.root.mkdir(parents=True, exist_ok=True)
        monitor = stopping.StopMonitor(config.stop)
        for row in workdir.read_rows():
            monitor.add(row)
        try:
            while not (reason := monitor.reason()):
                self.count()
                # The loss falls with the steps and the learning rate, more slowly for small batches, with scatter.
                epoch = len(monitor.rows) + 1
                steps = epoch * math.ceil(SAMPLES / batch)
                progress = (rate**0.5 if rate < FAILS_AT else -0.01) * steps / (1 + 20.0 / batch)
                loss = 1.0 / (1 + progress / 10) * (1 + 0.01 * math.sin(epoch * 7 + batch))
                spent = 0.0, steps * step_s(batch), 0.01 * epoch, 0.0, steps * step_s(batch)
                monitor.add(Epoch(epoch, steps, epoch * SAMPLES, 0.001, loss, loss, *spent, batch))
        except KeyboardInterrupt:
            reason = stop_reasons.SIGINT
        write_history(workdir.history, monitor.rows)
        own = {"parameters": 1000, "train_samples": SAMPLES, "validation_samples": VALIDATION, "global_batch": batch}
        record = sweeps.run_record(sweeps.GRID, RunKey("strong", 1, 0), reason, len(monitor.rows), 0.0, **own)
        workdir.record.write_text(to_json(record))
        return record

    def step_times(self, config, batches, validation, timing):
        self.count()
        train = [Timing(batch, batch, *[step_s(batch)] * 3) for batch in batches]
        passes = [Timing(count, count, *[0.002 * count] * 3) for count in validation]
        return Timings(1, "cpu", False, 1000, train, passes, {}, step_times.settings(timing), {}, None)

"""Writes the files of a sweep without training: records, histories and step times as `gmmae sweep` leaves them."""

import math
from pathlib import Path

from gmmae.config.schema import changed
from gmmae.scaling import strategies
from gmmae.scaling.batches import plan_batches
from gmmae.scaling.cost import Cluster
from gmmae.sweep import step_times
from gmmae.sweep.grid import RunKey, SweepConfig
from gmmae.sweep.runs import CRASHED, FAILED, Failure, RunRecord, SweepDir
from gmmae.sweep.step_times import Timing, Timings
from gmmae.system import stop_reasons
from gmmae.system.files import write_text
from gmmae.training.records import Epoch, Record, to_json
from gmmae.training.run_logger import write_history

TRAIN, VALIDATION, PARAMETERS, TARGET = 512, 256, 490_000, 0.0016384


def run_record(config: SweepConfig, key: RunKey, outcome: str, epochs: int, loss: float, **changes) -> Record:
    """The record of a run that ended with a validation loss; training takes 2 s an epoch and validation 0.5 s."""
    strategy = strategies.resolve(key.scaling, config.run.optim, key.devices, TRAIN)
    share = plan_batches(TRAIN, strategy.stages[0].batch, key.devices)
    values = {
        "run_id": "0123456789ab",
        "scaling": key.scaling,
        "seed": key.seed,
        "devices": key.devices,
        "processes": 1,
        "device_kind": "cpu",
        "oversubscribed": False,
        "batch_size": config.run.optim.batch_size,
        "wanted_batch": strategy.wanted_batch,
        "global_batch": share.batch,
        "device_batch": share.device_batch,
        "padding": share.padding,
        "steps_per_epoch": share.steps,
        "learning_rate": strategy.stages[0].learning_rate,
        "parameters": PARAMETERS,
        "train_samples": TRAIN,
        "validation_samples": VALIDATION,
        "target": config.run.stop.target,
        "virtual": config.mode == "virtual",
        "stop_reason": outcome,
        "epochs": epochs,
        "final_train_loss": loss,
        "final_val_loss": loss,
        "best_val_loss": loss if math.isfinite(loss) else 0.004,
        "best_epoch": epochs,
        "time_to_target_s": 2.5 * epochs if outcome == stop_reasons.TARGET_REACHED else None,
        "clocks": {"train_s": 2.0 * epochs, "eval_s": 0.5 * epochs, "total_s": 3.0 * epochs},
        "versions": {"jax": "0.10.2", "python": "3.11.9"},
        "git_commit": "8d988e1",
        "machine": "a processor, 2 cores",
    }
    return Record(**values | changes)


def history(record: Record) -> list[Epoch]:
    """Losses that fall from 0.0075 by a power of the epoch to the record's final one; only the last may be without a number."""
    assert record.final_val_loss is not None
    power = 0.0
    if record.epochs > 1 and math.isfinite(record.final_val_loss):
        power = math.log(record.final_val_loss / 0.0075) / math.log(record.epochs)
    rows = []
    for epoch in range(1, record.epochs + 1):
        loss = record.final_val_loss if epoch == record.epochs else 0.0075 * epoch**power
        samples = epoch * record.train_samples
        clocks = (1.0, 2.0 * epoch, 0.5 * epoch, 0.1, 3.0 * epoch)
        rows.append(Epoch(epoch, epoch * record.steps_per_epoch, samples, record.learning_rate, 0.9 * loss, loss, *clocks, 32))
    return rows


def add(
    config: SweepConfig, root: Path, key: RunKey, outcome: str, epochs: int = 0, loss: float = TARGET, **changes
) -> RunRecord:
    """Writes the record and the history of the path that a run shares with others, or that its process failed."""
    folder = SweepDir(root)
    path, members = next((path, keys) for path, keys in folder.groups(config, TRAIN).items() if key in keys)
    workdir = folder.run(path)
    workdir.root.mkdir(parents=True, exist_ok=True)
    if outcome in FAILED:
        folder.write(folder.failure(path), Failure(outcome, "ended by SIGKILL: out of memory"))
    else:
        record = run_record(config, RunKey.named(path) or key, outcome, epochs, loss, **changes)
        write_text(workdir.record, to_json(record))
        write_history(workdir.history, history(record))
    return next(record for record in folder.records(config, path, members) if record.key == key)


def reach(config: SweepConfig, root: Path, key: RunKey, epochs: int) -> RunRecord:
    """A run that reached the target."""
    return add(config, root, key, stop_reasons.TARGET_REACHED, epochs)


def timing(samples: int, devices: int, median_s: float) -> Timing:
    """A time whose quartiles lie 10 % about its median."""
    return Timing(samples, math.ceil(samples / devices), median_s, 0.9 * median_s, 1.1 * median_s)


def add_step_times(
    root: Path, devices: int, train: dict[int, float], validation: dict[int, float] | None = None, **changes
) -> Timings:
    """Writes step times by samples."""
    path = SweepDir(root).step_times(devices)
    path.parent.mkdir(parents=True, exist_ok=True)
    timings = Timings(
        devices=devices,
        device_kind="cpu",
        oversubscribed=False,
        parameters=PARAMETERS,
        train=[timing(samples, devices, time_s) for samples, time_s in train.items()],
        validation=[timing(samples, devices, time_s) for samples, time_s in (validation or {}).items()],
        failed={},
        timing={"warmup_steps": 3, "steps": 10, "blocks": 7},
        versions={"jax": "0.10.2"},
        git_commit="8d988e1",
    )._replace(**changes)
    step_times.write(path, timings)
    return timings


FLAT = Cluster("Flat", "a device", 8, 0.0, 4.0 * PARAMETERS, 0.0, 4.0 * PARAMETERS, collective="ring")
"""A gradient in float32 passes a link in 1 s, so the ring takes 2 (n - 1) / n seconds: 1 s on 2 devices, 1.5 s on 4."""

STEPS = {8: 0.2, 16: 0.3, 32: 0.5}
PASSES = {64: 0.5, 128: 1.0, 256: 2.0}
GRID = SweepConfig(run=changed(SweepConfig().run, stop__target=TARGET, stop__max_epochs=1), devices=(1, 2, 4), seeds=(0, 1, 2))


def small(root: Path, config: SweepConfig = GRID) -> SweepConfig:
    """A sweep that is nearly done; with `STEPS`, `PASSES` and `FLAT` an epoch takes these seconds.

    | devices | strong | weak and the linear rule |
    |---|---|---|
    | 1 | 16 · 0.5 + 2 = 10 | the same |
    | 2 | 16 (0.3 + 1) + 1 = 21.8 | 8 (0.5 + 1) + 1 = 13 |
    | 4 | 16 (0.2 + 1.5) + 0.5 = 27.7 | 4 (0.5 + 1.5) + 0.5 = 8.5 |

    Strong reaches the target in 10 epochs, weak in 20 n on n > 1 devices. The linear rule collapses on 2 and diverges on 4.
    With warmup one seed of three reaches it on 2 devices, in 10 epochs, and one on 4 runs out of epochs; a process crashed.
    """
    for seed in config.seeds:
        for n in config.devices:
            reach(config, root, RunKey("strong", n, seed), 10)
            reach(config, root, RunKey("weak", n, seed), 10 if n == 1 else 20 * n)
        for scaling in ("linear-warmup", "linear"):
            reach(config, root, RunKey(scaling, 1, seed), 10)
        add(config, root, RunKey("linear", 2, seed), stop_reasons.COLLAPSED, 12, 0.0148 + 0.001 * seed)
        add(config, root, RunKey("linear", 4, seed), stop_reasons.DIVERGED, 1, math.nan)
    reach(config, root, RunKey("linear-warmup", 2, 0), 10)
    add(config, root, RunKey("linear-warmup", 2, 1), stop_reasons.COLLAPSED, 12, 0.0148)
    add(config, root, RunKey("linear-warmup", 2, 2), stop_reasons.COLLAPSED, 12, 0.0148)
    add(config, root, RunKey("linear-warmup", 4, 0), stop_reasons.MAX_EPOCHS, 30, 0.002)
    add(config, root, RunKey("linear-warmup", 4, 1), CRASHED)
    return config

"""What a run begins with: record, first parameters, checks against an earlier part of the run, and start table."""

import math
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from gmmae.config.schema import Config, flatten
from gmmae.config.toml import differences, updated
from gmmae.multihost.distributed import Group
from gmmae.multihost.environment import default_devices
from gmmae.scaling.batches import BatchPlan
from gmmae.scaling.identity import run_id
from gmmae.scaling.strategies import learning_rate_text, optimizer_text, require_known
from gmmae.system import nvidia
from gmmae.system.environment import cores
from gmmae.system.errors import InputError
from gmmae.system.provenance import git_commit, machine, versions
from gmmae.training.checkpoint import OtherModelError, trained
from gmmae.training.preparation import TrainSetup, blank_state, cast, parameter_count
from gmmae.training.records import Record
from gmmae.training.step import TrainState
from gmmae.training.workdir import WorkDir
from gmmae.workloads import sources
from gmmae.workloads.sources import CheckedSource, one_sample

SHAPES = ("data.ndim", "data.shape")
"""Keys of `data` that the parameters' shapes may depend on."""


def new_record(setup: TrainSetup, state: TrainState) -> Record:
    """The record of a run that has not begun."""
    config, devices, plan = setup.config, setup.devices, setup.strategy_plan
    of_state = sum(leaf.size for leaf in jax.tree.leaves(state[:2]) if np.issubdtype(leaf.dtype, np.inexact))
    return Record(
        run_id=run_id(config, setup.fingerprint.digests),
        scaling=config.scaling,
        seed=config.seed,
        devices=plan.sharers,
        virtual=config.parallel.simulate_devices is not None,
        processes=jax.process_count(),
        device_kind=devices.kind,
        oversubscribed=devices.oversubscribed,
        batch_size=config.optim.batch_size,
        wanted_batch=setup.strategy.wanted_batch,
        global_batch=plan.batch,
        largest_batch=setup.strategy.stages[-1].batch if len(setup.strategy.stages) > 1 else 0,
        local_steps=setup.stage.local_steps,
        reduced_numbers=of_state if setup.stage.local_steps else 0,
        device_batch=plan.device_batch,
        padding=plan.padding,
        steps_per_epoch=plan.steps,
        learning_rate=setup.stage.learning_rate,
        parameters=parameter_count(state.params),
        train_samples=plan.samples,
        validation_samples=setup.eval_plan.samples,
        target=config.stop.target,
        monitor=config.stop.monitor,
        mode=config.stop.better,
        data=setup.fingerprint.digests,
        versions=versions(),
        git_commit=git_commit(),
        machine=machine(devices.kind),
    )


def first_parameters(setup: TrainSetup, start: TrainState, group: Group) -> tuple[TrainState, dict[str, Any]]:
    """The state before the first epoch and the origin of its parameters, empty where the seed drew them."""
    if not setup.config.init_from:
        return start, {}
    folder = WorkDir(Path(setup.config.init_from))
    record = folder.read_record()
    if record is None or not folder.config.is_file():
        raise InputError(f"init_from must be the work directory of a run; got {folder.root}, which has no {folder.record.name}")
    saved = folder.read_config()
    # It may have another optimiser.
    its = {key: value for key, value in saved.items() if key in ("precision", "scaling") or key.startswith("optim.")}
    try:
        like = blank_state(require_known(updated(setup.config, its)), setup.workload)
        checkpoint = trained(folder.checkpoints, like, record, "init_from")
    except OtherModelError as error:
        settings = {key: value for key, value in flatten(setup.config.settings) if key in SHAPES or not key.startswith("data.")}
        raise InputError(
            f"init_from must be a run whose parameters have the shapes of this one's; got {folder.root}, where "
            f"{differences(saved, settings) or 'the workload was another one'}"
        ) from error
    params = cast(setup.config, checkpoint.best)
    digest = sources.digest(params)
    group.assert_equal({"the parameters of init_from": digest})
    origin = {"run": str(folder.root), "run_id": record.run_id, "epoch": checkpoint.progress.best_epoch, "sha256": digest}
    return start._replace(params=params), origin


def require_sequel(earlier: Record, restored: bool, folder: Path, place: str | None) -> None:
    """Refuses to begin anew a run that should be resumed, and to resume one whose `init_from` was not `place`."""
    if earlier.epochs and not restored:
        raise InputError(
            f"workdir must hold a checkpoint for its run to go on after epoch {earlier.epochs}; got none in {folder} (a sweep "
            "removes those of finished cells unless keep_checkpoints is true): give another workdir, or delete this one to "
            "begin again"
        )
    origin, record = earlier.init_from, WorkDir(Path(place)).read_record() if place else None
    if restored and (bool(place) != bool(origin) or (record and record.run_id != origin["run_id"])):
        raise InputError(f"init_from must stay that of the run's start, {origin.get('run')}; got {place}: give another workdir")


def require_same_optimization(earlier: Record, now: Record) -> None:
    """Refuses another global batch, learning rate or number of replicas, as on other devices, or another metric."""
    if earlier.epochs and (was := (earlier.monitor, earlier.mode)) != (now.monitor, now.mode):
        raise InputError(
            f"a resumed run must keep stop.monitor and stop.mode, which chose its best parameters, {' and '.join(was)}; got "
            f"{now.monitor} and {now.mode}: give another workdir"
        )
    of_devices = ("global_batch", "largest_batch", "learning_rate", *["devices"] * bool(earlier.local_steps or now.local_steps))
    if all(getattr(earlier, key) == getattr(now, key) for key in of_devices):
        return
    was, new = (f"{record.largest_batch or record.global_batch} and {record.learning_rate:g}" for record in (earlier, now))
    raise InputError(
        f"a resumed run of strategy {now.scaling} must keep global batch, learning rate and replicas, {was} on "
        f"{earlier.devices} devices; got {new} on {now.devices}: use as many devices as before, or give another workdir"
    )


def resume_warnings(config: Config, earlier: Record, now: Record) -> list[str]:
    """Warns where a resumed run with the exact reduction may have other bits than an uninterrupted one."""
    if not config.parallel.deterministic:
        return []
    pairs = {"the device": (earlier.device_kind, now.device_kind)}
    pairs |= {name: (earlier.versions.get(name, "missing"), version) for name, version in now.versions.items()}
    differing = [f"{name} was {was} and is {now}" for name, (was, now) in pairs.items() if was != now]
    return [f"warning: bits may differ from those of one run throughout: {', '.join(differing)}"] if differing else []


def run_summary(setup: TrainSetup, record: Record, root: Path, done: int) -> dict[str, str]:
    """The start table; `done` epochs are behind the run."""
    config, plan, stop, data = setup.config, setup.strategy_plan, setup.config.stop, setup.data
    facts = {
        "run": f"{record.run_id} in {root}" + (f", resumed after epoch {done}" if done else ""),
        "scaling": f"{config.scaling}, seed {config.seed}",
        "devices": _devices_text(setup, record),
    }
    if unused := nvidia.unused(setup.devices.platform, os.environ):
        facts["GPU"] = unused
    sharing = f"{plan.sharers} × {plan.device_batch} a device{_padding_text(plan) or ', no padding'}"
    later = [str(stage.first_epoch - 1) for stage in setup.strategy.stages[1:]]
    growth = f"after epoch{'s' * (len(later) > 1)} {', '.join(later)}; at first" if later else "="
    facts["global batch"] = f"{setup.strategy.batch_text()} {growth} {sharing}"
    if config.parallel.deterministic:
        shards = f"{setup.train_plan.sharers} shards of {setup.train_plan.device_batch}{_padding_text(setup.train_plan)}"
        facts["reduction"] = f"exact: {shards}; the same bits on any number of devices"
    elif every := setup.stage.local_steps:
        numbers = f"{record.reduced_numbers:,} numbers of parameters and optimiser"
        momentum = setup.stage.optim.outer_momentum
        facts["reduction"] = f"after {every} local steps and at the end of an epoch, of {numbers}, with momentum {momentum:g}"
    last_step = f", the last of {plan.counts[-1]} samples" if plan.counts[-1] != plan.batch else ""
    steps = " → ".join(str(math.ceil(plan.samples / stage.batch)) for stage in setup.strategy.stages)
    origin = ", at first the best of {run}, of its epoch {epoch}".format(**record.init_from) if record.init_from else ""
    of_one = _sample_text(one_sample(data.train))
    samples = f"{record.train_samples} for training and {record.validation_samples} for validation, each {of_one}"
    if reads := [split for split in ("train", "validation") if isinstance(getattr(data, split), CheckedSource)]:
        samples += f"; {' and '.join(reads)} read from a source by {config.parallel.fetch_threads} threads"
    ends = [f"{stop.max_epochs} epochs"]
    if stop.target is not None:
        every, sign = stop.validate_every_steps, "≤" if stop.better == "min" else "≥"
        often = f", also seen after every {'step' if every == 1 else f'{every} steps'}" if every else ""
        ends.insert(0, f"validation {stop.monitor} {sign} {stop.target:g}{often}")
    if stop.time_limit_s is not None:
        ends.append(f"{stop.time_limit_s:g} s")
    if stop.patience_epochs is not None:
        ends.append(f"{stop.patience_epochs} epochs without an improvement")
    if stop.collapse_epochs is not None:
        ends.append(f"{stop.collapse_epochs} more epochs of one loss")
    return facts | {
        "learning rate": learning_rate_text(setup.stage),
        "optimiser": optimizer_text(setup.stage.optim),
        "steps per epoch": f"{steps}{last_step if len(setup.strategy.stages) == 1 else ''}",
        "parameters": f"{record.parameters:,}{origin}",
        "workload": config.workload,
        "data": f"{data.about}, {samples}" if data.about else samples,
        "stops at": ", or ".join(ends),
    }


def _sample_text(sample: PyTree) -> str:
    """The arrays of a sample in words.

    >>> import numpy as np
    >>> _sample_text(np.zeros((16, 16))), _sample_text({"x": np.zeros(2), "label": np.zeros(())})
    ('16×16', 'one number as label, 2 numbers as x')
    """
    leaves = jax.tree_util.tree_leaves_with_path(sample)
    texts = []
    for path, leaf in leaves:
        shape = "×".join(map(str, leaf.shape)) + " numbers" * (leaf.ndim == 1) or "one number"
        texts.append(f"{shape} as {jax.tree_util.keystr(path, simple=True, separator='.')}" if len(leaves) > 1 else shape)
    return ", ".join(texts)


def _padding_text(plan: BatchPlan) -> str:
    return f", {plan.padding} of the slots padded" if plan.padding else ""


def _devices_text(setup: TrainSetup, record: Record) -> str:
    count = setup.devices.count
    real = f"{count} × {record.device_kind}"
    wanted = default_devices(setup.config, record.train_samples) or 0
    if record.processes == 1 and setup.devices.platform == "cpu" and wanted > count:
        real += f" in place of {wanted}, because JAX had started before, as where a workload computes while it is imported"
    a_core = record.oversubscribed and record.processes == 1 and count <= cores()
    if record.virtual:
        real += ", one a core," if a_core else ""
        return f"{record.devices}, virtual: {real} compute{'s' * (count == 1)} their batch, so times are no measure of scaling"
    if a_core:
        return f"{real}, one a core"
    shared = " (virtual: they share the processor, so times are no measure of scaling)" if record.oversubscribed else ""
    return f"{real}{shared}"

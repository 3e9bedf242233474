"""What is known of a run before its first epoch: for the record, and in words for the person who started it."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax

from gmmae.config import run_id
from gmmae.programs import Setup, parameter_count
from gmmae.records import Record
from gmmae.schedules import arm, peak_learning_rate
from gmmae.step import TrainState

PACKAGES = ("gmmae", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def new_record(setup: Setup, state: TrainState) -> Record:
    """The record of a run that has not begun."""
    config, devices, plan = setup.config, setup.devices, setup.arm_plan
    return Record(
        run_id=run_id(config),
        arm=config.arm,
        seed=config.seed,
        devices=plan.devices,
        virtual=config.parallel.virtual > 0,
        processes=jax.process_count(),
        device_kind=devices.kind,
        oversubscribed=devices.oversubscribed,
        global_batch=plan.batch,
        device_batch=plan.device_batch,
        padding=plan.padding,
        steps_per_epoch=plan.steps,
        learning_rate=peak_learning_rate(config.arm, plan.devices, config.optim.learning_rate),
        parameters=parameter_count(state.params),
        train_samples=plan.samples,
        validation_samples=setup.eval_plan.samples,
        target_loss=config.stop.target_loss,
        versions=versions(),
        git_commit=git_commit(),
    )


def facts(setup: Setup, record: Record, root: Path, done: int) -> dict[str, str]:
    """The start-up table: names and values in words.

    Args:
      setup, record: of the run.
      root: its work directory.
      done: epochs that an earlier process has finished.
    """
    config, plan, data = setup.config, setup.arm_plan, setup.config.data
    shape = "×".join([str(data.size)] * data.ndim)
    stop = config.stop
    return {
        "run": f"{record.run_id} in {root}" + (f", resumed after epoch {done}" if done else ""),
        "arm": f"{config.arm}, seed {config.seed}",
        "devices": _devices_text(setup, record),
        "global batch": _batch_text(setup),
        "learning rate": _rate_text(setup, record),
        "steps per epoch": f"{plan.steps}"
        + (f", the last of {plan.counts[-1]} samples" if plan.counts[-1] != plan.batch else ""),
        "parameters": f"{record.parameters:,}",
        "data": f"{data.source}, {record.train_samples} training and {record.validation_samples} validation volumes of {shape}",
        "stops at": (f"validation {config.loss} ≤ {stop.target_loss:g}, or " if stop.target_loss else "")
        + f"{stop.max_epochs} epochs",
    }


def _devices_text(setup: Setup, record: Record) -> str:
    if record.virtual:
        real = f"{setup.devices.count} × {record.device_kind}"
        return f"{record.devices}, virtual: {real} computes their batch, so times are no measure of scaling"
    shared = " (virtual: they share the processor, so times are no measure of scaling)" if record.oversubscribed else ""
    return f"{record.devices} × {record.device_kind}{shared}"


def _batch_text(setup: Setup) -> str:
    plan = setup.arm_plan
    asked = arm(setup.config.arm).batch_factor(plan.devices) * setup.config.optim.base_batch
    clipped = f" (all training volumes; the arm asks for {asked})" if asked > plan.batch else ""
    padding = f", {plan.padding} of the slots padded" if plan.padding else ", no padding"
    return f"{plan.batch}{clipped} = {plan.devices} × {plan.device_batch} a device{padding}"


def _rate_text(setup: Setup, record: Record) -> str:
    optim = setup.config.optim
    text = f"{record.learning_rate:g}"
    if arm(setup.config.arm).warmup and optim.warmup_epochs:
        text = f"{optim.learning_rate:g} → {text} in {optim.warmup_epochs} epochs"
    if optim.decay_epochs:
        text += f", × {optim.decay_factor:g} after epochs {', '.join(map(str, optim.decay_epochs))}"
    return text


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide on the numbers."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """The commit of the checkout that this code runs from, `-dirty` behind it if changed; None outside a checkout."""
    here = Path(__file__)

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None

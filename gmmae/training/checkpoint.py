"""Checkpoints with Orbax: the state to resume from, the best parameters so far, and how far the run is.

Of `history.csv` a checkpoint has the number of rows and their hash. Its own checksum is for changed bytes of an array, which
Orbax reads as other numbers.
"""

import errno
import io
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import PyTree
from orbax.checkpoint import CheckpointManager

from gmmae.system.errors import InputError, StorageError, write_error
from gmmae.system.files import FAILED, TAKEN_AWAY
from gmmae.training.records import Progress, Record
from gmmae.training.step import TrainState
from gmmae.workloads import sources
from gmmae.workloads.interface import Params

T = TypeVar("T")

SILENCE_S = 0.5
"""How long nothing is printed once the threads of a failed save have ended."""


class CheckpointError(InputError):
    """A checkpoint that cannot be read or written."""


class OtherModelError(InputError):
    """A checkpoint whose arrays have other names or shapes."""


class Checkpoint(NamedTuple):
    """A checkpoint's contents, on the host."""

    state: TrainState
    best: Params
    progress: Progress


def opened(folder: Path, keep: int | None = None) -> CheckpointManager:
    """Orbax's manager, for a process on its own: several neither save nor wait together. Without `keep` it only reads."""
    # It warns of options, such as a folder that is only read, and raises the errors that matter.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    options: dict[str, Any] = {"max_to_keep": keep, "read_only": keep is None}
    if keep is not None:
        folder.mkdir(parents=True, exist_ok=True)
    if jax.process_count() > 1:
        me = jax.process_index()
        options["multiprocessing_options"] = ocp.options.MultiprocessingOptions(
            primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"process_{me}"
        )
    settings = ocp.CheckpointManagerOptions(create=False, enable_async_checkpointing=False, **options)
    return CheckpointManager(folder.absolute(), options=settings)


def save(manager: CheckpointManager, checkpoint: Checkpoint) -> None:
    """Saves under the epoch's number, in the first process: all have the same state.

    Raises:
      StorageError: the disk failed, or the folder has gone.
      CheckpointError: anything else.
    """
    progress = checkpoint.progress._asdict()
    arrays = named({"state": checkpoint.state, "best": checkpoint.best})
    items = ocp.args.Composite(
        arrays=ocp.args.StandardSave(arrays),
        progress=ocp.args.JsonSave(progress | {"checksum": _checksum(arrays, progress)}),
    )
    try:
        with _muted():
            manager.save(progress["epoch"], args=items)
    except Exception as error:  # Orbax and TensorStore raise whatever the file system leads to
        of_disk = any(os.strerror(number) in str(error) for number in (*FAILED, *TAKEN_AWAY, errno.ENOTDIR))
        raise (StorageError if of_disk else CheckpointError)(
            f"the checkpoint of epoch {progress['epoch']} must be written to {manager.directory}; that failed with "
            f"{_reason(error)}: see to it, and run the same command again"
        ) from error


def read(manager: CheckpointManager, epoch: int, like: TrainState, advice: str) -> Checkpoint:
    """Reads the checkpoint of an epoch, its arrays with the types of `like`.

    Raises:
      CheckpointError: it cannot be read, or does not hold what was saved; `advice` says what to do.
      OtherModelError: its arrays have other names or shapes.
    """
    place = manager.directory / str(epoch)
    items = ocp.args.Composite(arrays=ocp.args.StandardRestore(), progress=ocp.args.JsonRestore())
    try:
        with _muted():
            held = manager.restore(epoch, args=items)
        arrays, progress = held["arrays"], held["progress"]
        if progress.pop("checksum") != _checksum(arrays, progress):
            raise ValueError("its contents are not those that were saved")
    except Exception as error:  # whatever the damage leads to
        raise CheckpointError(
            f"the checkpoint {place} must be readable; reading it failed with {_reason(error)}: {advice}"
        ) from error
    fault = (
        f"the checkpoint {place} must hold the model of this configuration; its arrays have other shapes, as of another "
        "version of the workload or of gmmae: give another workdir"
    )
    return Checkpoint(**filled({"state": like, "best": like.params}, arrays, fault), progress=Progress(**progress))


def restore(manager: CheckpointManager, like: TrainState, say: Callable[[str], None]) -> Checkpoint | None:
    """Reads the newest readable checkpoint, if there is any, and moves newer ones aside, as `<epoch>.corrupt`.

    Raises:
      CheckpointError: none can be read.
      OtherModelError: they hold another model.
      OSError: one cannot be moved.
    """
    advice = "there is no older one: delete that folder to begin again, or give another workdir"
    failed: dict[int, CheckpointError] = {}
    for epoch in sorted(manager.all_steps(), reverse=True):
        try:
            checkpoint = read(manager, epoch, like, advice)
        except CheckpointError as error:
            failed[epoch] = error
            continue
        for bad, error in failed.items():
            place, aside = manager.directory / str(bad), manager.directory / f"{bad}.corrupt"
            shutil.rmtree(aside, ignore_errors=True)  # of an earlier time
            place.rename(aside)
            say(f"{place} cannot be read ({_reason(error.__cause__)}): moved to {aside.name}; going on from epoch {epoch}")
        manager.reload()
        return checkpoint
    if failed:
        raise failed[max(failed)]
    return None


def trained(folder: Path, like: TrainState, record: Record, key: str = "workdir") -> Checkpoint:
    """Reads a run's newest checkpoint, which must have finite best parameters; the user calls the run `key`.

    Warns where the best epoch of its record came later.
    """
    checkpoint = None
    if folder.is_dir():
        with opened(folder) as manager:
            if epoch := manager.latest_step():
                checkpoint = read(manager, epoch, like, "train on with more stop.max_epochs, and an older one takes its place")
    if checkpoint is None:
        raise InputError(f"{key} must hold a checkpoint; got none in {folder}: train on, or set keep_checkpoints in a sweep")
    progress = checkpoint.progress
    if not progress.best_epoch:
        raise InputError(
            f"{key} must be a run with a finite epoch; got {folder.parent}, which has none among {progress.epoch}: train "
            "again, with a lower learning rate"
        )
    leaves = map(np.asarray, jax.tree.leaves(checkpoint.best))
    if not all(np.isfinite(leaf).all() for leaf in leaves if np.issubdtype(leaf.dtype, np.inexact)):
        raise InputError(
            f"the checkpoint {folder / str(progress.epoch)} must hold finite parameters; some are NaN or infinite: train "
            f"again, or give another {key}"
        )
    if (record.best_epoch or 0) > progress.best_epoch:
        write_error(
            f"warning: the best epoch of {folder.parent} was {record.best_epoch}, and no checkpoint has its parameters: these "
            f"are of epoch {progress.best_epoch}\n"
        )
    return checkpoint


def named(tree: PyTree) -> dict[str, Any]:
    """Arrays by their places in the pytree, such as `encoder.Conv_0.kernel`."""
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def filled(like: T, arrays: Mapping[str, np.ndarray], fault: str) -> T:
    """Inverts `named`, with the types of `like`; raises OtherModelError, with text `fault`, for other names or shapes."""
    wanted = named(like)
    if jax.tree.map(np.shape, arrays) != jax.tree.map(np.shape, wanted):
        raise OtherModelError(fault)
    leaves = [arrays[name].astype(leaf.dtype, copy=False) for name, leaf in wanted.items()]
    return jax.tree.structure(like).unflatten(leaves)


def _checksum(arrays: dict[str, Any], progress: dict[str, Any]) -> str:
    return sources.digest([arrays, json.dumps([sorted(arrays), progress], sort_keys=True)])


@contextmanager
def _muted() -> Iterator[None]:
    """Keeps Orbax, asyncio and TensorStore from printing what is raised anyway.

    After a failure TensorStore's threads print that Orbax has closed their event loop, so the block ends in their silence.
    """
    printed = io.StringIO()
    with redirect_stderr(printed):
        try:
            yield
        except Exception:
            before = -1
            while before != (before := printed.tell()):
                time.sleep(SILENCE_S)
            raise


def _reason(error: BaseException | None) -> str:
    """One line of bounded length, which ends with the system's message where TensorStore gives its number.

    >>> _reason(ValueError("Error writing " + "a/" * 200 + " [os_error_code='28'] " + "{}" * 200))[-26:]
    ' … No space left on device'
    """
    text = " ".join(str(error).split())
    if len(text) > 300:
        number = re.search(r"os_error_code='(\d+)'", text)
        text = f"{text[:100]} … {os.strerror(int(number[1])) if number else text[-200:]}"
    return f"{type(error).__name__}: {text}"

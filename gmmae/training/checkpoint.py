"""Checkpoints with Orbax: the state to resume from, the best parameters so far, and the run's progress.

A checkpoint holds parameters and optimiser state, clocks and history, and the parameters of the best epoch. A resumed run needs
nothing else to be equal to an uninterrupted one. It is written whole or not at all.

Orbax reads changed bytes of an array as other numbers. So a checkpoint also holds a checksum of its contents, and every reader
compares it.
"""

import errno
import io
import itertools
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import Float64

from gmmae.config.schema import LOSS
from gmmae.system.errors import InputError, StorageError
from gmmae.system.files import FAILED, TAKEN_AWAY
from gmmae.training.records import PLAIN, Epoch, from_numbers
from gmmae.training.step import TrainState
from gmmae.training.validations import Validation
from gmmae.workloads import sources
from gmmae.workloads.interface import Params

SILENCE_S = 0.5
"""How long nothing is printed once the threads of a checkpoint that failed have ended."""


class CheckpointError(InputError):
    """A checkpoint that cannot be read, or that is another model's."""


class OtherModelError(CheckpointError):
    """A checkpoint whose arrays have other shapes than the model."""


class DamagedError(Exception):
    """A checkpoint whose files can be read, but hold other numbers than were saved."""


class Progress(NamedTuple):
    """The progress of a run, beside its parameters and optimiser state.

    Attributes:
      history: its epochs.
      clocks: seconds by section.
      best_epoch: by the monitored metric.
      inside: the validations inside these epochs.
    """

    history: list[Epoch]
    clocks: dict[str, float]
    best_epoch: int
    inside: Sequence[Validation] = ()


class Checkpoint(NamedTuple):
    """The contents of a checkpoint; arrays are on the host."""

    state: TrainState
    best: Params
    progress: Progress


class Checkpoints:
    """The newest checkpoints of a run, in a folder of their own.

    Of several processes the first one has this: all have the same state, so it saves for them. The others read what it has
    chosen with `restore_epoch`. Who only reads uses `newest`.

    Args:
      folder: made when needed.
      keep: how many to keep.
    """

    def __init__(self, folder: Path, keep: int):
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._manager = _manager(folder, keep=keep)

    def save(self, checkpoint: Checkpoint) -> None:
        """Saves under the epoch's number; an epoch that is already saved is kept as it is.

        Raises:
          StorageError: it could not be written; the checkpoints before it are as they were.
        """
        progress = checkpoint.progress._asdict()
        history, inside = progress.pop("history"), progress.pop("inside")
        progress["metrics"] = list(history[0].metrics) if history else []
        progress["columns"] = list(PLAIN)
        # As JSON, a history of 65 000 epochs took three times as long as all the rest.
        arrays = {"state": checkpoint.state, "best": checkpoint.best, "history": _table(history)}
        if inside:  # most runs have none
            arrays["inside"], progress["inside"] = _table_of_validations(inside), len(inside)
        epoch = len(history)
        if epoch in self._manager.all_steps():
            return
        try:
            with _muted():
                self._manager.save(
                    epoch,
                    args=ocp.args.Composite(
                        arrays=ocp.args.StandardSave(arrays),
                        progress=ocp.args.JsonSave(progress | {"checksum": _checksum(arrays, progress)}),
                    ),
                )
        except Exception as error:  # Orbax and TensorStore raise whatever the file system leads to
            of_disk = any(os.strerror(number) in str(error) for number in (*FAILED, *TAKEN_AWAY, errno.ENOTDIR))
            raise (StorageError if of_disk else CheckpointError)(
                f"the checkpoint of epoch {epoch} must be written to {self._folder}; that failed with {_reason(error)}: see to "
                "it, and run the same command again"
            ) from error

    def restore(self, like: TrainState, say: Callable[[str], None]) -> Checkpoint | None:
        """The newest checkpoint that can be read, or None where there is none at all.

        One that cannot be read is moved aside, as `<epoch>.corrupt`, if there is an older one to go on from.

        Args:
          like: a state of the same shapes, on the host.
          say: is told of every checkpoint that was moved aside.

        Raises:
          CheckpointError: none of them can be read, or they hold another model.
        """
        unreadable: list[tuple[int, Exception]] = []
        for epoch in sorted(self._manager.all_steps(), reverse=True):
            try:
                checkpoint = _read(self._manager, self._folder, epoch, like)
            except CheckpointError:
                raise
            except Exception as error:  # as above, whatever the damage leads to
                unreadable.append((epoch, error))
                continue
            for bad, error in unreadable:
                self._move_aside(bad, error, epoch, say)
            return checkpoint
        if unreadable:
            epoch, error = unreadable[0]
            raise CheckpointError(
                f"the checkpoint {self._folder / str(epoch)} must be readable; reading it failed with {_reason(error)}, and "
                "there is no older one: delete that folder to begin again, or give another workdir"
            ) from error
        return None

    def _move_aside(self, epoch: int, error: Exception, back_to: int, say: Callable[[str], None]) -> None:
        place = self._folder / str(epoch)
        names = itertools.chain([f"{epoch}.corrupt"], (f"{epoch}.corrupt.{i}" for i in itertools.count(2)))
        aside = next(path for name in names if not (path := self._folder / name).exists())
        try:
            place.rename(aside)
        except OSError as problem:
            raise StorageError(
                f"the unreadable checkpoint {place} must be moved to {aside.name}; that failed with {_reason(problem)}: move "
                "it yourself"
            ) from problem
        self._manager.reload()
        say(f"{place} cannot be read ({_reason(error)}): moved to {aside.name}; going on from epoch {back_to}")

    def close(self) -> None:
        """Waits for the last save and closes the folder."""
        self._manager.close()


def restore_epoch(folder: Path, epoch: int, like: TrainState) -> Checkpoint:
    """Returns the checkpoint of an epoch, which the first process was able to read.

    Raises:
      CheckpointError: this process cannot read it.
    """
    way_out = "put the workdir on a file system that all hosts share"
    with _manager(folder, read_only=True) as manager:
        return _read_or_refuse(manager, folder, epoch, like, "readable by all processes", way_out)


def newest(folder: Path, like: TrainState) -> Checkpoint | None:
    """Returns the newest checkpoint, or None where there is none; the folder stays as it is.

    Raises:
      CheckpointError: it cannot be read, or holds another model.
    """
    if not folder.is_dir():
        return None
    with _manager(folder, read_only=True) as manager:
        epoch = manager.latest_step()
        way_out = "train on, and an older one takes its place"
        return None if epoch is None else _read_or_refuse(manager, folder, epoch, like, "readable", way_out)


def _read_or_refuse(
    manager: ocp.CheckpointManager, folder: Path, epoch: int, like: TrainState, rule: str, way_out: str
) -> Checkpoint:
    try:
        return _read(manager, folder, epoch, like)
    except CheckpointError:
        raise
    except Exception as error:  # as above, whatever the damage leads to
        raise CheckpointError(
            f"the checkpoint {folder / str(epoch)} must be {rule}; reading it failed with {_reason(error)}: {way_out}"
        ) from error


def trained(folder: Path, like: TrainState, key: str = "workdir") -> Checkpoint:
    """Returns the newest checkpoint of a run that has a best epoch. Whoever uses a trained run's parameters has them from here.

    Raises:
      InputError: there is none, no epoch was finite, or the parameters are not; `key` is what the user calls the run.
      CheckpointError: as `newest`.
    """
    checkpoint = newest(folder, like)
    if checkpoint is None:
        raise InputError(f"{key} must hold a checkpoint; got none in {folder}: train on, or set keep_checkpoints in a sweep")
    if not checkpoint.progress.best_epoch:
        raise InputError(
            f"{key} must be a run with a finite epoch; got {folder.parent}, which has none among "
            f"{len(checkpoint.progress.history)}: train again, with a lower learning rate"
        )
    leaves = map(np.asarray, jax.tree.leaves(checkpoint.best))
    if not all(np.isfinite(leaf).all() for leaf in leaves if np.issubdtype(leaf.dtype, np.inexact)):
        raise InputError(
            f"the checkpoint {folder / str(len(checkpoint.progress.history))} must hold finite parameters; some are NaN or "
            f"infinite: train again, or give another {key}"
        )
    return checkpoint


def _manager(folder: Path, *, keep: int | None = None, read_only: bool = False) -> ocp.CheckpointManager:
    """Returns Orbax's manager for a process on its own: several processes neither save nor wait together."""
    options: dict[str, Any] = {"max_to_keep": keep, "read_only": read_only}
    # It warns of options, such as that a folder is only read. Its errors are raised too, where they matter.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    if jax.process_count() > 1:
        me = jax.process_index()
        options["multiprocessing_options"] = ocp.options.MultiprocessingOptions(
            primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"process_{me}"
        )
    settings = ocp.CheckpointManagerOptions(create=False, enable_async_checkpointing=False, **options)
    return ocp.CheckpointManager(folder.absolute(), options=settings)


def _table(history: Sequence[Epoch]) -> Float64[np.ndarray, "epochs columns"]:
    """Returns the rows as an array; `np.array` would take four times as long."""
    rows = (row[:-1] + tuple(row.metrics.values()) for row in history)
    return np.fromiter(itertools.chain.from_iterable(rows), np.float64).reshape(len(history), -1)


def _table_of_validations(inside: Sequence[Validation]) -> Float64[np.ndarray, "validations columns"]:
    """Returns the rows as an array: step, epoch, the loss and the metrics."""
    return np.array([(one.step, one.epoch, *one.values.values()) for one in inside], np.float64)


def _checksum(arrays: dict[str, Any], progress: dict[str, Any]) -> dict[str, Any]:
    """Returns a SHA-256 of a checkpoint's contents, and the types of the arrays that it is of."""
    dtypes = [str(np.asarray(leaf).dtype) for leaf in jax.tree.leaves(arrays)]
    return {"dtypes": dtypes, "sha256": sources.digest([arrays, json.dumps(progress, sort_keys=True)])}


@contextmanager
def _muted() -> Iterator[None]:
    """Within it nothing prints what is raised: not Orbax's threads, asyncio or TensorStore, which do so beside raising it.

    After a failure TensorStore's threads still answer the event loop that Orbax has closed, and print that it is. So the end
    of the block waits until they have been silent for a while.
    """
    printed = io.StringIO()
    with redirect_stderr(printed):
        try:
            yield
        except CheckpointError:
            raise
        except Exception:
            before = -1
            while before != (before := printed.tell()):
                time.sleep(SILENCE_S)
            raise


def _read(manager: ocp.CheckpointManager, folder: Path, epoch: int, like: TrainState) -> Checkpoint:
    """Returns a checkpoint, its arrays with the types of `like`.

    Raises:
      OtherModelError: it holds arrays of other shapes than `like`.
      DamagedError: its contents are not those that were saved.
    """
    with _muted():
        progress = manager.restore(epoch, args=ocp.args.Composite(progress=ocp.args.JsonRestore()))["progress"]
        checksum = progress.pop("checksum")
        names, columns = progress["metrics"], progress["columns"]
        wanted = {"state": like, "best": like.params, "history": np.zeros((epoch, len(columns) + len(names)))}
        if "inside" in progress:
            wanted["inside"] = np.zeros((progress["inside"], 3 + len(names)))
        arrays = _read_arrays(manager, folder, epoch, wanted, checksum["dtypes"])
        if _checksum(arrays, progress) != checksum:
            raise DamagedError("its contents are not those that were saved")
    cast = jax.tree.map(lambda array, of: array.astype(of.dtype, copy=False), arrays, wanted)
    rows = [dict(zip([*columns, *names], row, strict=True)) for row in cast["history"].tolist()]
    history = [from_numbers({key: row[key] for key in columns}, {key: row[key] for key in names}) for row in rows]
    inside = [
        Validation(int(step), int(of_epoch), dict(zip((LOSS, *names), values, strict=True)))
        for step, of_epoch, *values in cast.get("inside", np.zeros((0, 3))).tolist()
    ]
    progress = Progress(history, progress["clocks"], progress["best_epoch"], tuple(inside))
    return Checkpoint(cast["state"], cast["best"], progress)


def _read_arrays(
    manager: ocp.CheckpointManager, folder: Path, epoch: int, wanted: dict[str, Any], dtypes: Sequence[str]
) -> dict[str, Any]:
    """Returns the arrays with the saved types, because Orbax casts, and a checksum is of the saved bytes."""
    leaves, structure = jax.tree.flatten(wanted)
    if len(dtypes) == len(leaves):
        wanted = structure.unflatten(np.zeros(leaf.shape, dtype) for leaf, dtype in zip(leaves, dtypes, strict=True))
    other_model = OtherModelError(
        f"the checkpoint {folder / str(epoch)} must hold the model of this configuration; its arrays have other shapes, as of "
        "another version of the workload or of gmmae: give another workdir"
    )
    try:
        arrays = manager.restore(epoch, args=ocp.args.Composite(arrays=ocp.args.StandardRestore(wanted)))["arrays"]
    except Exception as error:
        if _shapes_held(folder / str(epoch)) not in (None, sorted(map(np.shape, jax.tree.leaves(wanted["best"])))):
            raise other_model from error
        raise
    if list(map(np.shape, jax.tree.leaves(arrays))) != list(map(np.shape, leaves)):
        raise other_model
    return arrays


def _shapes_held(checkpoint: Path) -> list[tuple[int, ...]] | None:
    """Returns the sorted shapes of the parameters in a checkpoint; None where even these cannot be read."""
    try:
        with ocp.StandardCheckpointer() as reader:
            held: Any = reader.metadata((checkpoint / "arrays").absolute())
        return sorted(tuple(leaf.shape) for leaf in jax.tree.leaves(held.item_metadata.tree["best"]))
    except Exception:  # whatever the damage leads to
        return None


def _reason(error: Exception) -> str:
    """Returns an exception as one line of bounded length, with the system's message.

    TensorStore has it in the middle of a text, with its number behind it. Other texts end with it.

    >>> _reason(ValueError("Error writing " + "a/" * 200 + " [os_error_code='28'] " + "{}" * 200))[-26:]
    ' … No space left on device'
    """
    text = " ".join(str(error).split())
    if len(text) > 300:
        number = re.search(r"os_error_code='(\d+)'", text)
        text = f"{text[:100]} … {os.strerror(int(number[1])) if number else text[-200:]}"
    return f"{type(error).__name__}: {text}"

"""Checkpoints with Orbax: the state to go on from, the best parameters so far, and the run's progress.

A checkpoint holds everything that a resumed run needs to be the run that was never interrupted: parameters and optimiser state,
clocks and history, and the parameters of the best epoch. It is written whole or not at all.
"""

import logging
from pathlib import Path
from typing import NamedTuple

import jax
import orbax.checkpoint as ocp

from gmmae.errors import InputError
from gmmae.records import Epoch
from gmmae.step import Params, TrainState


class CheckpointError(InputError):
    """A checkpoint that cannot be read."""


class Progress(NamedTuple):
    """Everything but the parameters and the optimiser: how far the run is."""

    history: list[Epoch]
    clocks: dict[str, float]
    best_epoch: int


class Checkpoint(NamedTuple):
    """What is saved; arrays are on the host."""

    state: TrainState
    best: Params
    progress: Progress


class Checkpoints:
    """The newest checkpoints of a run, in a folder of their own.

    Args:
      folder: made when needed.
      keep: how many to keep.
    """

    def __init__(self, folder: Path, keep: int):
        logging.getLogger("absl").setLevel(logging.WARNING)
        self._folder = folder
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def save(self, checkpoint: Checkpoint) -> None:
        """Saves under the epoch's number; an epoch that is already saved is kept as it is."""
        epoch = len(checkpoint.progress.history)
        if epoch in self._manager.all_steps():
            return
        self._manager.save(
            epoch,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(checkpoint.state),
                best=ocp.args.StandardSave(checkpoint.best),
                progress=ocp.args.JsonSave(checkpoint.progress._asdict()),
            ),
        )

    def restore(self, like: TrainState) -> Checkpoint | None:
        """The newest checkpoint, or None where there is none.

        Args:
          like: a state of the same shapes, on the host.

        Raises:
          CheckpointError: it cannot be read, or holds another model.
        """
        epoch = self._manager.latest_step()
        if epoch is None:
            return None
        try:
            items = self._manager.restore(
                epoch,
                args=ocp.args.Composite(
                    state=ocp.args.StandardRestore(like),
                    best=ocp.args.StandardRestore(like.params),
                    progress=ocp.args.JsonRestore(),
                ),
            )
            progress = Progress(**items["progress"])
            history = [Epoch(*row) for row in progress.history]
        except Exception as error:  # Orbax and TensorStore raise whatever the damage leads to
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(
                f"the checkpoint {self._folder / str(epoch)} must be readable; reading it failed with {type(error).__name__}: "
                f"{reason}: delete that folder to go on from the one before it, or give another workdir"
            ) from error
        state = jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(items["state"]))
        return Checkpoint(state, items["best"], progress._replace(history=history))

    def close(self) -> None:
        self._manager.close()

"""Fine-tuning: a run that begins with the best parameters of another one, and a fresh optimiser."""

from pathlib import Path
from typing import Any

from gmmae.config.schema import flatten
from gmmae.config.toml import differences, updated
from gmmae.multihost.distributed import Group
from gmmae.system.errors import InputError
from gmmae.training.checkpoint import Checkpoint, OtherModelError, trained
from gmmae.training.compilation import TrainSetup, blank_state, cast
from gmmae.training.step import TrainState
from gmmae.training.workdir import WorkDir
from gmmae.workloads import sources

SHAPES = ("data.ndim", "data.shape")
"""Keys of the data that the parameters' shapes may depend on. The other keys may differ."""


def first_parameters(setup: TrainSetup, start: TrainState, group: Group) -> tuple[TrainState, dict[str, Any]]:
    """Returns the state before the first epoch and the origin of its parameters, empty where the seed drew them.

    Every process reads them, and all must have read the same.

    Raises:
      InputError: `init_from` is no run with parameters of these shapes, or the processes differ.
    """
    if not setup.config.init_from:
        return start, {}
    folder = WorkDir(Path(setup.config.init_from))
    record = folder.read_record()
    if record is None or not folder.config.is_file():
        raise InputError(f"init_from must be the work directory of a run; got {folder.root}, which has no {folder.record.name}")
    checkpoint = _trained(setup, folder)
    params = cast(setup.config, checkpoint.best)
    digest = sources.digest(params)
    group.assert_equal({"the parameters of init_from": digest})
    origin = {"run": str(folder.root), "run_id": record.run_id, "epoch": checkpoint.progress.best_epoch, "sha256": digest}
    return start._replace(params=params), origin


def require_same_origin(origin: dict[str, Any], place: str | None) -> dict[str, Any]:
    """Returns the origin of the parameters of a resumed run, if `init_from` still names that run. It may be moved, or gone.

    Raises:
      InputError: it names another run.
    """
    record = WorkDir(Path(place)).read_record() if place else None
    if bool(place) != bool(origin) or (record and record.run_id != origin["run_id"]):
        raise InputError(f"init_from must stay that of the run's start, {origin.get('run')}; got {place}: give another workdir")
    return origin


def _trained(setup: TrainSetup, folder: WorkDir) -> Checkpoint:
    """Returns the newest checkpoint of the other run, which may have another optimiser and precision."""
    saved = folder.read_config()
    its = {key: saved[key] for key in ("precision", "optim.clip_norm") if key in saved}
    try:
        return trained(folder.checkpoints, blank_state(updated(setup.config, its), setup.workload), "init_from")
    except OtherModelError as error:
        settings = {key: value for key, value in flatten(setup.config.settings) if key in SHAPES or not key.startswith("data.")}
        raise InputError(
            f"init_from must be a run whose parameters have the shapes of this one's; got {folder.root}, where "
            f"{differences(saved, settings) or 'the workload was another one'}"
        ) from error

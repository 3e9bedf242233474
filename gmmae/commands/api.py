"""What a Python program uses of gmmae: configure, train, load. `docs/api.md` shows it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gmmae.base.config import Config
from gmmae.base.errors import InputError
from gmmae.base.idle import IDLE
from gmmae.base.records import Record
from gmmae.base.workdir import WorkDir
from gmmae.commands.arguments import parse_train, read_config
from gmmae.workloads.workload import Params, PerSample, Samples, Workload


def configure(config: str | Path = "quickstart", **changes: Any) -> Config:
    """A configuration: that of a TOML file with some values changed.

    Args:
      config: a TOML file, or the name of one in `configs`; `""` for the defaults of the workload that `changes` names.
      changes: values by key, with `__` where the command line has a point: `stop__max_epochs=5`.

    Raises:
      InputError: an unknown key or a bad value.

    >>> configure("quickstart", arm="weak", stop__max_epochs=5).stop.max_epochs
    5
    """
    arguments = ["--config", str(config)] if config else []
    for key, value in changes.items():
        values = value if isinstance(value, tuple | list) else [value]
        arguments += [f"--{key.replace('__', '.').replace('_', '-')}", *map(str, values)]
    return parse_train(arguments, "gmmae.configure")[0]


def train(config: Config, workdir: str | Path, *, quiet: bool = False) -> Record:
    """Trains to the end, or resumes what is in the work directory, on all devices; draws the figures.

    Args:
      config: from `configure`.
      workdir: the run's folder.
      quiet: prints nothing.

    Returns:
      The record, as in `record.json`.

    Raises:
      InputError: the configuration does not fit the machine, the data or the work directory.
    """
    from gmmae.processes.distributed import joined

    with joined(config, "gmmae.train") as group:
        from gmmae.training import pictures, terminal
        from gmmae.training.loop import run

        record = run(config, Path(workdir), IDLE if quiet or not group.primary else terminal.display(), group)
    if group.primary:
        pictures.draw(config, record, WorkDir(Path(workdir)))
    return record


class Trained(NamedTuple):
    """A trained model.

    Attributes:
      config, record: of its run.
      workload: its functions and its data.
      params: the best ones, on the host.
    """

    config: Config
    record: Record
    workload: Workload
    params: Params

    def losses(self, samples: Samples) -> Any:
        """One loss a sample. `samples` are as in `workload.data`."""
        return self.workload.losses(self.params, samples, None)

    def metrics(self, samples: Samples) -> PerSample:
        """One value a sample for each metric of the workload."""
        return self.workload.metrics(self.params, samples)

    def describe(self, samples: Samples) -> Mapping[str, Any]:
        """What the workload says of samples; of nodules: their mixtures (weights, means, covariances) and densities."""
        if self.workload.describe is None:
            raise InputError(f"a workload must have `describe` to describe samples; got {self.config.workload}, which has none")
        return self.workload.describe(self.params, samples)


def load(workdir: str | Path) -> Trained:
    """The best parameters of a run, with the workload that they belong to; its data are loaded too.

    Raises:
      InputError: the folder holds no run with a checkpoint.
    """
    folder = WorkDir(Path(workdir))
    record = folder.read_record() if folder.config.is_file() else None
    if record is None:
        raise InputError(
            f"workdir must be that of a run; got {workdir}, which has no {folder.config.name} and {folder.record.name}"
        )
    config = read_config(folder.config)
    from gmmae.training import programs
    from gmmae.training.checkpoint import Checkpoints

    setup = programs.prepare(config)
    found = Checkpoints(folder.checkpoints, config.checkpoint.keep).restore(programs.initial_state(setup), print)
    if found is None:
        raise InputError(f"workdir must hold a checkpoint; got none in {folder.checkpoints}: train on, or keep them")
    return Trained(config, record, setup.workload, found.best)

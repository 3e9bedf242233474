"""What a Python program uses of gmmae: configure, train, load. `docs/api.md` shows it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gmmae.base.config import Config
from gmmae.base.errors import InputError
from gmmae.base.idle import IDLE
from gmmae.base.records import Record
from gmmae.base.workdir import WorkDir
from gmmae.commands.arguments import parse_train, read_config
from gmmae.workloads.workload import Params, Samples, Workload

if TYPE_CHECKING:
    import numpy as np


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

    def losses(self, samples: Samples) -> "np.ndarray":
        """One loss a sample. `samples` are as in `workload.data`."""
        return self._applied(lambda params, samples: self.workload.losses(params, samples, None), samples)

    def metrics(self, samples: Samples) -> "Mapping[str, np.ndarray]":
        """One value a sample for each metric of the workload."""
        return self._applied(self.workload.metrics, samples)

    def describe(self, samples: Samples) -> "Mapping[str, np.ndarray]":
        """What the workload says of samples; of nodules: their mixtures (weights, means, covariances) and densities."""
        if self.workload.describe is None:
            raise InputError(f"a workload must have `describe` to describe samples; got {self.config.workload}, which has none")
        return self._applied(self.workload.describe, samples)

    def _applied(self, function: Callable[[Params, Samples], Any], samples: Samples) -> Any:
        """Computed as the run's validation is: in its precision. Results are on the host."""
        import jax

        from gmmae.training import programs

        with programs.arithmetic(self.config):
            return jax.device_get(function(self.params, programs.cast(self.config, samples)))


def load(workdir: str | Path) -> Trained:
    """The best parameters of a run, with the workload that they belong to; its data are loaded too.

    Works in any interpreter, whatever devices and reduction the run had, and changes nothing in its folder.

    Raises:
      InputError: the folder holds no run with a checkpoint that can be read.
    """
    folder = WorkDir(Path(workdir))
    record = folder.read_record() if folder.config.is_file() else None
    if record is None:
        raise InputError(
            f"workdir must be that of a run; got {workdir}, which has no {folder.config.name} and {folder.record.name}"
        )
    config = read_config(folder.config)
    from gmmae.training import programs
    from gmmae.training.checkpoint import newest
    from gmmae.workloads import registry

    workload = registry.build(config)
    found = newest(folder.checkpoints, programs.blank_state(config, workload))
    if found is None:
        raise InputError(
            f"workdir must hold a checkpoint; got none in {folder.checkpoints}: train on, or set keep_checkpoints in a sweep"
        )
    return Trained(config, record, workload, found.best)

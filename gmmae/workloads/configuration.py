"""The configuration of a run: from a TOML file, with the settings of the workload that the file names."""

import os
from pathlib import Path
from typing import Any

from gmmae.config import toml
from gmmae.config.schema import Config, changed
from gmmae.scaling.strategies import require_known
from gmmae.system.errors import InputError
from gmmae.workloads import registry


def configure(config: str | Path = "quickstart", **changes: Any) -> Config:
    """Returns the configuration of a TOML file with some values changed.

    Args:
      config: a TOML file, or the name of one in `configs`; `""` for the defaults of the workload that `changes` names.
      changes: values by key, with `__` where the command line has a point: `stop__max_epochs=5`.

    Raises:
      InputError: an unknown key or a bad value.

    >>> configure("quickstart", scaling="weak", stop__max_epochs=5).stop.max_epochs
    5
    """
    values = {key.replace("__", "."): value for key, value in changes.items()}
    workload = values.pop("workload", None)
    run = read_config(toml.find(str(config)), workload) if config else default({}, workload)
    return require_known(toml.updated(run, values))


def read_config(path: Path, workload: str | None = None) -> Config:
    """Returns the configuration in a TOML file; keys that it does not name have their defaults.

    Args:
      path: the file.
      workload: instead of the file's.

    Raises:
      InputError: not TOML, an unknown key or a bad value; the message names the file.
    """
    table = toml.read_table(path)
    return from_table(path, default(table, workload), table)


def from_table(path: Path, start: Config, table: dict[str, Any]) -> Config:
    """Returns a configuration with the values of a file's table. Errors name the file."""
    try:
        return require_known(toml.updated(start, dict(toml.flatten_table(table))))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def default(table: dict[str, Any], workload: str | None) -> Config:
    """Returns the defaults for a table, whose workload decides which keys there are.

    The table's `workload` becomes an absolute path where it is a file, because the runs of a sweep may begin in another folder.
    """
    named = table.get("workload", Config.workload)
    if not isinstance(named, str):
        raise InputError(f"workload must be a name, a file or a module; got {named!r}")
    name = workload or named
    table["workload"] = os.path.realpath(name) if registry.is_file(name) else name
    return registry.configuration(table["workload"])


def without_own_csv(config: Config, own: Config) -> Config:
    """For nodules of another folder than the run's: a CSV of the run's that lies at a place of its own does not list them.

    Args:
      config: what is asked for.
      own: the run's own configuration.
    """
    asked, csv = (_of_data(of, "csv") for of in (config, own))
    return changed(config, data__csv="") if asked == csv and Path(csv).is_absolute() else config


def on_its_data(config: Config, own: Config) -> Config:
    """A run's configuration with changes, the run's own CSV left out where they name another folder of data.

    Args:
      config: what is asked for.
      own: the run's own configuration.
    """
    return config if _of_data(config, "root") == _of_data(own, "root") else without_own_csv(config, own)


def _of_data(config: Config, name: str) -> str:
    return getattr(getattr(config.settings, "data", None), name, "")

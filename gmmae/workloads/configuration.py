"""The configuration of a run, with the settings of its workload."""

import os
from pathlib import Path
from typing import Any

from gmmae.config import toml
from gmmae.config.rules import MAY_CHANGE_ON_RESUME, marked, require
from gmmae.config.schema import Config, absolute, changed, leaves
from gmmae.data.settings import DataConfig
from gmmae.scaling.strategies import require_known
from gmmae.system.errors import InputError
from gmmae.workloads import registry
from gmmae.workloads.settings import PatchConfig


def configure(config: str | Path = "quickstart", **changes: object) -> Config:
    """The configuration of a TOML file with some values changed.

    Args:
      config: a TOML file, or the name of one in `configs`; `""` for the defaults of the workload that `changes` names.
      changes: values by key, with `__` where the command line has a point: `stop__max_epochs=5`.

    >>> configure("quickstart", scaling="weak", stop__max_epochs=5).stop.max_epochs
    5
    """
    values = {key.replace("__", "."): value for key, value in changes.items()}
    workload = values.pop("workload", None)
    run = read_config(toml.find(config), workload) if config else default({}, workload)
    return require_source(require_known(toml.updated(run, values)))


def require_source(config: Config, own: Config | None = None) -> Config:
    """Refuses a folder or a CSV that the synthetic source would not read, unless the run `own` may have begun so."""
    data = getattr(config.settings, "data", None)
    as_begun = own and all(_data_setting(config, name) == _data_setting(own, name) for name in ("root", "csv"))
    if as_begun or not isinstance(data, DataConfig | PatchConfig):
        return config
    if data.source == "synthetic" and (data.root or data.csv != "auto"):
        from gmmae.data.extraction.folders import source_of  # it imports readers of all formats

        root = Path(data.root or "")
        require(False, "data.source", f"{source_of(root)} for {data.root or data.csv}", data.source)
    return config


def read_config(path: Path, workload: object = None) -> Config:
    """The configuration in a TOML file; other keys have their defaults."""
    table = toml.read_table(path)
    start = default(table, workload)
    try:
        return require_known(toml.updated(start, dict(toml.flatten_table(table))))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def default(table: dict[str, object], workload: object) -> Config:
    """The defaults for a table, whose workload decides which keys there are.

    A workload's file becomes an absolute path, because the runs of a sweep may begin in another folder.
    """
    name = workload or table.get("workload", Config.workload)
    if not isinstance(name, str):
        raise InputError(f"workload must be a name, a file or a module; got {name!r}")
    table["workload"] = os.path.realpath(name) if registry.is_file(name) else name
    return registry.configuration(table["workload"])


def without_own_csv(config: Config, own: Config) -> Config:
    """Leaves out a CSV with an absolute path, which lists only the run's nodules, for those of another folder."""
    csv = _data_setting(own, "csv")
    return changed(config, data__csv="auto") if _data_setting(config, "csv") == csv and Path(csv).is_absolute() else config


def on_its_data(config: Config, own: Config) -> Config:
    """Leaves out the run's CSV and what augments its training where the changes name another folder of data."""
    if _data_setting(config, "root") == _data_setting(own, "root"):
        return config
    if (more := _data_setting(own, "augment_with")) and _data_setting(config, "augment_with") == more:
        config = changed(config, data__augment_with=None)
    return without_own_csv(config, own)


def identity_settings(config: Config) -> dict[str, Any]:
    """The workload's settings that decide on its results and data, by key."""
    fields = leaves(absolute(config).settings)
    return {key: value for key, item, value in fields if not marked(item, MAY_CHANGE_ON_RESUME)}


def _data_setting(config: Config, name: str) -> str:
    return getattr(getattr(config.settings, "data", None), name, "")

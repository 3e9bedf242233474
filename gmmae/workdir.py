"""A run's work directory: its files by name, and whose run it is."""

import json
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gmmae import locks, stopping
from gmmae.config import Config, StopConfig, determining, flatten, flatten_table, to_toml
from gmmae.errors import InputError
from gmmae.records import Record, from_json, write_text


class WorkDir(NamedTuple):
    """Paths below `root`; which of them exist depends on how far the run is."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    @property
    def record(self) -> Path:
        return self.root / "record.json"

    @property
    def history(self) -> Path:
        return self.root / "history.csv"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tb"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def figures(self) -> Path:
        return self.root / "figures"

    @property
    def snapshots(self) -> Path:
        return self.figures / "snapshots"

    def read_record(self) -> Record | None:
        """The record, or None where none has been written.

        Raises:
          InputError: it is there and cannot be read.
        """
        try:
            return from_json(self.record.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"{self.record} must be a record of this program; got {error}: delete it or give another workdir"
            ) from error


def finished(record: Record, stop: StopConfig) -> bool:
    """Whether a run has nothing left to do under these limits."""
    total_s = record.clocks.get("total_s", 0.0)
    limits = {"max_epochs": stop.max_epochs, "time_limit_s": stop.time_limit_s}
    return stopping.finished(record.stop_reason, record.epochs, total_s, **limits)


@contextmanager
def claim(config: Config, root: Path) -> Iterator[WorkDir]:
    """Makes the work directory, or recognises it as this run's own, and writes `config.toml`; no other process may enter it.

    Raises:
      InputError: it cannot be written, another process is in it, or it belongs to a run with another configuration.
    """
    workdir = WorkDir(root)
    with ExitStack() as held:
        try:
            for folder in (root, workdir.snapshots):
                folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(locks.held(workdir.lock, partial(_refuse, root)))
            if workdir.config.exists():
                _require_same_run(config, workdir.config)
            write_text(workdir.config, to_toml(config))
        except OSError as error:
            reason = error.strerror or error
            raise InputError(
                f"workdir must be a folder that can be written; got {root} ({reason}): give another with --workdir"
            ) from error
        yield workdir


def _refuse(root: Path, holder: str) -> None:
    raise InputError(
        f"workdir must be worked on by one run at a time; got {root}, which {holder} holds: wait for it, end it, or give "
        "another with --workdir"
    )


def _require_same_run(config: Config, path: Path) -> None:
    try:
        saved = dict(flatten_table(tomllib.loads(path.read_text(encoding="utf-8"))))
    except ValueError as error:
        raise InputError(f"{path} must be TOML; got {error}: mend it or give another --workdir") from error
    if changes := differences(dict(flatten(Config())) | saved, determining(config)):
        raise InputError(
            f"workdir must hold a run of the same configuration; got {path.parent} where {changes}: give another --workdir"
        )


def differences(saved: dict[str, Any], wanted: dict[str, Any]) -> str:
    """What a saved configuration has otherwise than is wanted, in words; empty where nothing is.

    >>> differences({"seed": 0, "devices": [1, 2]}, {"seed": 3, "devices": (1, 2)})
    'seed was 0, now 3'
    """
    saved, wanted = (json.loads(json.dumps(values)) for values in (saved, wanted))  # tuples are lists, as in TOML
    changes = [f"{key} was {saved[key]!r}, now {value!r}" for key, value in wanted.items() if saved[key] != value]
    more = f"; and {len(changes) - 3} more" if len(changes) > 3 else ""
    return "; ".join(changes[:3]) + more

"""A run's work directory: its files by name, and whose run it is."""

import hashlib
import sys
import tomllib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from gmmae.config.schema import Config, defaults, flatten
from gmmae.config.toml import differences, flatten_table
from gmmae.scaling.identity import identity_fields
from gmmae.system import json_files, locks
from gmmae.system.errors import InputError, StorageError
from gmmae.system.files import FAILED, claim_output, remove_empty
from gmmae.training import fingerprint
from gmmae.training.records import Epoch, Progress, Record, first_rows, from_plain, parse_history, read_history
from gmmae.workloads import registry

OTHER_HISTORY = "go on with the version that began the run, or give another workdir"


class WorkDir:
    """Paths below `root`, whether they exist or not."""

    def __init__(self, root: Path):
        self.root = root
        self.config = root / "config.toml"
        self.lock = root / ".lock"
        self.record = root / "record.json"
        self.history = root / "history.csv"
        self.tensorboard = root  # so that TensorBoard calls the run by its folder
        self.checkpoints = root / "checkpoints"
        self.figures = root / "figures"
        self.snapshots = self.figures / "snapshots"

    def read_record(self) -> Record | None:
        """Reads the record; None where none has been written."""
        try:
            return json_files.read(self.record, "be a record of this program", "delete it or give another workdir", from_plain)
        except FileNotFoundError:
            return None

    def read_rows(self, most: int = sys.maxsize) -> list[Epoch]:
        """Reads the first rows of the history, by default all; none where it has not been written."""
        try:
            return read_history(self.history, most)
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{self.history} must be a history of this version; got {error}: put the file back as it was, {OTHER_HISTORY}"
            ) from error

    def read_rows_of(self, progress: Progress) -> list[Epoch]:
        """Reads the rows after which a checkpoint was saved, with which the history must begin."""
        try:
            held = first_rows(self.history, progress.rows)
            count = max(held.count(b"\n") - 1, 0)
            got = "other ones" if count == progress.rows else f"{count}"
        except OSError as error:
            held, got = b"", error.strerror
        if hashlib.sha256(held).hexdigest() != progress.sha256:
            place = self.checkpoints / str(progress.epoch)
            raise InputError(
                f"{self.history} must begin with the {progress.rows} rows after which the checkpoint of epoch {progress.epoch} "
                f"was saved; got {got}: put the file back as it was, remove {place} to go on from an older checkpoint with "
                "fewer rows, or give another workdir"
            )
        try:
            return parse_history(held.decode())
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{self.history} must have the columns that this version writes; got {error}: {OTHER_HISTORY}"
            ) from error

    def read_config(self) -> dict[str, Any]:
        """Reads the values of the saved configuration by key."""
        try:
            return dict(flatten_table(tomllib.loads(self.config.read_text(encoding="utf-8"))))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self.config} must be TOML, the configuration of the run there; got {error}: put it back as it was, or give "
                "another --workdir"
            ) from error

    @property
    def begun(self) -> bool:
        """Whether a run has done something here that would be lost."""
        below_head = self.history.is_file() and self.history.read_bytes().splitlines()[1:]
        return bool(below_head) or any(self.checkpoints.glob("*"))


@contextmanager
def claim(config: Config, root: Path) -> Iterator[WorkDir]:
    """Makes the work directory, or recognises it as this run's own, and holds it.

    A start that fails before it writes the configuration takes away what it has made.
    """
    workdir = WorkDir(root)
    with ExitStack() as held:
        with os_errors_as_input_errors(root):
            new = [path for path in (workdir.checkpoints, root, *root.parents) if not path.exists()]
            held.callback(remove_empty, new)
            root.mkdir(parents=True, exist_ok=True)
            new_lock = not workdir.lock.exists()
            held.enter_context(alone(workdir.lock, "run"))
        if new_lock:
            held.callback(lambda: workdir.config.exists() or workdir.lock.unlink(missing_ok=True))  # while it is held
        if workdir.begun or (workdir.record.exists() and not workdir.config.exists()):
            now, known = identity_fields(config), fingerprint.read(root)
            if known and known.digests["workload file"] == registry.file_hash(config.workload) != "":
                del now["workload"]  # its file may have moved
            if changes := differences(dict(flatten(defaults(config))) | workdir.read_config(), now):
                raise InputError(
                    f"workdir must hold a run of the same configuration; got {root} where {changes}: give another --workdir"
                )
        yield workdir


@contextmanager
def os_errors_as_input_errors(root: Path) -> Iterator[None]:
    """Turns an `OSError` into an `InputError`, or a `StorageError` where the disk is full or failed."""
    claim_output(root, None, "workdir")
    try:
        yield
    except OSError as error:
        if error.errno in FAILED:
            with storage(root):
                raise
        raise InputError(
            f"workdir must be a folder that can be written; got {root} ({error.strerror or error}): give another with --workdir"
        ) from error


@contextmanager
def storage(root: Path) -> Iterator[None]:
    """Turns an `OSError` into a `StorageError` about the work directory and the file."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"workdir must stay a folder that can be written; writing {error.filename or root} failed "
            f"({error.strerror or error}): see to it, and run the same command again to go on from the last checkpoint"
        ) from error


def alone(lock: Path, work: str) -> AbstractContextManager[None]:
    """Holds the lock of a work directory, for one run, sweep or plan, as `work` calls it, at a time."""

    def refuse(holder: str) -> None:
        raise InputError(
            f"workdir must be worked on by one {work} at a time; got {lock.parent}, which {holder} holds: wait for it, end it, "
            "or give another with --workdir"
        )

    return locks.held(lock, refuse)


def begins_with(config: Config) -> dict[str, str]:
    """What runs that are compared must share beside their data, by name: the best parameters of `init_from` as they are now."""
    record = WorkDir(Path(config.init_from)).read_record() if config.init_from else None
    return {"parameters of init_from": f"epoch {record.best_epoch} of run {record.run_id}"} if record else {}

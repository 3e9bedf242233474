"""Damages to the files of a checkpoint; each one makes it unreadable."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class UnmatchedError(Exception):
    """The injector itself is out of date: what it means to strike is not there."""


class Damage(NamedTuple):
    """What is done to every file or folder below a checkpoint that matches a pattern."""

    pattern: str
    harm: Callable[[Path], None]


def _empty(file: Path) -> None:
    os.truncate(file, 0)


def _halve(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


ITEMS = {
    "array data": "arrays/ocdbt.process_*/d/*",
    "array index": "arrays/d/*",
    "array manifest": "arrays/manifest.ocdbt",
    "array metadata": "arrays/_METADATA",
    "progress": "progress/metadata",
}
DAMAGES = (
    {f"{item} emptied": Damage(pattern, _empty) for item, pattern in ITEMS.items()}
    | {f"{item} cut to half": Damage(pattern, _halve) for item, pattern in ITEMS.items()}
    | {f"{folder} removed": Damage(folder, shutil.rmtree) for folder in ("arrays", "progress")}
)
"""The damages, by name. Orbax's other files are no part of it: damage to its markers and to its own metadata harms nothing."""


def apply(name: str, checkpoint: Path) -> None:
    """Damages a checkpoint.

    Raises:
      UnmatchedError: it has nothing that this damage could harm.
    """
    damage = DAMAGES[name]
    found = [path for path in checkpoint.glob(damage.pattern) if path.is_dir() or path.stat().st_size > 0]
    if not found:
        raise UnmatchedError(f"{name}: a checkpoint must have {damage.pattern}; got {_contents(checkpoint)}")
    for path in found:
        damage.harm(path)


def rewrite(checkpoint: Path, array: str, value: float) -> None:
    """Gives an array of a checkpoint, such as `best.params.heads.bias`, another value throughout.

    To a reader of the files everything is in order, as after changed bytes, which have no checksum of their own.
    """
    import numpy as np
    import tensorstore

    store = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{checkpoint}/arrays/"}, "path": f"{array}/"}
    opened = tensorstore.open({"driver": "zarr", "kvstore": store}).result()
    opened.write(np.full(opened.shape, value, opened.dtype.numpy_dtype)).result()


def _contents(checkpoint: Path) -> str:
    return ", ".join(sorted(str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file()))

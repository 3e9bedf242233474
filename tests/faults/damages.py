"""Damages to a run's files: to a checkpoint, which each one makes unreadable, and to its history."""

import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tests.small import checkpoint_epochs


def _truncate(checkpoint: Path, pattern: str, divisor: int | None = None):
    """Cuts every file that matches to a fraction, or empties it."""
    found = [path for path in checkpoint.glob(pattern) if path.stat().st_size > 0]
    assert found, f"a checkpoint must have {pattern}: the damage is out of date"
    for file in found:
        os.truncate(file, file.stat().st_size // divisor if divisor else 0)


def _remove(checkpoint: Path, name: str):
    shutil.rmtree(checkpoint / name)


def rewrite(checkpoint: Path, array: str, value: float):
    """Gives an array of a checkpoint, such as `best.params.heads.bias`, another value throughout.

    To a reader of the files everything is in order, as after changed bytes, which have no checksum of their own.
    """
    import numpy as np
    import tensorstore

    store = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{checkpoint}/arrays/"}, "path": f"{array}/"}
    opened = tensorstore.open({"driver": "zarr", "kvstore": store}).result()
    opened.write(np.full(opened.shape, value, opened.dtype.numpy_dtype)).result()


ITEMS = {
    "array data": "arrays/ocdbt.process_*/d/*",
    "array index": "arrays/d/*",
    "array manifest": "arrays/manifest.ocdbt",
    "array metadata": "arrays/_METADATA",
    "progress": "progress/metadata",
}
DAMAGES: Mapping[str, Callable[[Path], object]] = (
    {f"{item} emptied": partial(_truncate, pattern=pattern) for item, pattern in ITEMS.items()}
    | {f"{item} cut to half": partial(_truncate, pattern=pattern, divisor=2) for item, pattern in ITEMS.items()}
    | {f"{name} removed": partial(_remove, name=name) for name in ("arrays", "progress")}
)
"""The damages, by name. Orbax's other files are no part of it: damage to its markers and to its own metadata harms nothing."""


def damage_newest(workdir: Path):
    """Makes the newest checkpoint of a run unreadable."""
    DAMAGES["array data cut to half"](workdir / "checkpoints" / str(checkpoint_epochs(workdir)[-1]))


def _edit(history: Path):
    history.write_bytes(history.read_bytes().replace(b"0.", b"1.", 1))


HISTORY: Mapping[str, Callable[[Path], object]] = {
    "history.csv cut to half": lambda history: os.truncate(history, history.stat().st_size // 2),
    "history.csv edited": _edit,
    "history.csv missing": Path.unlink,
}

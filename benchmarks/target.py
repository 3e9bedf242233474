"""Measures the time to the target loss of `train.py` and of a reference implementation.

Both have the same data, initial parameters, order of samples and stopping rule. One clock counts training and validation
without compilation. The other one is the wall time from the start of Python to its end. gmmae also makes its data and writes
checkpoints, TensorBoard events and figures. The reference implementation reads the data and writes nothing.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.child import ROOT
from benchmarks.peers.backends import BACKENDS
from benchmarks.peers.workers import Worker
from gmmae.plotting.tables import Table, seconds


def measure(config: str, reference: str, folder: Path, rounds: int, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Runs gmmae and the reference implementation, one after the other."""
    return {
        "config": config,
        "reference": reference,
        "runs": [run for _ in range(rounds) for run in (ours(config), peer(reference, folder, settings))],
    }


def ours(config: str) -> dict[str, Any]:
    """Runs `train.py` once."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "run"
        command = [sys.executable, "train.py", "--config", config, "--workdir", str(workdir)]
        environ = {**os.environ, "JAX_NUM_CPU_DEVICES": str(len(os.sched_getaffinity(0)))}  # as `make train`
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True, env=environ)
        wall_s = time.perf_counter() - began
        record = json.loads((workdir / "record.json").read_text())
    spent_s = record["clocks"]["train_s"] + record["clocks"]["eval_s"]
    reached = record["time_to_target_s"] is not None
    return _run("train.py", record["epochs"], record["final_val_loss"], spent_s, reached, wall_s)


def peer(name: str, folder: Path, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Runs a reference implementation once, with its problem in the folder."""
    began = time.perf_counter()
    worker = Worker(name, folder, settings=settings)
    try:
        said = worker.ask("target")
    finally:
        worker.close()
    epochs = said["epoch_s"]
    spent_s = without_compiling(epochs)
    return _run(BACKENDS[name].title, len(epochs), said["val_loss"], spent_s, said["reached"], time.perf_counter() - began)


def without_compiling(epochs: list[float]) -> float:
    """Returns the seconds of all epochs without compilation, which some frameworks do in their first epoch.

    >>> without_compiling([9.0, 2.0, 3.0, 2.0]), without_compiling([5.0])
    (9.0, 5.0)
    """
    return sum(epochs) - max(0.0, epochs[0] - median(epochs[1:] or epochs))


def _run(title: str, epochs: int, val_loss: float, spent_s: float, reached: bool, wall_s: float) -> dict[str, Any]:
    """Returns the result of a run. `to_target_s` is None if it missed the target."""
    return {
        "title": title,
        "epochs": epochs,
        "val_loss": val_loss,
        "to_target_s": spent_s if reached else None,
        "epoch_s": spent_s / epochs,
        "wall_s": wall_s,
    }


def table(found: dict[str, Any]) -> Table:
    """Returns the table of runs and their ratios."""
    columns = ("run", "epochs", "validation loss", "training and validation, s", "an epoch, s", "wall, s")
    rows = tuple(
        (
            run["title"],
            str(run["epochs"]),
            f"{run['val_loss']:.6f}",
            seconds(math.inf if run["to_target_s"] is None else run["to_target_s"]),
            seconds(run["epoch_s"]),
            seconds(run["wall_s"]),
        )
        for run in found["runs"]
    )
    ours, theirs = found["runs"][::2], found["runs"][1::2]
    words = {"to_target_s": "to the target", "epoch_s": "an epoch", "wall_s": "wall"}
    ratios = [f"{word} {_ratio(theirs, ours, key)}" for key, word in words.items()]
    notes = (
        f"Reference over ours, medians: {', '.join(ratios)}.",
        "Epochs may differ: rounding parts the paths (docs/measurements/equality.md).",
    )
    return Table("target", f"Time to the target, {found['config']}", columns, rows, notes)


def _ratio(theirs: list[dict[str, Any]], ours: list[dict[str, Any]], key: str) -> str:
    above, below = ([run[key] for run in runs] for runs in (theirs, ours))
    return "unknown, a run missed" if None in above + below else f"{median(above) / median(below):.2f}"

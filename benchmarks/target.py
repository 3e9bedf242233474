"""Time to the target loss end to end: `train.py` against a twin, with the same data, start, order of samples and rule to stop.

Two clocks: training and validation, without compilation; and the wall, from the start of Python to its end. Ours writes its
checkpoints, TensorBoard events and figures meanwhile and makes its data; the twin reads the data and writes nothing.
"""

import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.child import ROOT
from benchmarks.peers.fleet import Worker
from benchmarks.peers.roster import ROSTER
from gmmae.tables import Table, seconds


def measure(config: str, twin: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Runs of ours and the twin, one after the other."""
    return {"config": config, "twin": twin, "runs": [run for _ in range(rounds) for run in (ours(config), peer(twin, folder))]}


def ours(config: str) -> dict[str, Any]:
    """One run of `train.py`."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "run"
        command = [sys.executable, "train.py", "--config", config, "--workdir", str(workdir), "--parallel.devices", "1"]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        wall_s = time.perf_counter() - began
        record = json.loads((workdir / "record.json").read_text())
    to_target_s = math.inf if record["time_to_target_s"] is None else record["time_to_target_s"]
    return _run("train.py", record["epochs"], record["final_val_loss"], to_target_s, wall_s)


def peer(name: str, folder: Path) -> dict[str, Any]:
    """One run of a twin, its problem in the folder."""
    began = time.perf_counter()
    worker = Worker(name, folder)
    try:
        said = worker.ask("target")
    finally:
        worker.close()
    epochs = said["epoch_s"]
    # Frameworks that compile when they first run do so in the first epoch.
    compile_s = max(0.0, epochs[0] - median(epochs[1:] or epochs))
    to_target_s = sum(epochs) - compile_s if said["reached"] else math.inf
    return _run(ROSTER[name].title, len(epochs), said["val_loss"], to_target_s, time.perf_counter() - began)


def _run(title: str, epochs: int, val_loss: float, to_target_s: float, wall_s: float) -> dict[str, Any]:
    return {
        "title": title,
        "epochs": epochs,
        "val_loss": val_loss,
        "to_target_s": to_target_s,
        "wall_s": wall_s,
        "epoch_s": to_target_s / epochs,
    }


def table(found: dict[str, Any]) -> Table:
    columns = ("run", "epochs", "validation loss", "training and validation, s", "an epoch, s", "wall, s")
    rows = tuple(
        (
            run["title"],
            str(run["epochs"]),
            f"{run['val_loss']:.6f}",
            seconds(run["to_target_s"]),
            seconds(run["epoch_s"]),
            seconds(run["wall_s"]),
        )
        for run in found["runs"]
    )
    ours, theirs = found["runs"][::2], found["runs"][1::2]
    ratios = {
        key: median(b[key] for b in theirs) / median(a[key] for a in ours) for key in ("to_target_s", "epoch_s", "wall_s")
    }
    notes = (
        f"Twin over ours: to the target {ratios['to_target_s']:.2f}, an epoch {ratios['epoch_s']:.2f}, "
        f"wall {ratios['wall_s']:.2f}.",
        "Epochs may differ: rounding parts the paths (MEASUREMENT.md).",
    )
    return Table("target", f"Time to the target, {found['config']}", columns, rows, notes)

"""Times one job in gmmae, PyTorch, Horovod and Keras to one loss, with equal weights, data, order, optimiser and stopping rule.

    python -m experiments.frameworks --out DIR [--turns 2] [--only torch-ddp horovod …] [--environments .venv-frameworks]

`make study-frameworks` makes the environments first. The implementations of `benchmarks.peers` train
`experiments/configs/frameworks.toml`: the quickstart's model on half its data to a loss of 0.00165. To the quickstart's own
0.001 PyTorch takes two minutes on two cores.

One process uses both cores. Two processes have a core each, with strong scaling (the batch of 16 divided) or weak scaling (a
batch of 32, the same learning rate). Runs alternate and never overlap. All batches divide here. `experiments.last_batches`
measures batches that do not, and `experiments.needs` counts the code that each framework needs. This program runs both first.

DIR gets frameworks.csv, a row a run, last_batches.csv and needs.csv, and the tables are printed. Rows in those files are not
measured again. Seconds are those of `benchmarks.target`: training and validation without compilation, and the wall time from
the start of Python to the target. Compilation is the excess of the first epoch over the median one. `others` is the number of
cores that other work used meanwhile. It runs on CPUs only.
"""

import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.child import ask
from benchmarks.hardware import busy_s
from benchmarks.options import Parser, guarded
from benchmarks.peers.backends import BACKENDS
from benchmarks.peers.workers import Worker
from benchmarks.target import without_compiling
from experiments import environments, last_batches, needs, tables
from experiments.outcomes import middle
from gmmae.sweep.display import grid_table
from gmmae.system.provenance import git_commit, machine

CONFIG = "experiments/configs/frameworks.toml"
BATCH = 16
"""The configuration's batch, which strong scaling divides."""
CHECKED = 12
"""Step whose loss is compared, the last that the first epoch has with either batch."""


class Arm(NamedTuple):
    """Relation of the batch to the number of processes."""

    name: str
    processes: int
    batch: int


ARMS = (Arm("one", 1, BATCH), Arm("strong", 2, BATCH), Arm("weak", 2, 2 * BATCH))

FRAMEWORKS = {
    "gmmae": {1: "ours", 2: "ours-2"},
    "PyTorch": {1: "torch", 2: "torch-ddp"},
    "PyTorch, torch.compile": {1: "torch-compile", 2: "torch-ddp-compile"},
    "Horovod with PyTorch": {2: "horovod"},
    "Keras on TensorFlow": {1: "keras", 2: "keras-2"},
}
"""Backends of `benchmarks.peers.backends` by number of processes. In one process Horovod is PyTorch."""


class Run(NamedTuple):
    """Run to be made."""

    framework: str
    peer: str
    scaling: Arm


def runs(only: Sequence[str] = ()) -> list[Run]:
    """Returns the runs of a turn, gmmae's first. `only` are names of backends."""
    found = [
        Run(framework, peers[scaling.processes], scaling)
        for scaling in ARMS
        for framework, peers in FRAMEWORKS.items()
        if scaling.processes in peers
    ]
    return [run for run in found if not only or run.peer in only]


def run(peer: str, folder: Path, python: str) -> dict[str, Any]:
    """Runs a backend to the target, with the problem in the folder."""
    began, busy = time.perf_counter(), busy_s()
    worker = Worker(peer, folder, python)
    try:
        said = worker.ask("target")
        wall_s = time.perf_counter() - began
        others = (busy_s() - busy - worker.cpu_s()) / wall_s
        worker.ask("reset")
        samples = json.loads((folder / "samples.json").read_text())
        losses = worker.ask("losses", samples=samples, epoch=1)["losses"]
        facts = worker.ask("facts")
    finally:
        worker.close()
    kept = ("jax", "torch", "horovod", "keras", "tensorflow")
    return {
        "reached": int(said["reached"]),
        "epochs": len(said["epoch_s"]),
        "val_loss": said["val_loss"],
        "train_s": round(without_compiling(said["epoch_s"]), 3),
        "epoch_s": round(median(said["epoch_s"]), 4),
        "wall_s": round(wall_s, 2),
        f"loss_{CHECKED}": f"{losses[CHECKED - 1]:.9g}",
        "threads": facts["threads"],
        "others": round(others, 2),
        "versions": " ".join(f"{key} {facts['versions'][key]}" for key in kept if key in facts["versions"]),
    }


def measure(file: Path, turns: int, only: Sequence[str], pythons: Mapping[str, str]) -> list[dict[str, Any]]:
    """Makes the missing runs of the backends that have a Python turn by turn, and writes each at its end."""
    rows: list[dict[str, Any]] = [*tables.read(file)] if file.exists() else []
    done = {(row["framework"], row["scaling"], int(row["turn"])) for row in rows}
    about = {"machine": machine("cpu"), "git_commit": git_commit()}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns):
            for framework, peer, scaling in runs(only):
                if (framework, scaling.name, turn) in done or peer not in pythons:
                    continue
                key = {"framework": framework, "scaling": scaling.name, "processes": scaling.processes, "batch": scaling.batch}
                row = {**key, "turn": turn, **run(peer, problem(Path(folder), scaling.batch), pythons[peer]), **about}
                print(" ".join(f"{name} {value}" for name, value in list(row.items())[:11]), flush=True)
                rows.append(row)
                tables.write(file, rows)
    return rows


def problem(folder: Path, batch: int) -> Path:
    """Returns the folder of the job with that batch, and writes it if it is missing."""
    place = folder / str(batch)
    if not place.exists():
        place.mkdir()
        source = {"name": CONFIG, "changes": {"optim__batch_size": batch}}
        found = ask("benchmarks.peers.gmmae_backend", json.dumps(source), str(place))
        (place / "samples.json").write_text(json.dumps(found["samples"]))
    return place


def summary(rows: Sequence[Mapping[str, str]]) -> list[tuple[str, ...]]:
    """Returns the head and a line for each framework and strategy: medians, and ratios to gmmae's of the same turn."""
    by: dict[tuple[str, str], dict[int, Mapping[str, str]]] = defaultdict(dict)
    for row in rows:
        by[row["scaling"], row["framework"]][int(row["turn"])] = row
    head = ("processes, batch", "framework", "reached", "epochs", "training and validation, s", "an epoch, s", "wall, s")
    lines: list[tuple[str, ...]] = [(*head, "an epoch, times gmmae's", f"loss of step {CHECKED} off gmmae's")]
    for scaling in ARMS:
        own = by.get((scaling.name, "gmmae"), {})
        for framework in FRAMEWORKS:
            of = by.get((scaling.name, framework))
            if not of:
                continue
            both = [turn for turn in of if turn in own]
            ratios = [float(of[turn]["epoch_s"]) / float(own[turn]["epoch_s"]) for turn in both]
            loss = f"loss_{CHECKED}"
            off = [abs(float(of[turn][loss]) / float(own[turn][loss]) - 1) for turn in both]
            each = list(of.values())
            came = [row for row in each if row["reached"] == "1"]
            label = f"{scaling.processes}, {scaling.batch}" + (f" ({scaling.name})" if scaling.processes > 1 else "")
            lines.append((
                label,
                framework,
                f"{len(came)} of {len(each)}",
                middle([float(row["epochs"]) for row in came], ".0f"),
                middle([float(row["train_s"]) for row in came], ".1f"),
                middle([float(row["epoch_s"]) for row in each], ".2f"),
                middle([float(row["wall_s"]) for row in came], ".0f"),
                middle(ratios, ".2f"),
                f"{max(off):.0e}" if off and framework != "gmmae" else "",
            ))  # fmt: skip
    return lines


SUMMARIES = {"frameworks": summary, "last_batches": last_batches.summary, "needs": needs.summary}
"""Tables by the names of their files."""


def main() -> None:
    """Measures the frameworks and prints the tables."""
    parser = Parser(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=2, help="how often each run is made")
    parser.add_argument("--only", nargs="+", choices=sorted({run.peer for run in runs()}), default=[], help="these peers")
    parser.add_argument("--environments", type=Path, default=environments.FOLDER, help="what make has installed")
    args = parser.parse_args()
    args.environments = args.environments.absolute()
    if (cores := len(os.sched_getaffinity(0))) < 2:
        raise SystemExit(f"two processes need a core each; got {cores} core: take a machine with two")
    wanted = {run.peer for run in runs(args.only)}
    there = environments.pythons(wanted, args.environments)
    for peer in sorted(wanted - there.keys()):
        print(f"{BACKENDS[peer].title}: left out, it has no environment in {args.environments}: make study-frameworks")
    os.environ.update(CUDA_VISIBLE_DEVICES="", JAX_PLATFORMS="cpu")  # also where there is a GPU, which one process would take
    last_batches.measure(args.out / "last_batches.csv", there)
    needs.measure(args.out / "needs.csv", there)
    measure(args.out / "frameworks.csv", args.turns, args.only, there)
    for name, summarised in SUMMARIES.items():
        if (file := args.out / f"{name}.csv").exists():
            print(grid_table(summarised(tables.read(file))), "\n")


if __name__ == "__main__":
    guarded(main)

"""Compares plans made on one core with the measured times of two processes on two cores.

    python -m experiments.real_times --workdir DIR [--workloads images …] [--scaling strong …] [--seed 0]

Each process has one core of this machine for itself. A plan is made on the first core alone. A cluster file adds two facts
that one core cannot measure. One is the latency and bandwidth of an all-reduce between two processes (Gloo, over the
loopback). The other is a step of the base batch while the other core does the same without communication. Then each
strategy runs on both cores to its target. Nothing else should run on the machine.

It resumes an interrupted call and writes results/plan/real.csv. Workloads without their data are left out.
"""

import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.child import ROOT
from benchmarks.many_processes import ask
from benchmarks.options import Parser, guarded
from benchmarks.strong_scaling import TWO, Kind, step_s, train
from experiments import tables
from gmmae.config.toml import find
from gmmae.sweep.display import grid_table
from gmmae.system.stop_reasons import TARGET_REACHED
from gmmae.training.records import Record, from_json
from gmmae.workloads.configuration import read_config

OUT = ROOT / "results" / "plan" / "real.csv"
DATA = ROOT.parent / "shared" / "data"
EACH = Kind("the base batch, on each core by itself", 2)
EPOCHS = 4
"""Epochs of the simultaneous runs, of which the first is not counted."""
ARMS = ("strong", "weak", "linear-warmup")


class Job(NamedTuple):
    """Workload: its configuration by name or file, the changed fields, and the data that it needs."""

    config: str
    options: str = ""
    needs: Path | None = None


GLANDS, NODULES = DATA / "adrenal_shapes.npz", DATA / "luna16_nodules"
JOBS = {
    "images": Job("images.toml"),
    "nodules_synthetic": Job("quickstart", "--stop.target 0.0014 --stop.max-epochs 100"),
    "segmentation": Job(  # a rate that does not change, as the law of the steps wants it
        "unet_quick",
        "--optim.warmup-epochs 0 --optim.cosine-epochs none --optim.learning-rate 0.001 --stop.target 0.8 --stop.max-epochs 60",
    ),
    "adrenal": Job("adrenal_shapes", f"--data.root {shlex.quote(str(GLANDS))} --stop.max-epochs 100", GLANDS),
    "nodules_real": Job("luna16_nodules", f"--data.root {shlex.quote(str(NODULES))}", NODULES),
}


def example(folder: Path) -> Path:
    """Returns the example of docs/workload.md as a file."""
    text = (ROOT / "docs" / "workload.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    (folder / "images.py").write_text(text, encoding="utf-8")
    return folder / "images.py"


def prepare(workdir: Path) -> None:
    """Writes the files of the example of docs/workload.md."""
    workdir.mkdir(parents=True, exist_ok=True)
    own = f'workload = "{example(workdir)}"\n[stop]\ntarget = 0.08\nmax_epochs = 400\n'
    (workdir / "images.toml").write_text(own, encoding="utf-8")


def links(times: Mapping[int, float]) -> dict[str, float]:
    """Returns α and β of two devices from the seconds of a small and a large all-reduce: 2 α + bytes / β each.

    >>> links({0: 2e-3, 8_000_000: 10e-3})
    {'alpha_intra_s': 0.001, 'beta_intra_bytes_per_s': 1000000000.0}
    """
    (few, short), (many, long) = sorted(times.items())
    beta = (many - few) / max(long - short, 1e-9)
    return {"alpha_intra_s": max(short - few / beta, 0) / 2, "beta_intra_bytes_per_s": beta}


def cluster(path: Path, reduced: Mapping[int, float], reference_s: float, batch: int) -> Path:
    """Writes a cluster file of two cores of this machine."""
    between = links(reduced)
    values = {
        "name": "two cores of this machine",
        "device": "a core",
        "devices_per_node": 2,
        **between,
        **{key.replace("intra", "inter"): value for key, value in between.items()},
        "reference_step_s": reference_s,
        "reference_batch": batch,
        "collective": "ring",
        "sources": "measured here",
    }
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()), encoding="utf-8")
    return path


def planned(job: Job, config: str, clusters: Path, folder: Path, core: int, seed: int) -> list[dict[str, Any]]:
    """Returns the predictions of a plan made on one core."""
    words = ["plan", "--config", config, *shlex.split(job.options), "--seed", str(seed), "--log.no-tensorboard"]
    words += ["--clusters", str(clusters), "--devices", "1", "2", "--workdir", str(folder)]
    program = str(Path(sys.executable).with_name("gmmae"))
    subprocess.run(["taskset", "--cpu-list", str(core), program, *words], cwd=ROOT, check=True)
    [found] = json.loads((folder / "plan.json").read_text(encoding="utf-8"))["clusters"].values()
    return found["cells"]


def measured(name: str, strategies: Iterable[str], workdir: Path, seed: int) -> list[dict[str, Any]]:
    """Returns a row for each strategy of a workload on two cores: its prediction and its result."""
    job, cores, folder = JOBS[name], sorted(os.sched_getaffinity(0))[:2], workdir / f"{name}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    config = str(workdir / job.config) if job.config.endswith(".toml") else job.config
    options = (*shlex.split(job.options), "--seed", str(seed))
    here = folder / "cluster.toml"
    if not here.exists():
        some = (*options, "--stop.target", "none", "--stop.max-epochs", str(EPOCHS))
        reduced = {int(size): seconds for size, seconds in ask(2, "reduce", cores=cores).items()}
        side_by_side = step_s(train(EACH, config, folder / "each", cores, some))
        cluster(here, reduced, side_by_side, read_config(find(config)).optim.batch_size)
    said = {
        cell["scaling"]: cell for cell in planned(job, config, here, folder / "plan", cores[0], seed) if cell["devices"] == 2
    }
    rows = []
    for scaling in strategies:
        place = folder / scaling / "run"
        if not (place / "record.json").exists():
            train(TWO, config, place.parent, cores, (*options, "--scaling", scaling))
        record = from_json((place / "record.json").read_text(encoding="utf-8"))
        rows.append(row(name, scaling, record, said[scaling]))
        print(" ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    return rows


def row(name: str, scaling: str, record: Record, said: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a result beside its prediction. Seconds are of training and validation."""
    return {
        "workload": name,
        "scaling": scaling,
        "devices": 2,
        "batch": record.global_batch,
        "seed": record.seed,
        "outcome": record.stop_reason,
        "steps": record.epochs * record.steps_per_epoch,
        "said_steps": round(said["steps"]),
        "seconds": round(record.time_to_target_s or math.nan, 3),
        "said_s": round(said["seconds"], 3),
        "said_low_s": round(said["seconds_low"], 3),
        "said_high_s": round(said["seconds_high"], 3),
        "said_failure": round(said["probability_of_failure"], 3),
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Returns the error of the times and of their factors, over the runs that reached the target."""
    arrived = [one for one in rows if one["outcome"] == TARGET_REACHED]

    said = {key: np.array([float(one[key]) for one in arrived]) for key in ("seconds", "said_s", "steps", "said_steps")}
    times, steps = np.log(said["said_s"] / said["seconds"]), np.log(said["said_steps"] / said["steps"])
    held = [float(one["said_low_s"]) <= float(one["seconds"]) <= float(one["said_high_s"]) for one in arrived]
    errors = {"time to the target": times, "steps": steps, "time of a step, validation with it": times - steps}
    return [
        ("two cores of this machine", "median / worst"),
        ("runs that arrived", f"{len(arrived)} of {len(rows)}"),
        *(
            (f"{what}: abs. log error", f"{np.median(abs(found)):.3f} / {max(abs(found)):.3f}")
            for what, found in errors.items()
        ),
        ("80 % intervals that hold the time", f"{sum(held)} of {len(held)}"),
    ]


def main() -> None:
    """Measures the workloads and writes the table."""
    parser = Parser(__doc__)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--workloads", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--scaling", nargs="+", default=list(ARMS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        parser.error(f"two cores must be there; got {len(os.sched_getaffinity(0))}")
    workdir = args.workdir.resolve()
    prepare(workdir)
    rows = []
    for name in args.workloads:
        needs = JOBS[name].needs
        if needs and not needs.exists():
            print(f"{name} is left out: {needs} is not there")
            continue
        rows += measured(name, args.scaling, workdir, args.seed)
        tables.write(args.out, rows)
    print(grid_table(summary(rows)))


if __name__ == "__main__":
    guarded(main)

"""Measures how the size of the data set changes steps, epochs and failures of each strategy.

    python -m experiments.size --workload images --out DIR [--sizes 240 480 …] [--seeds 0 1 2]
    python -m experiments.size --workload adrenal --data adrenal_shapes.npz --out DIR
    python -m experiments.size --workload slices --data FOLDER --out DIR

All runs take place in this process, one after the other, to the same target on a validation set of one size. For each number
of training samples the base batch B and a quarter of it run at the base learning rate. For several n, weak scaling, the
linear rule with and without warmup, and the square-root rule run. The runs at the base learning rate give Smin and Bn
of S = Smin (1 + Bn / B). Weak scaling is faster than strong if a step's overhead relative to a batch's samples is above B /
Bn.

DIR gets WORKLOAD.csv, a row a run, and the table is printed. Runs in that file are not repeated. The shapes are those of
AdrenalMNIST3D (Yang et al., Scientific Data 2023), an array `volumes` of 1,584 × 32³, averaged over 2³ voxels. The slices are
those of the nodules in FOLDER, as configs/unet.toml reads them, for a small U-Net.
"""

import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import curve_fit

from benchmarks.child import ROOT
from benchmarks.options import Parser, guarded
from experiments import slices, tables
from gmmae.config.schema import Config, changed
from gmmae.plotting.tables import text_table
from gmmae.system.errors import InputError
from gmmae.system.null_object import IDLE
from gmmae.system.stop_reasons import INTERRUPTED, TARGET_REACHED
from gmmae.training import fingerprint
from gmmae.training.records import epoch_ends, read_history
from gmmae.training.stopping import StopMonitor
from gmmae.workloads.configuration import configure

ARMS = ("weak", "linear", "linear-warmup", "sqrt")
DEVICES = (2, 4, 8, 16, 32)
QUARTER = "quarter"
"""A quarter of the base batch, on one device."""


class Data(NamedTuple):
    """Workload whose training set may have any size.

    Attributes:
      sizes: numbers of training samples.
      devices: numbers of devices of the strategies.
      patience: samples without an improvement of the loss by 1 % after which a run is stopped early (0: never).
    """

    sizes: tuple[int, ...]
    devices: tuple[int, ...] = DEVICES
    patience: int = 0

    def config(self, name: str, samples: int, folder: Path, data: Path | None = None) -> Config:
        """Returns a configuration with `samples` training samples and a fixed number of validation samples.

        Args:
          name: the workload's name.
          samples: the number of training samples.
          folder: for files that the runs need.
          data: the file of the shapes, or the folder of the nodules.

        Raises:
          InputError: the workload needs data, and has none.
        """
        if name == "images":
            options = {"images": samples * 4 // 3, "noise": 1.0, "optim__learning_rate": 0.002, "stop__target": 0.3}
            return configure("", workload=str(example(folder)), stop__max_epochs=800, **options)
        patience = max(3, math.ceil(self.patience / samples))
        stop = {"stop__max_epochs": 800, "stop__patience_epochs": patience, "stop__collapse_epochs": 20}
        if name == "nodules_synthetic":
            options = {"data__samples": samples + 128, "data__validation": 128, "stop__target": 0.0014}
        elif data is None:
            raise InputError(f"--workload {name} needs --data, the file of the shapes or the folder of the nodules; got none")
        elif name == "slices":
            options = {"data__root": str(data.resolve()), "data__shape": 32, "data__jitter": 6, "model__features": (8, 16, 32)}
            options |= {"slices": samples, "optim__decay_epochs": (), "optim__scaling_warmup_epochs": 5, "stop__target": 0.74}
            return configure("unet", workload=slices.__file__, **options, **stop)
        else:
            file = some_shapes(data, samples + 256, folder)
            options = {"data__source": "cubes", "data__root": str(file), "data__window": (0, 255)}
            options |= {"data__validation": 256, "stop__target": 0.018}
        return configure("quickstart", parallel__micro_batch_size=32, **options, **stop)


def example(folder: Path) -> Path:
    """Returns the example of docs/workload.md as a file."""
    text = (ROOT / "docs" / "workload.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    (folder / "images.py").write_text(text, encoding="utf-8")
    return folder / "images.py"


def some_shapes(file: Path, count: int, folder: Path) -> Path:
    """Writes a file of `count` shapes, always the same ones, with half as many voxels along each axis."""
    with np.load(file) as arrays:
        volumes = arrays["volumes"]
    taken = volumes[np.random.default_rng(0).permutation(len(volumes))[:count]]
    edge = taken.shape[1] // 2
    out = folder / f"shapes_{count}.npz"
    np.savez(out, volumes=taken.reshape(-1, edge, 2, edge, 2, edge, 2).mean((2, 4, 6)).round().astype(np.int16))
    return out


DATA = {
    "images": Data((480, 960, 1920, 3840)),
    "nodules_synthetic": Data((256, 512, 1024, 2048, 4096, 16_384), (4, 16), 23_000),
    "adrenal": Data((200, 500, 1188), (4, 16), 23_000),
    "slices": Data((500, 1500, 4480), (4, 16), 46_000),
}


def paths(config: Config, seeds: Sequence[int], numbers: Sequence[int] = DEVICES) -> Iterator[tuple[str, int, Config]]:
    """Yields strategy, devices and configuration of each run without batches above the number of samples.

    Args:
      config: of one size.
      seeds: of parameters and order.
      numbers: of devices.
    """
    samples = fingerprint.load(config).samples
    for seed in seeds:
        one = changed(config, seed=seed, log__tensorboard=False)
        yield "strong", 1, one
        yield QUARTER, 1, changed(one, optim__batch_size=config.optim.batch_size // 4)
        for devices in numbers:
            if devices * config.optim.batch_size <= samples:
                yield from (
                    (scaling, devices, changed(one, scaling=scaling, parallel__simulate_devices=devices)) for scaling in ARMS
                )


def trained(config: Config) -> dict[str, Any]:
    """Returns the result of a run."""
    from gmmae.training.loop import run

    with tempfile.TemporaryDirectory() as folder:
        record = run(config, Path(folder) / "run", IDLE)
        rows = epoch_ends(read_history(Path(folder) / "run" / "history.csv"))
    if record.stop_reason in INTERRUPTED:
        raise SystemExit(f"ended by {record.stop_reason}; the same command goes on with this run")
    return {
        "batch": record.global_batch,
        "learning_rate": record.learning_rate,
        "outcome": record.stop_reason,
        "epochs": record.epochs,
        "steps": record.epochs * record.steps_per_epoch,
        "crossing": round(step if (step := StopMonitor(config.stop, rows).target_step()) is not None else math.inf, 1),
        "train_s": round(record.clocks["train_s"], 3),
        "machine": record.machine,
        "git_commit": record.git_commit,
    }


def summary(rows: Sequence[Mapping[str, str]]) -> list[tuple[str, ...]]:
    """Returns a row for each size: Smin and Bn, medians over seeds, and the first failures of each strategy."""
    by_size: dict[int, list[Mapping[str, str]]] = defaultdict(list)
    for row in rows:
        by_size[int(row["samples"])].append(row)
    found = [("samples", "steps at B", "epochs", "Smin", "Bn", "B / Bn", *(f"{scaling} misses" for scaling in ARMS))]
    for size, of in sorted(by_size.items()):
        base = [row for row in of if row["scaling"] == "strong"]
        laws = [law for seed in {row["seed"] for row in of} if (law := _law([row for row in of if row["seed"] == seed]))]
        middle = [float(np.median(numbers)) for numbers in zip(*laws, strict=True)] if laws else [math.nan, math.nan]
        batch = int(base[0]["batch"])
        found.append((
            str(size),
            f"{np.median([float(row['crossing']) for row in base]):.0f}",
            f"{np.median([int(row['epochs']) for row in base]):.0f}",
            f"{middle[0]:.0f}",
            f"{middle[1]:.1f}",
            f"{batch / middle[1]:.2f}",
            *(_misses([row for row in of if row["scaling"] == scaling]) for scaling in ARMS),
        ))  # fmt: skip
    return found


def turning(strong: float, weak: float, devices: int) -> float:
    """Returns the crossover ratio of the overhead to the base batch's samples, above which weak scaling is faster.

    A strong step takes r + 1 / n of the samples' time, a weak one r + 1. So the runs take the same time at r = (weak - strong
    / n) / (strong - weak). It is infinite if weak scaling takes no fewer steps, or misses the target.

    >>> turning(200.0, 150.0, 2), turning(200.0, 250.0, 2), turning(200.0, math.inf, 2)
    (1.0, inf, inf)
    """
    return (weak - strong / devices) / (strong - weak) if weak < strong else math.inf


def thresholds(rows: Sequence[Mapping[str, str]], growing: str = "weak") -> dict[int, dict[int, float]]:
    """Returns medians over seeds of `turning` by size and devices, for a strategy whose batch grows."""
    steps_of = {(int(row["samples"]), row["scaling"], int(row["devices"]), row["seed"]): float(row["crossing"]) for row in rows}
    found: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (samples, scaling, devices, seed), count in sorted(steps_of.items()):
        if scaling == growing:
            found[samples][devices].append(turning(steps_of[samples, "strong", 1, seed], count, devices))
    return {samples: {n: float(np.median(of)) for n, of in by.items()} for samples, by in found.items()}


def _law(of: Sequence[Mapping[str, str]]) -> tuple[float, float] | None:
    """Returns Smin and Bn by the runs at the base learning rate of one seed, by least squares of the logarithms."""
    points = {int(row["batch"]): float(row["crossing"]) for row in of if row["scaling"] in ("strong", QUARTER, "weak")}
    arrived = {batch: count for batch, count in points.items() if math.isfinite(count)}
    if len(arrived) < 2:
        return None
    batches, logs = np.array(list(arrived), float), np.log(list(arrived.values()))
    start = (logs.min(), np.log(batches).mean())
    (log_smin, log_bn), _ = curve_fit(lambda at, level, log_bn: level + np.log1p(np.exp(log_bn) / at), batches, logs, start)
    return math.exp(log_smin), math.exp(log_bn)


def _misses(of: Sequence[Mapping[str, str]]) -> str:
    missed = sorted({int(row["devices"]) for row in of if row["outcome"] != TARGET_REACHED})
    if not missed:
        return f"none of {len(of)}"
    count = sum(row["outcome"] != TARGET_REACHED for row in of)
    return f"{count} of {len(of)}, from n = {missed[0]}"


def main() -> None:
    """Makes the missing runs and prints the table."""
    parser = Parser(__doc__)
    parser.add_argument("--workload", choices=list(DATA), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="of adrenal the file of the shapes, of slices the folder of the nodules")
    parser.add_argument("--sizes", type=int, nargs="+", help="training samples")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    file = args.out / f"{args.workload}.csv"
    rows: list[dict[str, Any]] = [*tables.read(file)] if file.exists() else []
    done = {(int(row["samples"]), row["scaling"], int(row["devices"]), int(row["seed"])) for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        for size in args.sizes or DATA[args.workload].sizes:
            config = DATA[args.workload].config(args.workload, size, Path(folder), args.data)
            for scaling, devices, one in paths(config, args.seeds, DATA[args.workload].devices):
                if (size, scaling, devices, one.seed) not in done:
                    found = {"samples": size, "scaling": scaling, "devices": devices, "seed": one.seed, **trained(one)}
                    print(" ".join(f"{key} {value}" for key, value in list(found.items())[:9]), flush=True)
                    rows.append(found)
                    tables.write(file, rows)
    head, *lines = summary(tables.read(file))
    print(text_table(head, lines))


if __name__ == "__main__":
    guarded(main)

"""Repeats one compiled program of four training steps from the same state, and counts the results that differ in any bit.

    python -m benchmarks.repeats --calls 10000 --minutes 10 --out repeats.csv

The programs have the exact reduction with 8 shards. Each workload and number of devices has its own process, whose devices are
virtual. It ends after the calls or after the minutes. Every workload should show one result over all calls and devices.
"""

import csv
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np

from benchmarks.options import Parser, at_least, guarded, new_file
from gmmae.multihost import environment
from gmmae.training import compilation, programs
from gmmae.workloads.configuration import configure

SHARDS, STEPS = 8, 4
COLUMNS = ("workload", "devices", "calls", "results", "first")
OWN = str(Path(__file__).with_name("repeats_workload.py"))
WORKLOADS = {
    "quickstart": ("quickstart", {"data__samples": 4 * 32 + 40, "data__validation": 40, "optim__batch_size": 32}),
    "unet_quick": ("unet_quick", {"data__samples": 13, "data__validation": 3}),
    "convolutional": ("", {"workload": OWN, "kind": "convolutional"}),
    "recurrent": ("", {"workload": OWN, "kind": "recurrent"}),
}
"""Configurations by name, each with training samples for four steps: 62 slices of ten nodules are four batches of 16."""


def repeat(name: str, devices: int, calls: int, seconds: float) -> tuple[int, dict[str, int]]:
    """Returns the number of calls, and how many of them gave each result, by the beginning of its SHA-256."""
    config, changes = WORKLOADS[name]
    parallel = {"parallel__devices": devices, "parallel__deterministic": True, "parallel__deterministic_shards": SHARDS}
    run = configure(config, **changes, **parallel)
    environment.prepare(run)
    setup = compilation.prepare(run)
    assert setup.train_plan.steps == STEPS, setup.train_plan
    start = compilation.initial_state(setup)
    results: dict[str, int] = {}
    with compilation.precision_context(run):
        train = programs.training(setup, setup.devices.replicate(start))
        end = time.monotonic() + seconds
        while sum(results.values()) < calls and time.monotonic() < end:
            state, losses = train(setup.devices.replicate(start), 1)
            arrays = [*jax.tree.leaves(jax.device_get(state)), losses]
            digest = hashlib.sha256(b"".join(np.asarray(array).tobytes() for array in arrays)).hexdigest()[:12]
            results[digest] = results.get(digest, 0) + 1
    return sum(results.values()), results


def main() -> None:
    """Measures each cell in a process of its own, and writes its row as soon as it has ended."""
    parser = Parser(__doc__)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--devices", nargs="+", type=at_least(1), default=[1, 2, 4, 8])
    parser.add_argument("--calls", type=at_least(1), default=10_000)
    parser.add_argument("--minutes", type=at_least(1), default=10, help="longest time of a cell")
    parser.add_argument("--out", type=new_file, help="a CSV file")
    parser.add_argument("--cell", action="store_true", help="measure the one cell in this process")
    arguments = parser.parse_args()
    if arguments.cell:
        (name,), (devices,) = arguments.workloads, arguments.devices
        calls, results = repeat(name, devices, arguments.calls, 60 * arguments.minutes)
        print(",".join(map(str, (name, devices, calls, len(results), next(iter(results))))))
        return
    lines = [",".join(COLUMNS)]
    for name in arguments.workloads:
        for devices in arguments.devices:
            cell = ["--cell", "--workloads", name, "--devices", str(devices)]
            limits = ["--calls", str(arguments.calls), "--minutes", str(arguments.minutes)]
            command = [sys.executable, "-m", "benchmarks.repeats", *cell, *limits]
            environ = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)}
            lines.append(subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env=environ).stdout.strip())
            print(lines[-1], flush=True)
            if arguments.out:
                arguments.out.write_text("\n".join(lines) + "\n")
    rows = list(csv.DictReader(lines))
    for name in arguments.workloads:
        cells = [row for row in rows if row["workload"] == name]
        same = len({row["first"] for row in cells}) == 1 and all(row["results"] == "1" for row in cells)
        calls = sum(int(row["calls"]) for row in cells)
        bound = f"0 of {calls} calls differ, so less than {3 / calls:.0e} a call with 95 % confidence"
        print(f"{name}: {bound if same else 'THE RESULTS DIFFER'}")


if __name__ == "__main__":
    guarded(main)

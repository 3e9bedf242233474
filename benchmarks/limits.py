"""Compares training with a device's limits: steps at many batches with their floor, and long runs of short epochs.

    python -m benchmarks.limits                                     # on a GPU: batches 1 to 1024, 300 epochs of paper.toml
    python -m benchmarks.limits --batches 8 32 --epochs 5

The floor of a step is the largest of three times: those of its operations, its bytes and its launches. They are taken at the
throughput of a large matrix product, of a large copy and of empty launches, measured in the same process. Formulas count
operations and bytes. Launches are counted in XLA's program.
"""

import dataclasses
import json
import math
import re
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import flops
from benchmarks.epoch import compiled_epoch, of_batches
from benchmarks.options import Parser, at_least, guarded, new_file
from benchmarks.peers.gmmae_backend import GmmaeBackend
from benchmarks.spread import spread
from gmmae.config.schema import Config
from gmmae.config.toml import find
from gmmae.plotting.tables import table
from gmmae.system.provenance import versions
from gmmae.training import preparation
from gmmae.workloads.configuration import read_config

PAPER_EPOCHS = 65_536
STEPS, TURNS = 8, 7
EDGE, COPY = {"cpu": 2048, "gpu": 8192}, {"cpu": 1 << 25, "gpu": 1 << 28}


def seconds(run: Callable[..., object], *arguments: object, turns: int = TURNS) -> list[float]:
    """Returns the seconds of each of some calls, after one for warming up."""
    jax.block_until_ready(run(*arguments))
    found = []
    for _ in range(turns):
        began = time.perf_counter()
        jax.block_until_ready(run(*arguments))
        found.append(time.perf_counter() - began)
    return found


def rates() -> dict[str, float]:
    """Returns the largest operations, bytes and launches a second that the device reaches."""
    platform = jax.default_backend()
    a, x = jnp.ones((EDGE[platform],) * 2), jnp.ones(COPY[platform])
    product = jax.jit(lambda a: jnp.matmul(a, a, precision="highest"))
    many = jax.jit(lambda x: jax.lax.fori_loop(0, 1000, lambda i, x: jnp.sin(x) + i, x))
    return {
        "flops": 2 * EDGE[platform] ** 3 / min(seconds(product, a)),
        "bytes": 8 * COPY[platform] / min(seconds(jax.jit(lambda x: x + 1), x)),
        "launches": 1000 / min(seconds(many, jnp.ones(8))),
    }


def steps(config: Config, batch: int, best: dict[str, float]) -> dict[str, Any]:
    """Returns the seconds of a step and its floor."""
    config = of_batches(config, batch, STEPS)
    compiled, (state, *given) = compiled_epoch(config)
    measured = [value / STEPS for value in seconds(compiled, state, *given)]
    launches = launched(compiled.as_text() or "")
    floor = {
        "flops": sum(flops.of_step(config).values()) / best["flops"],
        "bytes": least_bytes(config, preparation.parameter_count(state.params)) / best["bytes"],
        "launches": launches / best["launches"],
    }
    return {"batch": batch, "seconds": measured, "launches": launches, "floor": floor}


def least_bytes(config: Config, parameters: int) -> int:
    """Returns the bytes of a step. It reads four arrays of parameters, writes three, and uses activations three times."""
    model, batch, edge = config.settings.model, config.optim.batch_size, config.settings.data.shape
    activations = 2 * batch * edge**3  # the volumes and their densities
    for filters, kernel in zip(model.filters, model.kernels, strict=True):
        edge -= kernel - 1
        activations += batch * filters * edge**3
    return 4 * (7 * parameters + 3 * activations)


def launched(program: str) -> int:
    """Counts the operations in the body of XLA's largest computation, without those that only move or name data."""
    bodies = re.findall(r"^%?\S*(?:body|region)\S* .*?\{$(.*?)^\}", program, flags=re.MULTILINE | re.DOTALL)
    idle = r"\b(parameter|constant|tuple|get-tuple-element|bitcast|[a-z-]+-done)\("
    return max((sum(" = " in line and not re.search(idle, line) for line in body.splitlines()) for body in bodies), default=0)


def epochs(config: Config, count: int) -> dict[str, Any]:
    """Measures the epochs a second with validation, as `loop` runs them without its files."""
    ours = GmmaeBackend(config)
    plan = ours.setup.train_plan
    ours.train(plan.samples, 1)
    ours.evaluate()
    began = time.perf_counter()
    for epoch in range(2, 2 + count):
        ours.train(plan.samples, epoch)
        if not math.isfinite(ours.evaluate()):
            raise SystemExit(f"the loss is not finite after {epoch} epochs")
    spent = time.perf_counter() - began
    return {"epochs": count, "steps": plan.steps, "epochs_per_s": count / spent}


def tables(found: dict[str, Any]) -> list[str]:
    """Returns the tables of steps and of epochs."""
    rows = []
    for row in found["steps"]:
        time_s = spread(row["seconds"])
        least = max(row["floor"], key=row["floor"].get)
        floor_us = f"{1e6 * row['floor'][least]:.3g} ({least})"
        ratio = f"{time_s.median / row['floor'][least]:.2f}"
        rows.append((str(row["batch"]), time_s.text(scale=1e6), f"{row['batch'] / time_s.median:.4g}", floor_us, ratio))
    columns = ("batch", "step, µs, median (quartiles)", "samples a second", "floor, µs (of what)", "over the floor")
    long = [
        (
            str(run["epochs"]),
            f"{run['epochs_per_s']:.4g}",
            f"{PAPER_EPOCHS / run['epochs_per_s'] / 3600:.2f}",
        )
        for run in found["epochs"]
    ]
    notes = (f"Projected: {PAPER_EPOCHS} epochs at the measured rate, without checkpoints and logs.",)
    return [
        table(columns, rows, f"A training step, {found['config']}"),
        table(("measured", "epochs a second", f"{PAPER_EPOCHS} epochs, h, projected"), long, "Epochs", notes),
    ]


def main() -> None:
    """Prints the tables and writes the JSON file."""
    parser = Parser(__doc__)
    parser.add_argument("--config", default="paper")
    parser.add_argument("--precision", default="float32", choices=["float32", "tf32"])
    parser.add_argument("--batches", type=at_least(1), nargs="+", default=[2**i for i in range(11)])
    parser.add_argument("--epochs", type=at_least(0), default=300, help="epochs of a long run; 0 leaves them out")
    parser.add_argument("--out", type=new_file, help="a JSON file to write")
    args = parser.parse_args()
    config = dataclasses.replace(flops.counted(read_config(find(args.config))), precision=args.precision)
    best = rates()
    found = {
        "device": jax.devices()[0].device_kind,
        "versions": versions(),
        "config": args.config,
        "precision": args.precision,
        "rates": best,
        "steps": [steps(config, batch, best) for batch in args.batches],
        "epochs": [epochs(config, args.epochs)] if args.epochs else [],
    }
    print(f"{found['device']}; " + ", ".join(f"{name} {version}" for name, version in found["versions"].items()))
    print("; ".join(f"{name} {value:.3g} a second" for name, value in best.items()) + "\n")
    print(*tables(found), sep="\n\n")
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    guarded(main)

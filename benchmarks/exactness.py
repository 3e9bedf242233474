"""Checks the exact reduction on 1 to 32 devices: equal bits, the drift of `pmean` beside it, and its cost.

    python benchmarks/exactness.py --out drift.png              # quickstart, batch 32, to its target on 1 to 32 devices
    python benchmarks/exactness.py --epochs 2 --devices 1 2 4   # its beginning
    python benchmarks/exactness.py --cost --devices 1 2         # seconds a step beside pmean's, for 8 and 32 shards

Each number of devices and reduction has its own process. On a CPU the devices are virtual.
"""

import dataclasses
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from benchmarks.options import Parser, at_least, guarded, new_file, power_of_two
from gmmae.config.schema import LOSS, Config, ParallelConfig, changed
from gmmae.config.toml import find
from gmmae.multihost import environment
from gmmae.plotting import canvas
from gmmae.system.environment import THREADS
from gmmae.training import compilation
from gmmae.workloads.configuration import read_config

TURNS = 11
COST_SHARDS = (8, 32)


def quickstart() -> Config:
    """Returns the quickstart's configuration."""
    return read_config(find("quickstart"))


def configuration(devices: int, reduction: str, count: int) -> Config:
    """Returns quickstart with the default batch of 32, which 32 devices can share. It must be read before JAX starts."""
    base = quickstart()
    parallel = ParallelConfig(devices=devices, deterministic=reduction == "exact", deterministic_shards=count)
    environment.prepare(Config(parallel=parallel))
    return dataclasses.replace(base, parallel=parallel, optim=dataclasses.replace(base.optim, batch_size=32))


def sha(tree) -> str:
    """Returns the SHA-256 of a tree's arrays."""
    leaves = map(np.asarray, jax.tree.leaves(jax.device_get(tree)))
    return hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()


def train(devices: int, reduction: str, count: int, epochs: int, out: Path) -> None:
    """Trains in this process and keeps the parameters after every epoch."""
    config = configuration(devices, reduction, count)
    setup = compilation.prepare(config)
    state = setup.devices.replicate(compilation.initial_state(setup))
    compiled = compilation.compile_programs(setup, state)
    losses, kept, epoch = [], [], 0
    for epoch in range(1, (epochs or config.stop.max_epochs) + 1):
        state, steps = compiled.train(state, epoch)
        losses += [steps.astype(np.float64), np.float64(compiled.evaluate(state.params)[LOSS])]
        kept.append(np.asarray(ravel_pytree(jax.device_get(state.params))[0]))
        if config.stop.target is not None and losses[-1] <= config.stop.target:
            break
    np.savez(out, row=np.array([sha(state), sha(losses), str(epoch), f"{losses[-1]:.9g}"]), params=kept)


def compare(devices: list[int], count: int, epochs: int, figure: Path | None) -> None:
    """Prints the tables of equal bits and of drift row by row, and draws the drift."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for reduction in ("exact", "pmean"):
            print(
                f"\n| {reduction}, devices | parameters and Adam's state | losses | epochs | validation loss |\n"
                + "|---" * 5
                + "|"
            )
            for n in devices:
                out = Path(folder) / f"{reduction}_{n}.npz"
                words = ["--train", reduction, str(out), "--devices", str(n), "--shards", str(count), "--epochs", str(epochs)]
                environ = {**os.environ, "JAX_NUM_CPU_DEVICES": str(n)}
                subprocess.run([sys.executable, __file__, *words], check=True, env=environ)
                found[reduction, n] = np.load(out)
                state, losses, last, loss = found[reduction, n]["row"]
                print(f"| {n} | `{state[:12]}` | `{losses[:12]}` | {last} | {loss} |", flush=True)
    drift = {}
    for (reduction, n), run in found.items():
        one = found[reduction, devices[0]]["params"].astype(np.float64)
        epochs = min(len(one), len(run["params"]))
        distance = np.linalg.norm(run["params"][:epochs] - one[:epochs], axis=1)
        drift[reduction, n] = distance / np.linalg.norm(one[:epochs], axis=1)
    longest = max(map(len, drift.values()))
    marks = [epoch for epoch in range(1, longest + 1) if epoch.bit_count() == 1 or epoch == longest]
    print(f"\nRelative distance of the parameters from those on {devices[0]} device, by epoch:\n")
    print("| reduction, devices | " + " | ".join(map(str, marks)) + " |\n" + "|---" * (len(marks) + 1) + "|")
    for (reduction, n), distance in drift.items():
        cells = [f"{distance[mark - 1]:.0e}" if mark <= len(distance) else "" for mark in marks]
        print(f"| {reduction}, {n} | " + " | ".join(cells) + " |")
    if figure:
        print(f"\nwrote {draw(drift, figure)}")


def draw(drift: dict[tuple[str, int], np.ndarray], path: Path) -> Path:
    """Draws the distances from the run on one device by epoch. Zero stands at the bottom of the logarithmic axis."""
    picture = canvas.blank(3.4, "")
    axes = picture.subplots()
    apart = {key: line for key, line in drift.items() if line.any()}
    least = 10 ** np.floor(np.log10(min((line[line > 0].min() for line in apart.values()), default=1e-8)))
    colours = (canvas.BLUE, canvas.ORANGE, canvas.GREEN, canvas.VERMILION, canvas.PURPLE, canvas.SKY)
    for ((_, n), line), colour in zip(apart.items(), colours, strict=False):
        axes.plot(
            np.arange(1, len(line) + 1), np.maximum(line, least / 10), color=colour, label=f"pmean, {n} devices", linewidth=1.2
        )
    equal = [str(n) for (reduction, n), line in drift.items() if reduction == "exact" and not line.any()]
    length = max(len(line) for (reduction, _), line in drift.items() if reduction == "exact")
    axes.plot([1, length], [least / 10] * 2, color="black", linewidth=3, label=f"exact, {', '.join(equal)} devices: 0")
    axes.set_yscale("log")
    canvas.dress(axes, "epoch", "relative distance of the parameters\nfrom those on one device")
    axes.legend(fontsize=8, frameon=False)
    return canvas.save(picture, path)


def cost(devices: list[int]) -> None:
    """Prints the seconds of a step, alternately for each reduction in one process, with quartiles over short epochs."""
    threads = os.environ.get(THREADS, "as cores")  # what follows comes too late to change them
    jax.config.update("jax_num_cpu_devices", max(devices))
    jax.devices()
    print("| devices | threads | reduction | s a step, median (quartiles) | over pmean |\n" + "|---" * 5 + "|")
    for n in devices:
        epochs = {}
        for name, count in (("pmean", 32), *((f"exact, {count} shards", count) for count in COST_SHARDS)):
            setup = compilation.prepare(changed(configuration(n, name[:5], count), data__samples=256, data__validation=128))
            state = setup.devices.replicate(compilation.initial_state(setup))
            epochs[name] = [compilation.train_program(setup, state), state, setup.train_plan.steps]
        seconds = {name: [] for name in epochs}
        for turn in range(TURNS + 1):
            for name, (program, state, steps) in epochs.items():
                began = time.perf_counter()
                epochs[name][1], _ = program(state, 1)
                seconds[name] += [(time.perf_counter() - began) / steps] * (turn > 0)  # the first one is warm-up
        for name, measured in seconds.items():
            low, median, high = np.quantile(measured, (0.25, 0.5, 0.75))
            ratio = median / np.median(seconds["pmean"])
            print(f"| {n} | {threads} | {name} | {median:.4f} ({low:.4f}, {high:.4f}) | {ratio:.2f} |", flush=True)


def main() -> None:
    """Runs the benchmark that the options choose."""
    parser = Parser(__doc__)
    parser.add_argument("--devices", type=power_of_two, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--epochs", type=at_least(0), default=0, help="number of epochs; 0: to the target")
    parser.add_argument("--shards", type=power_of_two, default=32)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--out", type=new_file, metavar="PNG", help="file of the figure of the drift")
    parser.add_argument("--train", nargs=2, metavar=("REDUCTION", "OUT"), help="one run, for internal use")
    args = parser.parse_args()
    used, most = max(args.devices), COST_SHARDS[0] if args.cost else args.shards
    if used > most:
        parser.error(f"devices must be at most the shards, {most}; got {used}")
    with compilation.precision_context(quickstart()):
        if args.train:
            train(args.devices[0], args.train[0], args.shards, args.epochs, Path(args.train[1]))
        elif args.cost:
            cost(args.devices)
        else:
            compare(args.devices, args.shards, args.epochs, args.out)


if __name__ == "__main__":
    guarded(main)

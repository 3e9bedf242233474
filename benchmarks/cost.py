"""Measures compilation and memory, and how a step's time grows with the batch, K, S and the number of devices.

    python -m benchmarks.cost compile    # or memory, growth, devices: each in its own process

It prints one line of JSON.
"""

import dataclasses
import itertools
import json
import resource
import time
from typing import Any

from benchmarks.child import ask
from benchmarks.options import Parser, at_least, guarded
from benchmarks.spread import exponent, spread
from gmmae.plotting.tables import table

GROWTH = {"batch": (8, 16, 32, 64, 128), "components": (25, 50, 100, 200), "size": (14, 16, 20, 24)}
DEVICES, DEVICE_BATCH = (1, 2, 4, 8), 8
MEMORY = (("batch 32", 0, 0), ("32 virtual devices, batch 1024", 32, 0), ("the same, micro-batches of 32", 32, 32))
STEPS = 2


def measure(config: str, turns: int) -> dict[str, Any]:
    """Runs all measurements, one process after the other."""
    options = ("--config", config, "--turns", str(turns))
    memory = {
        name: ask("benchmarks.cost", "memory", "--virtual", str(virtual), "--micro", str(micro), *options)
        for name, virtual, micro in MEMORY
    }
    return {
        "compile": ask("benchmarks.cost", "compile", *options),
        "memory": memory,
        "growth": ask("benchmarks.cost", "growth", *options),
        "devices": ask("benchmarks.cost", "devices", *options, devices=max(DEVICES)),
    }


def compile_times(config: str) -> dict[str, float]:
    """Returns the seconds from the start of Python to a warm epoch, by stage."""
    marks = [time.perf_counter()]
    from benchmarks.peers.gmmae_backend import GmmaeBackend, configuration

    marks.append(time.perf_counter())
    ours = GmmaeBackend(configuration(config, 330, 128))
    marks.append(time.perf_counter())
    ours.train(330, 1)
    marks.append(time.perf_counter())
    ours.evaluate()
    marks.append(time.perf_counter())
    ours.train(330, 2)
    marks.append(time.perf_counter())
    ours.evaluate()
    marks.append(time.perf_counter())
    imports, setup, first, first_eval, second, second_eval = (b - a for a, b in itertools.pairwise(marks))
    return {"imports": imports, "data and start": setup, "epoch": first - second, "validation": first_eval - second_eval}


def peak_memory(config: str, virtual: int, micro: int) -> dict[str, float]:
    """Returns the peak memory of an epoch and a validation in bytes, for this process and, if present, the GPU."""
    import jax

    from benchmarks.peers.gmmae_backend import GmmaeBackend, configuration
    from gmmae.config.schema import ParallelConfig

    parallel = ParallelConfig(simulate_devices=virtual, micro_batch_size=micro)
    ours = GmmaeBackend(dataclasses.replace(configuration(config, 1024, 256), scaling="weak", parallel=parallel))
    ours.train(1024, 1)
    ours.evaluate()
    found: dict[str, float] = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    statistics = jax.devices()[0].memory_stats() or {}
    return found | ({"device": statistics["peak_bytes_in_use"]} if "peak_bytes_in_use" in statistics else {})


def growth(config: str, turns: int) -> dict[str, dict[str, Any]]:
    """Returns the seconds of a step for each size of each kind, measured alternately."""
    from benchmarks import flops
    from benchmarks.peers.gmmae_backend import configuration
    from gmmae.config.schema import changed

    base = flops.counted(configuration(config, STEPS * max(GROWTH["batch"]), 2))
    grown = {
        "batch": lambda value: dataclasses.replace(base, optim=dataclasses.replace(base.optim, batch_size=value)),
        "components": lambda value: changed(base, model__components=value),
        "size": lambda value: changed(base, data__shape=value),
    }
    sized = {(kind, value): grown[kind](value) for kind, values in GROWTH.items() for value in values}
    seconds = _in_turns({key: (value, value.optim.batch_size) for key, value in sized.items()}, turns)
    return {
        kind: {str(v): {"seconds": seconds[kind, v], "flops": sum(flops.of_step(sized[kind, v]).values())} for v in values}
        for kind, values in GROWTH.items()
    }


def devices(config: str, turns: int) -> dict[str, Any]:
    """Returns the seconds of a step on each number of virtual devices, with a fixed batch per device and shared cores."""
    import jax

    from benchmarks.peers.gmmae_backend import configuration
    from gmmae.config.schema import ParallelConfig

    base = configuration(config, STEPS * DEVICE_BATCH * max(DEVICES), 8)
    base = dataclasses.replace(base, scaling="weak", optim=dataclasses.replace(base.optim, batch_size=DEVICE_BATCH))
    sized = {
        n: (dataclasses.replace(base, parallel=ParallelConfig(devices=n)), n * DEVICE_BATCH)
        for n in DEVICES
        if n <= jax.device_count()
    }
    return {str(n): {"seconds": values} for n, values in _in_turns(sized, turns).items()}


def _in_turns(sized: dict[Any, tuple[Any, int]], turns: int) -> dict[Any, list[float]]:
    from benchmarks.peers.gmmae_backend import GmmaeBackend

    peers = {key: (GmmaeBackend(config), STEPS * batch) for key, (config, batch) in sized.items()}
    for peer, samples in peers.values():
        peer.train(samples, 1)
    seconds: dict[Any, list[float]] = {key: [] for key in peers}
    for _ in range(turns):
        for key, (peer, samples) in peers.items():
            began = time.perf_counter()
            peer.train(samples, 1)
            seconds[key].append((time.perf_counter() - began) / STEPS)
    return seconds


def tables(found: dict[str, Any]) -> list[str]:
    """Returns the tables of compilation and memory, and of growth."""
    once = [(f"compile: {name}", f"{value:.1f} s") for name, value in found["compile"].items()]
    once += [
        (f"peak memory: {name}, {place}", f"{value / 1e9:.2f} GB")
        for name, of in found["memory"].items()
        for place, value in of.items()
    ]
    rows = []
    for kind, of in [*found["growth"].items(), (f"devices of {DEVICE_BATCH} samples", found["devices"])]:
        sizes = [float(size) for size in of]
        medians = [spread(row["seconds"]).median for row in of.values()]
        work = [row.get("flops") for row in of.values()]
        names = {"components": "K", "size": "S"}
        for size, row, count in zip(of, of.values(), work, strict=True):
            speed = f"{count / spread(row['seconds']).median / 1e9:.3g}" if count else ""
            rows.append((names.get(kind, kind), size, spread(row["seconds"]).text(scale=1000), speed, ""))
        against = [value**3 for value in sizes] if kind == "size" else sizes
        if len(sizes) > 1:
            rows[-1] = (*rows[-1][:-1], f"{exponent(against, medians):.2f}")
    columns = ("grows", "value", "step, ms, median (quartiles)", "GFLOP/s", "time grows with the power")
    notes = ("The power is that of the value, for S that of the voxels S³; 1 is linear. Virtual devices share the cores.",)
    return [
        table(("what", "value"), once, "Compilation and memory"),
        table(columns, rows, "How the step's time grows", notes),
    ]


def main() -> None:
    """Prints the measurement."""
    parser = Parser(__doc__)
    parser.add_argument("what", choices=["compile", "memory", "growth", "devices"])
    parser.add_argument("--config", default="paper")
    parser.add_argument("--turns", type=at_least(1), default=3)
    parser.add_argument("--virtual", type=at_least(0), default=0)
    parser.add_argument("--micro", type=at_least(0), default=0)
    args = parser.parse_args()
    match args.what:
        case "compile":
            found: dict[str, Any] = compile_times(args.config)
        case "memory":
            found = peak_memory(args.config, args.virtual, args.micro)
        case "growth":
            found = growth(args.config, args.turns)
        case _:
            found = devices(args.config, args.turns)
    print(json.dumps(found))


if __name__ == "__main__":
    guarded(main)

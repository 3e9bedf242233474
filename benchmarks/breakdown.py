"""Divides a step's time into parts, by XLA's own trace of an epoch.

    python -m benchmarks.breakdown

It traces alternately with an untraced epoch and a large matrix product, and prints one line of JSON. On a CPU it measures one
core, with the share of the batch that a core has in `make train`. Operations then follow one another, and their times add up
to the step's.
"""

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import flops
from benchmarks.epoch import compiled_epoch, of_batches
from benchmarks.options import Parser, at_least, guarded
from benchmarks.peers.gmmae_backend import configuration
from benchmarks.spread import Spread, spread
from gmmae.config.schema import Config
from gmmae.models.kernels.precision import FULL
from gmmae.plotting import tables

STEPS = 8
"""Steps of an epoch."""
EDGE = 2048
"""Rows and columns of the large matrix product."""
STEP, TRACED, PRODUCT = "step", "step, traced", "product"
OTHER = "gathering and copies"

PARTS = {
    r"Conv_0": "convolution 1",
    r"Conv_1": "convolution 2",
    r"Conv_2": "convolution 3",
    r"Dense_|/heads/": "dense",
    r"/encoder/": "activations",
    r"density|MixtureAutoencoder|loss": "density and loss",
    r"optimiser": "optimiser",
    r"reduction": "reduction",
}
"""Parts by a substring of an operation's name, from Flax's modules and the scopes of `gmmae`. The first match counts."""


class Event(NamedTuple):
    """Operation of a trace, in nanoseconds."""

    name: str
    start: float
    duration: float


def measure(name: str, turns: int) -> dict[str, Any]:
    """Returns the seconds of a step, of its operations and of the large product, turn by turn."""
    config, cores = flops.counted(configuration(name)), _on_one_core()
    share = max(1, config.optim.batch_size // min(4, cores))
    config = of_batches(config, share, STEPS)
    epoch, parts = epoch_program(config)
    product = large_product()
    seconds: dict[str, list[float]] = {}
    for _ in range(turns):
        once = {STEP: _seconds(epoch) / STEPS, PRODUCT: _seconds(product)}
        traced_s, lines = trace(epoch)
        once[TRACED] = traced_s / STEPS
        for operation, spent in own_seconds(lines):
            part = parts.get(operation, OTHER)
            once[part] = once.get(part, 0.0) + spent / STEPS
        for part, spent in once.items():
            seconds.setdefault(part, []).append(spent)
    return {"config": name, "batch": share, "flops": flops.of_step(config), "seconds": seconds}


def _on_one_core() -> int:
    """Restricts this process to one core before JAX counts them, and returns their former number. Does nothing for a GPU."""
    if os.environ.get("JAX_PLATFORMS", "") != "cpu" and any(Path("/dev").glob("nvidia[0-9]*")):
        return 1
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    return len(cores)


def epoch_program(config: Config) -> tuple[Callable[[], Any], dict[str, str]]:
    """Returns a function that computes an epoch as `train.py` does, and the part of each of its operations."""
    compiled, arguments = compiled_epoch(config)
    jax.block_until_ready(compiled(*arguments))
    return lambda: compiled(*arguments), dict(parts_of(compiled.as_text() or ""))


def parts_of(program: str) -> Iterator[tuple[str, str]]:
    """Yields each operation of a compiled program's text, and its part."""
    for operation, path in re.findall(r'^ *(?:ROOT )?%?([\w.-]+) = .*metadata={[^}]*op_name="([^"]*)"', program, re.MULTILINE):
        yield operation, next((part for pattern, part in PARTS.items() if re.search(pattern, path)), OTHER)


def large_product() -> Callable[[], Any]:
    """Returns a function that computes a large matrix product in float32."""
    a = jnp.asarray(np.random.default_rng(0).standard_normal((EDGE, EDGE)), jnp.float32)
    compiled = jax.jit(partial(jnp.matmul, precision=FULL)).lower(a, a).compile()
    jax.block_until_ready(compiled(a, a))
    return lambda: compiled(a, a)


def _seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - began


def trace(run: Callable[[], Any]) -> tuple[float, list[list[Event]]]:
    """Returns the seconds of a run, and XLA's record of its operations by thread or stream."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            seconds = _seconds(run)
        [file] = Path(folder).glob("**/*.xplane.pb")
        planes = jax.profiler.ProfileData.from_file(str(file)).planes
        lines = [list(line.events) for plane in planes for line in plane.lines]
    found = [[(dict(event.stats).get("hlo_op"), event.start_ns, event.duration_ns) for event in line] for line in lines]
    return seconds, [[Event(str(name), *times) for name, *times in line if name] for line in found]


def own_seconds(lines: Iterable[Iterable[Event]]) -> Iterator[tuple[str, float]]:
    """Yields the time of each operation without that of the operations within it, such as those of a loop."""
    for line in lines:
        within: list[tuple[float, str]] = []
        for event in sorted(line, key=lambda event: (event.start, -event.duration)):
            while within and within[-1][0] <= event.start:
                within.pop()
            if within:
                yield within[-1][1], -event.duration / 1e9
            yield event.name, event.duration / 1e9
            within.append((event.start + event.duration, event.name))


def table(found: dict[str, Any]) -> str:
    """Returns the parts with their share of the step, their throughput, and its ratio to the large product's."""
    seconds = {part: spread(values) for part, values in found["seconds"].items()}
    step, traced, product = seconds.pop(STEP), seconds.pop(TRACED), seconds.pop(PRODUCT)
    rate = 2 * EDGE**3 / product.median
    order = list(dict.fromkeys((*PARTS.values(), OTHER)))
    rows = [_row(part, seconds[part], traced.median, found["flops"].get(part), rate) for part in order if part in seconds]
    rest = traced.median - sum(each.median for each in seconds.values())
    rows.append(("between operations", f"{1000 * rest:.3g}", f"{100 * rest / traced.median:.1f}", "", "", ""))
    rows += [
        _row(name, each, traced.median, sum(found["flops"].values()), rate) for name, each in ((TRACED, traced), (STEP, step))
    ]
    columns = (
        "part",
        "ms, median (quartiles)",
        "share of the step, %",
        "GFLOP",
        "GFLOP/s",
        f"of the {EDGE}² product's rate, %",
    )
    notes = (f"The {EDGE}² product in float32: {rate / 1e9:.0f} GFLOP/s. FLOPs by formula (benchmarks/flops.py).",)
    return tables.table(columns, rows, f"One device's step, {found['config']}, batch {found['batch']}", notes)


def _row(part: str, seconds: Spread, step_s: float, count: int | None, rate: float) -> tuple[str, ...]:
    times = (part, seconds.text(scale=1000), f"{100 * seconds.median / step_s:.1f}")
    if count is None:
        return *times, "", "", ""
    speed = count / seconds.median
    return *times, f"{count / 1e9:.3g}", f"{speed / 1e9:.3g}", f"{100 * speed / rate:.1f}"


def main() -> None:
    """Prints the measurement."""
    parser = Parser(__doc__)
    parser.add_argument("--config", default="paper")
    parser.add_argument("--turns", type=at_least(1), default=7)
    args = parser.parse_args()
    print(json.dumps(measure(args.config, args.turns)))


if __name__ == "__main__":
    guarded(main)

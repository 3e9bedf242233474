"""Compiles programs for absent GPUs and counts a step's launches, collectives and memory traffic, for any workload.

    python -m benchmarks.device_programs [--target h100] [--devices 1 8 32] [--hosts 1] [--modes float32 tf32 exact micro] [...]
    python -m benchmarks.device_programs --devices 8 --hosts 1 2 --config quickstart --data.samples 200

All other options are those of train.py. XLA compiles for a GPU that is only described. JAX needs its CUDA plugin for that, as
in the environment of `make test-gpu-programs`, but no GPU. Nothing runs and nothing is tuned. Counts and memory are those of
the program, and times are estimates.
"""

import itertools
import math
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import jax

from benchmarks import hlo, hlo_costs, thunks
from benchmarks.options import Parser, at_least, guarded
from gmmae.cli.arguments import parse_train
from gmmae.config.schema import Config, changed
from gmmae.plotting.tables import table
from gmmae.system.errors import InputError
from gmmae.training import preparation, programs
from gmmae.training.parallel import Devices

TARGETS = Path(__file__).parent / "targets"
LAUNCH_S = 2e-6
"""Seconds of a launch, as the host issues them one after the other."""


class Rates(NamedTuple):
    """Peak operations a second of a GPU, by precision of its products."""

    float32: float
    tf32: float


RATES = {
    "t4": Rates(8.1e12, 8.1e12),
    "a100": Rates(19.5e12, 156e12),
    "h100": Rates(67e12, 494.7e12),
    "h200": Rates(67e12, 494.7e12),
}
"""Peak performance by NVIDIA's data sheets (SXM but for the T4, which has no TF32). TF32 is without sparsity."""

MODES = ("float32", "tf32", "exact", "micro")


def topology(target: str, devices: int, hosts: int, notes: Path | None = None) -> Devices:
    """Returns absent GPUs. This process then keeps no compiled programs, because JAX cannot read such programs back.

    Args:
      target: the name of a file of `benchmarks/targets`.
      devices: their total number.
      hosts: the number of hosts, which have equally many GPUs. NVLink joins the GPUs of one host only.
      notes: an empty folder, into which XLA writes what `read` needs to count the host's commands.
    """
    from jax.experimental import topologies
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    described = (TARGETS / f"{target}.txtpb").read_text()
    shape = f"{hosts}x1x{devices // hosts}"  # slices (the domains of NVLink), hosts of each, GPUs of each host
    found = topologies.get_topology_desc(topology_name="", platform="cuda", topology=shape, target_config=described)
    options = {"xla_dump_to": str(notes), "xla_dump_hlo_as_text": True} if notes else {}
    return Devices(tuple(found.devices), absent=True, options=tuple(options.items()))


def in_mode(config: Config, mode: str, devices: int) -> Config:
    """Returns the configuration in one of the modes. `micro` divides a device's share in two."""
    match mode:
        case "tf32":
            return changed(config, precision="tf32")
        case "exact":
            return changed(config, parallel__deterministic=True)
        case "micro":
            return changed(config, parallel__micro_batch_size=max(1, math.ceil(config.optim.batch_size / devices / 2)))
        case _:
            return changed(config, precision="float32")


class Reading(NamedTuple):
    """Properties of a compiled program, for one device.

    Attributes:
      kernels: launches of a step, by kind. Those of loops whose length only the running program knows count once.
      meetings: collectives of a step, with the bytes that each device gives.
      host: transfers to or from the host in a step.
      commands: what the host issues in a step, by XLA's name: CUDA graphs, and what is in no graph. None is unknown.
      open_loops: loops of a step whose length only the running program knows.
      moved: bytes of a step, an estimate.
      products: products of a step, each as often as it is computed.
      unordered: launches of a step that add numbers in no fixed order.
      temporary: bytes of temporary memory of the whole program.
      arguments: bytes of the arguments of the whole program.
    """

    kernels: Counter[str]
    meetings: list[tuple[str, int]]
    host: list[str]
    commands: Counter[str] | None
    open_loops: int
    moved: int
    products: list[hlo_costs.Product]
    unordered: int
    temporary: int
    arguments: int

    @property
    def launches(self) -> int:
        """Returns the launches of a step."""
        return sum(self.kernels.values()) + len(self.meetings)

    def operations(self, *, full: bool) -> int:
        """Returns the operations of the products, at full precision or not."""
        return sum(product.operations for product in self.products if product.full is full)


def read(compiled: jax.stages.Compiled, steps: int, notes: Path | None = None) -> Reading:
    """Reads a program that has a loop of the given number of steps. It empties the folder that `topology` was given, if any."""
    program = hlo.parse(compiled.as_text() or "")
    step = hlo.step(program, steps)
    found = list(hlo.launches(program, step))
    kernels, meetings, host = Counter[str](), [], []
    for launch in found:
        match launch.kind:
            case hlo.COLLECTIVE:
                meetings += [hlo_costs.met(program, launch)] * launch.times
            case hlo.HOST:
                host += [launch.instruction.target or launch.instruction.operation] * launch.times
            case kind:
                kernels[kind] += launch.times
    memory = compiled.memory_analysis()
    return Reading(
        kernels,
        meetings,
        host,
        _commands(notes, steps) if notes else None,
        len(hlo.open_loops(program, step)),
        sum(launch.times * hlo_costs.moved(program, launch) for launch in found if launch.kind in hlo.KERNELS),
        [product for launch in found for product in hlo_costs.products(program, launch) for _ in range(launch.times)],
        sum(hlo_costs.unordered(program, launch) for launch in found),
        getattr(memory, "temp_size_in_bytes", 0),
        getattr(memory, "argument_size_in_bytes", 0),
    )


def _commands(notes: Path, steps: int) -> Counter[str]:
    [found] = notes.glob(thunks.FILES)
    counted = Counter(thunks.commands(thunks.step(thunks.parse(found.read_text()), steps)))
    for each in notes.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    return counted


def compiled(config: Config, devices: Devices, notes: Path | None = None) -> Iterator[tuple[str, Reading]]:
    """Yields the compiled epoch and validation of a run.

    Raises:
      InputError: as `preparation.prepare`.
    """
    setup = preparation.prepare(config, devices)
    with preparation.precision_context(config):
        state = devices.replicate(preparation.blank_state(config, setup.workload))
        epoch, *_ = programs.compile_training(setup, state)
        yield "epoch", read(epoch, setup.train_plan.steps, notes)
        program, _ = programs.compile_validation(setup, state.params)
        yield "validation", read(program, setup.eval_plan.steps, notes)


def floor_us(reading: Reading, target: str) -> dict[str, float]:
    """Returns estimates of a step's lower bounds in microseconds, by the limiting resource."""
    bandwidth = re.search(r"memory_bandwidth: (\d+)", (TARGETS / f"{target}.txtpb").read_text())
    assert bandwidth
    rates = RATES[target]
    return {
        "launches": 1e6 * LAUNCH_S * reading.launches,
        "bytes": 1e6 * reading.moved / int(bandwidth[1]),
        "operations": 1e6 * (reading.operations(full=True) / rates.float32 + reading.operations(full=False) / rates.tf32),
    }


COLUMNS = (
    *("mode", "GPUs", "hosts", "program", "kernels a step", "fusion", "library", "Triton", "copy", "other"),
    *("host launches", "meetings of devices", "to or from the host", "open loops", "temporary, MB", "arguments, MB"),
    *("moved, MB", "floor by launches, µs", "by bytes, µs", "by operations, µs"),
)
NOTES = (
    "Counts and memory are the program's. What is moved and the floors are estimates: 2 µs a launch, bandwidth and rates of "
    "the device's data sheet; operations are those of products and convolutions, but not of hand-written kernels.",
    "Host launches are what the host issues in a step: CUDA graphs of kernels, and what is in none.",
    "Open loops are of a length that only the running program knows: counted as one pass, and the host is asked after each.",
    "A program of one step has no loop: its counts are those of the whole.",
)


def row(mode: str, devices: int, hosts: int, name: str, reading: Reading, target: str) -> tuple[str, ...]:
    """Returns a row of the table."""
    counts = (sum(reading.kernels.values()), *(reading.kernels[kind] for kind in hlo.KERNELS))
    floors = floor_us(reading, target)
    return (
        *(mode, str(devices), str(hosts), name),
        *map(str, counts),
        "unknown" if reading.commands is None else str(sum(reading.commands.values())),
        meetings_text(reading.meetings),
        ", ".join(reading.host) or "0",
        str(reading.open_loops),
        *(f"{count / 1e6:.1f}" for count in (reading.temporary, reading.arguments, reading.moved)),
        *(f"{floors[what]:.0f}" for what in ("launches", "bytes", "operations")),
    )


def meetings_text(meetings: Sequence[tuple[str, int]]) -> str:
    """Returns a text of the collectives of a step.

    >>> meetings_text([("all-reduce", 1973972)]), meetings_text([("collective-permute", 4), ("collective-permute", 4)])
    ('1 all-reduce of 1,973,972 bytes', '2 collective-permute of 4 bytes')
    >>> meetings_text([])
    '0'
    """
    return ", ".join(f"{n} {what} of {count:,} bytes" for (what, count), n in Counter(meetings).items()) or "0"


def main() -> None:
    """Prints the table."""
    parser = Parser(__doc__, "python -m benchmarks.device_programs", allow_abbrev=False)  # the other options are train.py's
    parser.add_argument("--target", default="h100", choices=sorted(RATES))
    parser.add_argument("--devices", type=at_least(1), nargs="+", default=[1, 8, 32], help="total number of GPUs")
    parser.add_argument("--hosts", type=at_least(1), nargs="+", default=[1], help="number of hosts")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    args, words = parser.parse_known_args()
    jax.config.update("jax_platforms", "cpu")
    config, _ = parse_train(words, parser.prog)
    if not (find_spec("jax_cuda12_plugin") or find_spec("jax_cuda13_plugin")):
        raise InputError("JAX must have its CUDA part; got none: pip install -c constraints.txt -e '.[gpu-programs]'")
    rows: list[tuple[str, ...]] = []
    notes: list[str] = list(NOTES)
    for devices, hosts, mode in itertools.product(args.devices, args.hosts, args.modes):
        if devices % hosts:
            notes.append(f"{mode} on {devices} GPUs is left out: {hosts} hosts cannot have equally many.")
            continue
        try:
            with tempfile.TemporaryDirectory() as folder:
                gpus = topology(args.target, devices, hosts, Path(folder))
                for name, reading in compiled(in_mode(config, mode, devices), gpus, Path(folder)):
                    rows.append(row(mode, devices, hosts, name, reading, args.target))
        except InputError as error:
            notes.append(f"{mode} on {devices} GPUs is left out: {error}.")
    what = " ".join(words) or "quickstart"
    title = f"Compiled for {args.target.upper()}s that are not there, {what}: what is moved and the floors are estimates"
    print(table(COLUMNS, rows, title, notes))


if __name__ == "__main__":
    guarded(main)

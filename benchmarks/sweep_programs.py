"""Counts the programs that a sweep's runs compile, by kind and global batch, in a process each and in one process.

    python -m benchmarks.sweep_programs [--target h100] --config sweep_paper [...]

All other options are those of sweep.py. Each group of runs that share an optimisation path is one run to compute. Its programs
are lowered and not compiled. Two programs are one where their text is the same, without source locations.
With a target, programs are lowered for one GPU that is only described, as in `benchmarks.device_programs`.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple
from unittest import mock

import jax
import numpy as np
from jax.stages import Lowered

from benchmarks.device_programs import RATES, topology
from benchmarks.options import Parser, guarded
from gmmae.cli.arguments import parse_sweep
from gmmae.config.schema import LOSS, Config
from gmmae.plotting.tables import Table, markdown
from gmmae.sweep.grid import SweepConfig, run_config, run_groups
from gmmae.system.errors import InputError
from gmmae.training import compilation, fingerprint, multi_epoch
from gmmae.training.parallel import Devices
from gmmae.training.run_cache import RunCache
from gmmae.workloads import registry
from gmmae.workloads.interface import Workload

INITIAL, EPOCH, EPOCHS = "initial state", "an epoch", "several epochs"
VALIDATION, DESCRIPTION = "validation", "description"
KINDS = (INITIAL, EPOCH, EPOCHS, VALIDATION, DESCRIPTION)
"""Kinds of programs, in the order in which a run compiles them."""


class Program(NamedTuple):
    """A program that a run compiles.

    Attributes:
      run: the name of the run.
      kind: one of `KINDS`.
      batch: the run's global batch.
      text: the hash of its text.
    """

    run: str
    kind: str
    batch: int
    text: str


class _Uncompiled(NamedTuple):
    """Stands for a compiled program. Its results are zeros."""

    lowered: Lowered

    def __call__(self, *_: object) -> object:
        return jax.tree.map(lambda result: np.zeros(result.shape, result.dtype), self.lowered.out_info)


@contextmanager
def uncompiled() -> Iterator[list[Lowered]]:
    """Yields the programs that are lowered for compilation meanwhile. None of them is compiled."""
    lowered: list[Lowered] = []

    def compile_nothing(program: Lowered, *_: object, **__: object) -> _Uncompiled:
        lowered.append(program)
        return _Uncompiled(program)

    with mock.patch.object(Lowered, "compile", compile_nothing):
        yield lowered


@contextmanager
def loaded_once() -> Iterator[None]:
    """Loads equal data once meanwhile. A run loads its data when it starts."""
    build = registry.build

    @cache
    def built(config: Config) -> Workload:
        workload = build(config)
        return workload._replace(load=cache(workload.load))

    def build_once(config: Config) -> Workload:
        return built(Config(workload=config.workload, settings=config.settings))

    with mock.patch.object(registry, "build", build_once):
        yield


def programs_of(name: str, config: Config, devices: Devices | None = None, cache: RunCache | None = None) -> list[Program]:
    """Returns the programs that a run compiles, by the decisions of `gmmae.training.loop.Run.begin`.

    Args:
      name: of the run.
      config: of the run.
      devices: instead of those that the configuration chooses.
      cache: of earlier runs in the same process. A run does not compile the programs that it finds there.

    Raises:
      InputError: as `compilation.prepare`.
    """
    setup = compilation.prepare(config, devices, cache)
    state = setup.devices.replicate(compilation.blank_state(config, setup.workload))
    makers: dict[str, Callable[[], object]] = {
        INITIAL: lambda: compilation.initial_state(setup),
        EPOCH: lambda: compilation.train_program(setup, state),
        EPOCHS: lambda: multi_epoch.compile_epochs(setup, state, [LOSS]),
        VALIDATION: lambda: compilation.evaluate_program(setup, state.params),
        DESCRIPTION: lambda: compilation.describe_program(setup, state.params),
    }
    del makers[EPOCH if setup.max_epochs_per_dispatch > 1 else EPOCHS]
    found = []
    with compilation.precision_context(config):
        for kind, make in makers.items():
            with uncompiled() as lowered:
                make()
            texts = [hashlib.sha256(program.as_text().encode()).hexdigest() for program in lowered]
            found += [Program(name, kind, setup.strategy.global_batch, text) for text in texts]
    return found


def programs(config: SweepConfig, devices: Devices | None = None, cache: RunCache | None = None) -> Iterator[Program]:
    """Yields the programs that the runs of a sweep compile, one run after the other.

    Args:
      config: the sweep.
      devices: instead of those that the configuration chooses.
      cache: of one process that computes all runs. Without it each run is a process.

    Raises:
      InputError: a run is impossible.
    """
    with loaded_once():
        for first, _ in run_groups(config, fingerprint.load(config.run).samples):
            yield from programs_of(first.name, run_config(config, first), devices, cache)


def table(apart: Sequence[Program], together: Sequence[Program], title: str) -> Table:
    """Returns the numbers of programs, by kind and batch.

    Args:
      apart: those of a process for each run.
      together: those of one process for all runs.
      title: of the table.
    """
    rows = []
    for kind in KINDS:
        of_kind = [program for program in apart if program.kind == kind]
        of_batch = {program.batch: program.text for program in of_kind}
        for batch in sorted(of_batch) if len({*of_batch.values()}) > 1 else []:
            rows.append((kind, str(batch), *_counts(apart, together, {kind}, {batch})))
        if of_kind:
            rows.append((kind, "all", *_counts(apart, together, {kind}, {*of_batch})))
    rows.append(("all", "all", *_counts(apart, together, {*KINDS}, {program.batch for program in apart})))
    columns = ("program", "global batch", "runs", "in a process each", "of them distinct", "in one process")
    return Table("sweep_programs", title, columns, tuple(rows), NOTES)


def _counts(
    apart: Sequence[Program], together: Sequence[Program], kinds: Collection[str], batches: Collection[int]
) -> tuple[str, ...]:
    """Returns the last columns of a row."""
    alone, shared = (
        [program for program in found if program.kind in kinds and program.batch in batches] for found in (apart, together)
    )
    counts = len({program.run for program in alone}), len(alone), len({program.text for program in alone}), len(shared)
    return tuple(map(str, counts))


NOTES = (
    "A run is one optimisation path: in virtual mode runs of equal batch, learning rate, optimiser and seed are computed once.",
    "Programs that differ in shapes, constants or options are distinct. The cache of compiled programs keeps equal ones once.",
    "Not counted: the measurement of step times, and the small programs that JAX compiles for single operations. Runs that "
    "train together need another program for each number of runs.",
)


def main() -> None:
    """Prints the table."""
    parser = Parser(__doc__, "python -m benchmarks.sweep_programs", allow_abbrev=False)  # the other options are sweep.py's
    parser.add_argument("--target", choices=sorted(RATES), help="a GPU to lower for; this machine's devices without one")
    args, words = parser.parse_known_args()
    if args.target:
        jax.config.update("jax_platforms", "cpu")
    config = parse_sweep(words, parser.prog).config
    if args.target and config.mode != "virtual":
        raise InputError(f"mode must be virtual with --target, which is one GPU; got {config.mode}: leave --target out")
    devices = topology(args.target, 1, 1) if args.target else None
    where = f"one absent {args.target.upper()}" if args.target else "this machine's devices"
    title = f"Programs of a sweep, {' '.join(words) or 'the default'}, lowered for {where}"
    apart, together = list(programs(config, devices)), list(programs(config, devices, RunCache()))
    print(markdown(table(apart, together, title)), end="")


if __name__ == "__main__":
    guarded(main)

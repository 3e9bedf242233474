"""Measures whether runs train faster together in one program, by the model's size: `vmap`, or one run after the other.

    python -m benchmarks.populations [--runs 6 16] [--widths 32 128 512] [--batches 32 256] [--configs quickstart] [--turns 3]

Widths are those of the MLP in tiny_mlp.py. A sweep measures the same at its start, and decides by it (`train_together`).
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.options import Parser, at_least, guarded
from benchmarks.spread import spread
from gmmae.config.schema import Config, changed
from gmmae.plotting.tables import Table, markdown
from gmmae.system.environment import CPU_DEVICES
from gmmae.system.provenance import machine, versions
from gmmae.workloads.configuration import configure

TINY_WORKLOAD = str(Path(__file__).resolve().with_name("tiny_mlp.py"))
COLUMNS = ("model", "batch", "runs", "a step of one run, ms", "times as fast together")


def main() -> None:
    """Prints a row for each model, batch and number of runs."""
    parser = Parser(__doc__, "python -m benchmarks.populations")
    parser.add_argument("--runs", nargs="+", type=at_least(2), default=[6, 16], help="runs in a program")
    parser.add_argument("--widths", nargs="*", type=at_least(1), default=[32, 128, 256, 512], help="units of the MLP")
    parser.add_argument("--batches", nargs="+", type=at_least(1), default=[32, 256], help="global batches of the MLP")
    parser.add_argument("--configs", nargs="*", default=["quickstart"], help="other configurations, with their own batch")
    parser.add_argument("--turns", type=at_least(1), default=3, help="number of times that each is measured")
    args = parser.parse_args()
    os.environ.setdefault(CPU_DEVICES, "1")
    rows = tuple(
        _row(name, config, runs, args.turns)
        for name, config in _configs(args.widths, args.batches, args.configs)
        for runs in args.runs
    )
    note = f"{machine('cpu')}; {', '.join(f'{name} {version}' for name, version in versions().items())}"
    print(markdown(Table("populations", "Runs together in one program", COLUMNS, rows, (note,))))


def _configs(widths: Sequence[int], batches: Sequence[int], names: Sequence[str]) -> Iterator[tuple[str, Config]]:
    for width in widths:
        for batch in batches:
            yield f"MLP, {width} units", configure("", workload=TINY_WORKLOAD, width=width, optim__batch_size=batch)
    for name in names:
        yield name, configure(name)


def _row(name: str, config: Config, runs: int, turns: int) -> tuple[str, ...]:
    from gmmae.training import compilation  # the number of CPU devices is set before JAX is imported
    from gmmae.training.population import measure_speed
    from gmmae.training.run_cache import RunCache

    cache = RunCache()
    seeds = [changed(config, seed=seed, parallel__devices=1) for seed in range(runs)]
    steps = compilation.prepare(seeds[0], cache=cache).train_plan.steps
    times = [measure_speed(seeds, cache, always=True) for _ in range(turns)]
    ratio = spread([alone_s / together_s for alone_s, together_s, _ in times if together_s])
    step_s = spread([alone_s / steps for alone_s, *_ in times]).median
    return name, str(config.optim.batch_size), str(runs), f"{1000 * step_s:.3g}", ratio.text(2)


if __name__ == "__main__":
    guarded(main)

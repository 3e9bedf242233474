"""Computes the epochs in which the runs of sweeps passed other targets.

    python -m experiments.targets SWEEP... --out DIR [--targets 0.0022 0.002 0.0018]

It reads every run in these sweeps' work directories. For the run's own target and each target above it, it computes the
epochs and steps, interpolated between validations. A run that has stopped at its target has no epochs for lower ones. DIR
gets targets.csv.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.options import Parser, guarded
from experiments import tables
from gmmae.config.schema import flatten
from gmmae.planner import steps
from gmmae.sweep.display import grid_table
from gmmae.system.errors import InputError
from gmmae.system.stop_reasons import INTERRUPTED
from gmmae.training.records import Record, read_history
from gmmae.training.workdir import WorkDir
from gmmae.workloads.configuration import read_config

TARGETS = (0.0022, 0.002, 0.0018)
"""Targets of the validation loss, between that of the best constant density and the paper's target."""


def ended(sweep: Path) -> Iterator[tuple[WorkDir, Record]]:
    """Yields the runs of a sweep's work directory that ended by themselves."""
    for path in sorted(sweep.glob("runs/*/record.json")):
        folder = WorkDir(path.parent)
        record = folder.read_record()
        if record is not None and record.stop_reason not in INTERRUPTED:
            yield folder, record


def on_the_way(sweep: Path, targets: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Yields a row for each run and target.

    Raises:
      InputError: a target is at or below a run's own.
    """
    for folder, record in ended(sweep):
        config = read_config(folder.config)
        own_target = config.stop.target
        if own_target is None or min(targets, default=1.0) <= own_target:
            raise InputError(f"targets must be above the runs' own, {own_target}; got {min(targets):g}")
        rows, options = read_history(folder.history), dict(flatten(config))
        for target in (*targets, own_target):
            found = steps.steps_to_target(rows, replace(config.stop, target=target))
            yield {
                **{key: options[key] for key in ("scaling", "seed", "data.seed")},
                "devices": record.devices,
                "batch": record.global_batch,
                "target": target,
                "steps": round(found, 1),
                "epochs": round(found / record.steps_per_epoch, 2),
                "machine": record.machine,
                "git_commit": record.git_commit,
            }


def main() -> None:
    """Writes the table."""
    parser = Parser(__doc__)
    parser.add_argument("sweeps", type=Path, nargs="+", metavar="SWEEP")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--targets", type=float, nargs="+", default=list(TARGETS))
    args = parser.parse_args()
    rows = [row for sweep in args.sweeps for row in on_the_way(sweep, args.targets)]
    tables.write(args.out / "targets.csv", rows)
    shown = ("scaling", "devices", "seed", "target", "epochs")
    print(grid_table([shown, *(tuple(str(row[key]) for key in shown) for row in rows)]))


if __name__ == "__main__":
    guarded(main)

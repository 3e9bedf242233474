"""Measures what a sweep takes beside its training: wall time over the sum of training and validation.

    python -m benchmarks.sweep_overhead [--only tiny sweep_quick] [--turns 3] [--jobs 1] [--out FILE.json]
    python -m benchmarks.sweep_overhead --only tiny --sweep-options="--scaling weak --seeds 0"

The part `tiny` is a sweep of 30 computed runs of an MLP. The part `sweep_quick` is the sweep of that configuration. Both
call the command as a user does. Each turn starts without compiled programs. The workers alone are the time from the first run's
start to the last record. The start of the command comes before it, and step times and report come after it.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.child import ROOT
from benchmarks.options import Parser, at_least, guarded, new_file
from benchmarks.spread import spread
from gmmae.plotting.tables import table
from gmmae.system.files import write_text
from gmmae.system.provenance import machine

HERE = Path(__file__).resolve().parent
TINY_WORKLOAD, TINY_SWEEP = HERE / "tiny_mlp.py", HERE / "tiny_sweep.toml"
SWEEPS: Mapping[str, tuple[str, ...]] = {
    "tiny": ("--config", str(TINY_SWEEP), "--run.workload", str(TINY_WORKLOAD)),
    "sweep_quick": ("--config", "sweep_quick"),
}
"""The options of each sweep."""
MAX_ERROR_CHARACTERS = 2000


class SweepTimes(NamedTuple):
    """Seconds of one sweep."""

    runs: int  # of the grid
    computed: int  # runs that were trained; the others share one of these
    wall_s: float  # of the command
    workers_s: float  # from the first run's start to the last record
    start_s: float  # from the command's start to the first run's start
    end_s: float  # from the last record to the command's end
    trained_s: float  # training and validation, summed over the computed runs
    about: dict[str, Any]  # device, versions and commit of the records


def main() -> None:
    """Measures the parts and prints the tables."""
    parser = Parser(__doc__, "python -m benchmarks.sweep_overhead")
    parser.add_argument("--only", nargs="+", choices=list(SWEEPS), default=list(SWEEPS), help="parts to measure; default: all")
    parser.add_argument("--turns", type=at_least(1), default=1, help="number of times that each part is measured")
    parser.add_argument("--jobs", type=at_least(1), default=1, help="runs of a sweep at the same time")
    parser.add_argument("--tree", type=_tree, default=ROOT, help="checkout whose commands are measured; default: this one")
    parser.add_argument("--out", type=new_file, help="JSON file to write the measurements to")
    parser.add_argument("--sweep-options", type=shlex.split, default=[], metavar="OPTIONS", help="more options of sweep.py")
    args = parser.parse_args()
    sweeps: dict[str, list[SweepTimes]] = {}
    for part in dict.fromkeys(args.only):
        for _ in range(args.turns):
            with tempfile.TemporaryDirectory(prefix="sweep_overhead_") as folder:
                words = (*SWEEPS[part], "--jobs", str(args.jobs), *args.sweep_options)
                sweeps.setdefault(part, []).append(measure_sweep(args.tree, Path(folder), words))
    about = next(iter(sweeps.values()))[0].about
    print(_about_text(about), sweep_table(sweeps, args.jobs), sep="\n\n")
    if args.out:
        found = {"jobs": args.jobs, "options": args.sweep_options, "load_after": os.getloadavg()[0]}
        found |= {name: [times._asdict() for times in turns] for name, turns in sweeps.items()}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_text(args.out, json.dumps(found, indent=1) + "\n")


def measure_sweep(tree: Path, folder: Path, options: Sequence[str]) -> SweepTimes:
    """Runs `sweep.py` once, with caches in the folder.

    Args:
      tree: the checkout.
      folder: an empty folder.
      options: of `sweep.py`.

    Raises:
      SystemExit: the sweep failed.
    """
    workdir = folder / "sweep"
    began = time.time()
    first_line = _run(tree, folder, (*options, "--workdir", str(workdir)))
    ended = time.time()
    computed = {path: json.loads(path.read_text(encoding="utf-8")) for path in workdir.glob("runs/*/record.json")}
    last_record = max(path.stat().st_mtime for path in computed)
    return SweepTimes(
        runs=len((workdir / "report" / "runs.csv").read_text(encoding="utf-8").splitlines()) - 1,
        computed=len(computed),
        wall_s=ended - began,
        workers_s=last_record - first_line,
        start_s=first_line - began,
        end_s=ended - last_record,
        trained_s=sum(map(_trained_s, computed.values())),
        about=_about(next(iter(computed.values()))),
    )


def _run(tree: Path, folder: Path, options: Sequence[str]) -> float:
    """Runs a sweep to its end. Returns the time of its first line, which comes just before the first run starts."""
    environ = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(tree)}
    environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, "sweep.py", *options]
    first_line = 0.0
    with (folder / "errors.txt").open("w+", encoding="utf-8") as errors:
        with subprocess.Popen(command, cwd=tree, env=environ, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            assert process.stdout is not None
            for _ in process.stdout:
                first_line = first_line or time.time()
        if process.returncode:
            errors.seek(0)
            print(errors.read()[-MAX_ERROR_CHARACTERS:], end="", file=sys.stderr)
            raise SystemExit(process.returncode)
    return first_line


def _tree(text: str) -> Path:
    path = Path(text).resolve()
    if not (path / "sweep.py").is_file():
        raise ArgumentTypeError(f"must be a checkout of this project, with its sweep.py; got {text!r}")
    return path


def _trained_s(record: Mapping[str, Any]) -> float:
    return record["clocks"]["train_s"] + record["clocks"]["eval_s"]


def _about(record: Mapping[str, Any]) -> dict[str, Any]:
    return {"machine": machine(record["device_kind"]), "versions": record["versions"], "commit": record["git_commit"]}


def _about_text(about: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return f"{about['machine']}; {packages}; commit {about['commit'] or 'unknown'}; load {os.getloadavg()[0]:.1f}"


def sweep_table(sweeps: Mapping[str, Sequence[SweepTimes]], jobs: int) -> str:
    """Returns the table of the sweeps: a row each, with medians and quartiles over the turns."""
    rows = []
    for name, turns in sweeps.items():
        runs = f"{turns[0].computed} for {turns[0].runs}"
        seconds = [[getattr(times, key) for times in turns] for key in ("trained_s", "wall_s", "start_s", "workers_s", "end_s")]
        ratios = [[getattr(times, key) / times.trained_s for times in turns] for key in ("wall_s", "workers_s")]
        rows.append((name, runs, *map(_text, seconds + ratios)))
    columns = ("sweep", "runs", "training and validation, s", "wall, s", "start, s", "workers alone, s")
    columns += ("step times and report, s", "wall / training", "workers / training")
    notes = (f"Runs at the same time: {jobs}. Training and validation are summed over the computed runs.",)
    return table(columns, rows, "Overhead of a sweep", notes)


def _text(values: Sequence[float]) -> str:
    """Returns a median, with quartiles where there are several values."""
    return spread(values).text(digits=3) if len(values) > 1 else f"{values[0]:.3g}"


if __name__ == "__main__":
    guarded(main)

"""Measures what a sweep takes beside its training: wall time over the sum of training and validation.

    python -m benchmarks.sweep_overhead [--only tiny sweep_quick train] [--turns 3] [--jobs 1] [--out FILE.json]
    python -m benchmarks.sweep_overhead --only tiny --sweep-options="--scaling weak --seeds 0"

The part `tiny` is a sweep of 30 computed runs of an MLP. The part `sweep_quick` is the sweep of that configuration. The part
`train` is the start-up of `train.py` with the MLP, without compiled programs and with them. All parts call the commands as a
user does. Each turn of a sweep starts without compiled programs. The workers alone are the time from the first run's start to
the last record. The start of the command comes before it, and step times and report come after it.
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
from gmmae.plotting.tables import Table, markdown
from gmmae.system.files import write_text
from gmmae.system.provenance import machine

HERE = Path(__file__).resolve().parent
TINY_WORKLOAD, TINY_SWEEP = HERE / "tiny_mlp.py", HERE / "tiny_sweep.toml"
SWEEPS: Mapping[str, tuple[str, ...]] = {
    "tiny": ("--config", str(TINY_SWEEP), "--run.workload", str(TINY_WORKLOAD)),
    "sweep_quick": ("--config", "sweep_quick"),
}
"""The options of each sweep."""
TRAIN = "train"
TRAIN_EPOCHS = 30
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


class TrainTimes(NamedTuple):
    """Seconds of one run of `train.py`."""

    wall_s: float
    trained_s: float  # training and validation
    about: dict[str, Any]


def main() -> None:
    """Measures the parts and prints the tables."""
    parser = Parser(__doc__, "python -m benchmarks.sweep_overhead")
    parts = (*SWEEPS, TRAIN)
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts), help="parts to measure; default: all")
    parser.add_argument("--turns", type=at_least(1), default=1, help="number of times that each part is measured")
    parser.add_argument("--jobs", type=at_least(1), default=1, help="runs of a sweep at the same time")
    parser.add_argument("--tree", type=_tree, default=ROOT, help="checkout whose commands are measured; default: this one")
    parser.add_argument("--out", type=new_file, help="JSON file to write the measurements to")
    parser.add_argument("--sweep-options", type=shlex.split, default=[], metavar="OPTIONS", help="more options of sweep.py")
    args = parser.parse_args()
    sweeps: dict[str, list[SweepTimes]] = {}
    trains: dict[str, list[TrainTimes]] = {}
    for part in dict.fromkeys(args.only):
        for _ in range(args.turns):
            with tempfile.TemporaryDirectory(prefix="sweep_overhead_") as folder:
                if part == TRAIN:
                    for start in ("no compiled programs", "compiled programs kept"):
                        trains.setdefault(start, []).append(measure_train(args.tree, Path(folder)))
                else:
                    words = (*SWEEPS[part], "--jobs", str(args.jobs), *args.sweep_options)
                    sweeps.setdefault(part, []).append(measure_sweep(args.tree, Path(folder), words))
    tables = [*([sweep_table(sweeps, args.jobs)] if sweeps else []), *([train_table(trains)] if trains else [])]
    abouts = [turns[0].about for turns in (*sweeps.values(), *trains.values())]
    print(_about_text(abouts[0]), *map(markdown, tables), sep="\n\n", end="")
    if args.out:
        found = {"jobs": args.jobs, "options": args.sweep_options, "load_after": os.getloadavg()[0]}
        found |= {name: [times._asdict() for times in turns] for name, turns in sweeps.items()}
        found |= {f"{TRAIN}, {name}": [times._asdict() for times in turns] for name, turns in trains.items()}
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
    first_line = _run(tree, folder, "sweep.py", (*options, "--workdir", str(workdir)))
    ended = time.time()
    records = {path: json.loads(path.read_text(encoding="utf-8")) for path in (workdir / "records").glob("*.json")}
    last_record = max(path.stat().st_mtime for path in records)
    computed = {record["path"]: record["record"] for record in records.values()}
    return SweepTimes(
        runs=len(records),
        computed=len(computed),
        wall_s=ended - began,
        workers_s=last_record - first_line,
        start_s=first_line - began,
        end_s=ended - last_record,
        trained_s=sum(map(_trained_s, computed.values())),
        about=_about(next(iter(computed.values()))),
    )


def measure_train(tree: Path, folder: Path) -> TrainTimes:
    """Runs `train.py` once with the tiny workload, with caches in the folder. Raises as `measure_sweep`."""
    workdir = Path(tempfile.mkdtemp(dir=folder)) / "run"
    options = ("--workload", str(TINY_WORKLOAD), "--stop.max-epochs", str(TRAIN_EPOCHS), "--workdir", str(workdir))
    began = time.time()
    _run(tree, folder, "train.py", options)
    wall_s = time.time() - began
    record = json.loads((workdir / "record.json").read_text(encoding="utf-8"))
    return TrainTimes(wall_s, _trained_s(record), _about(record))


def _run(tree: Path, folder: Path, program: str, options: Sequence[str]) -> float:
    """Runs a command to its end. Returns the time of its first line, which comes just before the first run starts."""
    environ = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(tree)}
    environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, program, *options]
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


def sweep_table(sweeps: Mapping[str, Sequence[SweepTimes]], jobs: int) -> Table:
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
    return Table("sweep_overhead", "Overhead of a sweep", columns, tuple(rows), notes)


def train_table(trains: Mapping[str, Sequence[TrainTimes]]) -> Table:
    """Returns the table of `train.py`: a row for each state of the caches."""
    rows = tuple(
        (name, *(_text([getattr(times, key) for times in turns]) for key in ("trained_s", "wall_s")))
        for name, turns in trains.items()
    )
    columns = ("start", "training and validation, s", "wall, s")
    return Table("train_start", f"train.py with the tiny workload, {TRAIN_EPOCHS} epochs", columns, rows)


def _text(values: Sequence[float]) -> str:
    """Returns a median, with quartiles where there are several values."""
    return spread(values).text(digits=3) if len(values) > 1 else f"{values[0]:.3g}"


if __name__ == "__main__":
    guarded(main)

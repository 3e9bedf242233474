"""Compares our training with other frameworks, and measures its parts and its cost.

    python -m benchmarks [--parts peers breakdown cost] [--config paper] [--turns 7]

`make bench` runs it. Frameworks that are not installed are left out, with a line. Each part prints its tables and replaces
its section of `results/bench/<hardware>.json`. The exit code is 1 if a reference implementation disagrees with gmmae.
"""

import argparse
import json
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import flops, hardware
from benchmarks.child import ROOT, ask
from benchmarks.options import Parser, at_least, guarded, new_folder
from benchmarks.peers import backends, compare, torch_settings, torch_trial
from benchmarks.peers.workers import start_workers
from gmmae.config.toml import find
from gmmae.system.errors import InputError
from gmmae.system.files import write_text
from gmmae.system.provenance import git_commit, machine, versions
from gmmae.workloads.configuration import read_config

SAMPLES, VALIDATION = {"cpu": 330, "gpu": 2100}, 128
"""Samples of the timed epochs: ten or 65 full steps of 32 and a partial one."""
STEPS = {"cpu": 4, "gpu": 65}
"""Steps of a timed block."""

Section = tuple[dict[str, Any], list[str]]


class Bench:
    """State that the parts share: the options, the machine and the results of earlier parts."""

    def __init__(self, args: argparse.Namespace, folder: Path):
        self.args, self.folder = args, folder
        found = self.problem(args.config, SAMPLES["cpu"], VALIDATION, args.precision)
        self.platform, self.kind, self.batch = found["platform"], found["kind"], found["batch"]
        self.steps = STEPS[self.platform]
        self.samples = enough(self.batch, self.steps, SAMPLES[self.platform])
        self.settings: dict[str, tuple[str, ...]] = {}
        self.path = args.out / f"{slug(machine(self.kind))}.json"
        self.sections: dict[str, Any] = sections(self.path)

    def problem(self, config: str, samples: int, validation: int, precision: str) -> dict[str, Any]:
        """Writes a problem into the folder, in its own process, so that this one starts no threads of JAX."""
        source = {"name": config, "samples": samples, "validation": validation, "precision": precision}
        return ask("benchmarks.peers.gmmae_backend", json.dumps(source), str(self.folder))

    def compared(self, names: tuple[str, ...]) -> Section:
        """Measures agreement, then times. The processes live side by side but work one at a time."""
        found, lines = backends.available(names, self.platform)
        print("".join(f"{line}\n" for line in lines), flush=True)
        if self.args.peers:
            found = [name for name in found if name == names[0] or name in self.args.peers]
        agreed = {self.args.precision: self.agreed(found, self.args.precision)}
        losses = compare.disagreeing(agreed[self.args.precision]["agreement"], ["losses"])
        left_out = agreed[self.args.precision]["steps"] < compare.CHECKED or agreed[self.args.precision]["without"]
        if (losses or left_out) and self.args.precision != "float64":
            agreed["float64"] = self.agreed(backends.models(found), "float64")
            print("".join(f"{line}: rounding, if float64 agrees\n" for line in losses), end="", flush=True)
            losses = compare.disagreeing(agreed["float64"]["agreement"])
        if wrong := losses + compare.disagreeing(agreed[self.args.precision]["agreement"], ["gradient"]):
            raise SystemExit("\n".join(wrong))
        self.problem(self.args.config, self.samples, VALIDATION, self.args.precision)
        tried = self.tried(found)
        with start_workers(found, self.folder, self.settings) as workers:
            times = compare.timings(
                workers,
                batch=self.batch,
                steps=self.steps,
                samples=self.samples,
                turns=self.args.turns,
                epochs=self.args.epochs,
            )
        about = {"agreed": agreed, "precision": self.args.precision, "settings": self.settings, "trials": tried}
        return about | times, compare.timing_tables(times, self.settings)

    def agreed(self, found: list[str], precision: str) -> dict[str, Any]:
        """Compares gradients and losses, over as many steps as rounding allows."""
        self.problem(self.args.config, self.samples, VALIDATION, precision)
        apart = ask("benchmarks.peers.rounding", str(self.folder), str(self.samples), str(compare.CHECKED))
        steps = compare.comparable(apart["losses"])
        without = compare.ambiguous(apart["gradient"])
        with start_workers(found, self.folder) as workers:
            agreement = compare.agreement(workers, self.folder, self.samples, steps, without)
        print(compare.agreement_table(agreement, precision, steps, without), end="\n\n", flush=True)
        return {"steps": steps, "without": without, "rounding": apart, "agreement": agreement}

    def tried(self, found: list[str]) -> dict[str, list[dict[str, Any]]]:
        """Chooses the settings of PyTorch's backends, and returns the trials. The problem is in the folder."""
        asked = self.args.settings
        given = () if asked in (["auto"], ["none"]) else tuple(asked)
        torch = [name for name in found if backends.BACKENDS[name].is_torch and self.platform == "cpu"]
        self.settings = dict.fromkeys(torch, given)
        tried = {}
        for name in torch if asked == ["auto"] else ():
            trials = torch_trial.trials(name, self.folder, tuple(torch_settings.SETTINGS), batch=self.batch, steps=self.steps)
            print(torch_trial.table(name, trials), end="\n\n", flush=True)
            self.settings[name], tried[name] = torch_trial.chosen(trials), [trial._asdict() for trial in trials]
        return tried


def peers(bench: Bench) -> Section:
    """Compares the frameworks."""
    return bench.compared(tuple(backends.BACKENDS))


def uncounted(bench: Bench, part: str) -> bool:
    """Returns whether the configuration has no formula for the operations that a part counts, and prints a line then."""
    if reason := flops.uncounted(read_config(find(bench.args.config))):
        print(f"{part}: left out, {reason}")
    return bool(reason)


def breakdown(bench: Bench) -> Section:
    """Measures the parts of a step."""
    if uncounted(bench, "breakdown"):
        return {}, []
    found = ask("benchmarks.breakdown", "--config", bench.args.config, "--turns", str(bench.args.turns))
    from benchmarks.breakdown import table  # brings JAX, whose threads sleep from here on

    return found, [table(found)]


def cost(bench: Bench) -> Section:
    """Measures compilation, memory and growth."""
    from benchmarks import cost

    if uncounted(bench, "cost"):
        return {}, []
    found = cost.measure(bench.args.config, min(3, bench.args.turns))
    return found, cost.tables(found)


PARTS: dict[str, Callable[[Bench], Section]] = {
    "peers": peers,
    "breakdown": breakdown,
    "cost": cost,
}


def enough(batch: int, steps: int, least: int) -> int:
    """Returns the samples of an epoch: at least a number of full steps, and a partial one.

    >>> enough(32, 4, 330), enough(512, 4, 330)
    (330, 2218)
    """
    return max(least, batch * steps + 2 * (batch // 6))


def slug(text: str) -> str:
    """Returns a file name.

    >>> slug("Intel(R) Xeon(R) Processor 2 cores")
    'intel-r-xeon-r-processor-2-cores'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def sections(path: Path) -> dict[str, Any]:
    """Returns the parts that earlier calls measured on this machine, or none if the file is missing.

    Raises:
      InputError: the file was not written by this program.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError:  # not JSON, or not text
        found = None
    if not isinstance(found, dict):
        raise InputError(f"{path} must hold what an earlier `python -m benchmarks` wrote; got something else: move it away")
    return found


def main() -> None:
    """Runs the parts of the benchmark."""
    parser = Parser(__doc__, "python -m benchmarks")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--config", default="paper")
    parser.add_argument(
        "--peers", nargs="+", choices=list(backends.BACKENDS), help="backends besides gmmae; default: all that are installed"
    )
    parser.add_argument("--precision", choices=["float32", "float64"], default="float32", help="precision of the comparison")
    parser.add_argument("--turns", type=at_least(1), default=7, help="number of timed blocks of steps")
    parser.add_argument("--epochs", type=at_least(0), default=3, help="number of timed epochs")
    parser.add_argument(
        "--settings",
        nargs="+",
        choices=["auto", "none", *torch_settings.SETTINGS],
        default=["auto"],
        help="settings of PyTorch on a CPU; default: those that a trial finds faster",
    )
    parser.add_argument("--out", type=new_folder, default=ROOT / "results" / "bench")
    args = parser.parse_args()
    if len(args.settings) > 1 and {"auto", "none"} & {*args.settings}:
        parser.error(f"argument --settings: auto and none must stand alone; got {' '.join(args.settings)}")
    read_config(find(args.config))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, Path(folder))
        print(f"{machine(bench.kind)}; {', '.join(f'{k} {v}' for k, v in versions().items())}")
        processor = hardware.processor()
        print(f"{hardware.line(processor)}; load {os.getloadavg()[0]:.1f}\n", flush=True)
        for part in args.parts:
            began, load = time.perf_counter(), os.getloadavg()[0]
            section, tables = PARTS[part](bench)
            if not section:
                continue
            print(*tables, sep="\n\n", end="\n\n", flush=True)
            about = {
                "seconds": time.perf_counter() - began,
                "load_before": load,
                "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
                "hardware": processor,
                "commit": git_commit(),
                "versions": versions(),
            }
            bench.sections[part] = {"about": about, **section}
            bench.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(bench.path, json.dumps(bench.sections, indent=1) + "\n")
            print(f"{part}: {about['seconds']:.0f} s, load before {load:.1f}; {bench.path}\n", flush=True)


if __name__ == "__main__":
    guarded(main)

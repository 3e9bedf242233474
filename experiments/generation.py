"""Evaluates generated nodules: their likeness and their novelty.

    python -m experiments.generation --out DIR --root FOLDER [--seeds 5] [--parts split fidelity]
        [--held-out tune] [--division 1] [--runs PATTERN] [--only WAY ...]

Each seed is a JSON file in DIR, and files that exist are not computed again. The CSV file of all seeds is written there at the
end. The part `split` writes DIR/development.csv, and prints the options that train models without the test set.
PATTERN names their work directories, with {seed} in it. Without it only copies of training nodules are measured. The test set
is for the last measurement: `--held-out test`.

A seed of fidelity without a model takes 20 s of one core (AMD EPYC, 2 cores, shared with other work).
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.options import Parser, guarded
from experiments import cohorts, fidelity, tables
from experiments.cohorts import Cohorts
from gmmae.data.volumes import Nodules
from gmmae.system.errors import InputError
from gmmae.system.files import write_text

PARTS = ("split", "fidelity")


def generated(found: Cohorts, run: Path, count: int, seed: int) -> Nodules:
    """Returns new nodules of a run, in the proportions of the training nodules' categories.

    Raises:
      InputError: as `gmmae.load`, or the run has seen patients of the other parts.
    """
    import gmmae
    from gmmae.data import sources
    from gmmae.generation import generator

    trained = gmmae.load(run)
    settings: Any = trained.config.settings
    nodules, divided = sources.load(settings.data)
    cohorts.check_held_out(found, nodules.take(divided.train), run)
    return generator.fit(trained, found.train, found.tune).sample(count, seed=seed).nodules


def fidelity_part(found: Cohorts, judged: Nodules, run: Path | None, seed: int, only: Sequence[str] = ()) -> dict[str, Any]:
    """Returns a row for each way of making nodules."""
    made = fidelity.made(found.train, judged, seed)
    if run is not None:
        made["generated"] = generated(found, run, len(judged.names), seed)
    made = {name: nodules for name, nodules in made.items() if not only or name in only}
    return {"rows": fidelity.rows(made, found.train, judged, seed)}


def main() -> None:
    """Measures what is missing, and writes the table."""
    parser = Parser(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--held-out", choices=("tune", "test"), default="tune")
    parser.add_argument("--division", type=int, choices=cohorts.DIVISIONS, default=cohorts.DIVISIONS[0])
    parser.add_argument("--only", nargs="*", default=[], help="ways of making nodules that are measured; none: all")
    parser.add_argument("--runs", default="")
    args = parser.parse_args()
    found = cohorts.read(args.root, args.division)
    judged = getattr(found, args.held_out)
    print(*(f"{name} {len(getattr(found, name).names)}" for name in ("train", "tune", "test")), flush=True)
    if "split" in args.parts:
        print(cohorts.write_development(found, args.root, args.out / "development.csv"))
    if "fidelity" in args.parts:
        by_seed = [_kept(args, found, judged, seed) for seed in range(args.seeds)]
        ending = "" if args.division == cohorts.DIVISIONS[0] else f"_{args.division}"
        path = args.out / f"fidelity_{args.held_out}{ending}.csv"
        tables.write(path, fidelity.summary([one["rows"] for one in by_seed]))
        print(path, flush=True)


def _kept(args: argparse.Namespace, found: Cohorts, judged: Nodules, seed: int) -> dict[str, Any]:
    """The result of an earlier call with the same options, or a new one."""
    made_with = args.runs.format(seed=seed)
    path = args.out / f"fidelity_{args.held_out}_{seed}.json"
    if path.is_file():
        result = json.loads(path.read_text())
        if result["run"] == made_with:
            return result
        raise InputError(f"{path} is of the runs {result['run'] or '(none)'}; got {made_with or '(none)'}: name another --out")
    start = time.perf_counter()
    run = Path(made_with) if made_with else None
    result = {"run": made_with, **fidelity_part(found, judged, run, seed, args.only), "total_s": 0.0}
    result["total_s"] = round(time.perf_counter() - start, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(result) + "\n")
    print(f"{path}: {result['total_s']} s", flush=True)
    return json.loads(path.read_text())


if __name__ == "__main__":
    guarded(main)

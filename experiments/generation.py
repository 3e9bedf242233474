"""Evaluates generated nodules: their likeness, their novelty, and their use to a classifier.

    python -m experiments.generation --out DIR --root FOLDER [--seeds 5] [--parts split fidelity downstream]
        [--held-out tune] [--division 1] [--runs PATTERN] [--describers RUN ...]
        [--network-seeds 0] [--only WAY ...] [--tasks malignancy category]

Each seed and part is a JSON file in DIR, and files that exist are not computed again. The CSV files of all seeds are written
at the end, to --results. The part `split` writes DIR/development.csv, and prints the options that train models without
the test set.
PATTERN names their work directories, with {seed} in it. Without it only baselines are measured. Describers are other runs
with these options, such as the paper's model. Only their reconstructions are evaluated, under the names of their folders. The
test set is for the last measurement: `--held-out test`.

A seed of fidelity without a model takes 20 s of one core (AMD EPYC, 2 cores, shared with other work).
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.options import Parser, guarded
from experiments import baselines, cohorts, downstream, fidelity, tables
from experiments import gains as gains_of
from experiments.cohorts import Cohorts
from experiments.downstream import Maker, Task
from experiments.fidelity import Entry
from gmmae.data.volumes import Nodules
from gmmae.system.errors import InputError
from gmmae.system.files import write_text

if TYPE_CHECKING:
    from experiments import models

BASELINES = ("repeated", "copy_paste", "cutmix", "mosaic", "smote")
"""Baselines for a classifier (`experiments.baselines`)."""
PARTS = ("split", "fidelity", "downstream")
TASKS = ("malignancy", "category")
"""Tasks of the classifier."""


def fidelity_part(
    found: Cohorts,
    judged: Nodules,
    run: Path | None,
    seed: int,
    describers: Sequence[Path],
    network_seeds: int = 0,
    only: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns a row for each way of making nodules."""
    entries = fidelity.made(found.train, judged, seed)
    seconds: dict[str, float] = {}
    if run is not None:
        trained = _trained(found, run)
        from experiments import models

        makers: dict[str, Callable[[], Entry]] = {
            **_reconstructions("", trained, judged),
            "smote_latent": lambda: Entry(models.smote(trained, found.train, len(judged.names), seed)),
            "generated": lambda: Entry(models.sampled(trained, found.train, found.tune, len(judged.names), seed)),
        }
        for describer in describers:
            makers |= _reconstructions(f"_{describer.name}", _trained(found, describer), judged)
        for name, make in makers.items():
            if only and name not in only:
                continue
            start = time.perf_counter()
            entries[name] = make()
            seconds[name] = time.perf_counter() - start
    entries = {name: entry for name, entry in entries.items() if not only or name in only}
    return {"rows": fidelity.rows(entries, found.train, judged, seed, seed < network_seeds), "seconds": seconds}


def _reconstructions(ending: str, trained: "models.Run", judged: Nodules) -> dict[str, Callable[[], Entry]]:
    """Returns amortised reconstructions, and reconstructions after some steps on each mixture."""
    from experiments import models

    names = {0: "reconstructed", **{steps: f"refined_{steps}" for steps in models.REFINING_STEPS}}
    return {
        f"{name}{ending}": lambda steps=steps: Entry(models.reconstructed(trained, judged, steps), paired=True)
        for steps, name in names.items()
    }


def downstream_part(
    found: Cohorts, judged: Nodules, run: Path | None, seed: int, only: Sequence[str] = (), tasks: Sequence[str] = TASKS
) -> dict[str, Any]:
    """Returns the scores of each task."""
    makers = {name: make for name, make in _makers(found, run).items() if not only or name in only}
    result = {}
    for task_name in tasks:
        task = Task(*(downstream.labelled(nodules, _labels(found, nodules, task_name)) for nodules in (found.train, judged)))
        rows = downstream.run(task, makers, seed)
        result[task_name] = {"labels": task.judged.categories, "groups": task.judged.groups, "rows": rows}
    return result


def _labels(found: Cohorts, nodules: Nodules, task: str) -> Sequence[str]:
    return nodules.categories if task == "category" else downstream.malignancy(found.column(nodules, "malignancy"))


def _makers(found: Cohorts, run: Path | None) -> dict[str, Maker]:
    makers: dict[str, Maker] = {name: downstream.one_by_one(getattr(baselines, name)) for name in BASELINES}
    if run is None:
        return makers
    trained = _trained(found, run)
    from experiments import models

    def generated(training: Nodules, labels: Sequence[str], count: int, seed: int) -> list[Nodules]:
        return models.labelled(trained, found.train, training, found.tune, labels, count, seed)

    return makers | {"generated": generated}


def _trained(found: Cohorts, run: Path) -> "models.Run":
    from experiments import models

    trained = models.read(run)
    cohorts.check_held_out(found, trained.training, run)
    return trained


def main() -> None:
    """Measures what is missing, and writes the tables."""
    parser = Parser(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--held-out", choices=("tune", "test"), default="tune")
    parser.add_argument("--division", type=int, choices=cohorts.DIVISIONS, default=cohorts.DIVISIONS[0])
    parser.add_argument("--network-seeds", type=int, default=0, help="seeds that the network judges too, the first ones")
    parser.add_argument("--only", nargs="*", default=[], help="ways of making nodules that are measured; none: all")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--runs", default="")
    parser.add_argument("--describers", type=Path, nargs="*", default=[])
    parser.add_argument("--results", type=Path, default=Path("results/generation"))
    args = parser.parse_args()
    found = cohorts.read(args.root, args.division)
    judged = getattr(found, args.held_out)
    print(*(f"{name} {len(getattr(found, name).names)}" for name in ("train", "tune", "test")), flush=True)
    if "split" in args.parts:
        print(cohorts.write_development(found, args.root, args.out / "development.csv"))
    fidelity_of = partial(fidelity_part, describers=args.describers, network_seeds=args.network_seeds, only=args.only)
    measured = {"fidelity": fidelity_of, "downstream": partial(downstream_part, only=args.only, tasks=args.tasks)}
    for part, measure in measured.items():
        if part in args.parts:
            by_seed = [_kept(args, part, seed, lambda: measure(found, judged, run, seed)) for seed, run in _runs(args)]  # noqa: B023
            table = fidelity.summary([one["rows"] for one in by_seed]) if part == "fidelity" else gains_of.summary(by_seed)
            ending = "" if args.division == cohorts.DIVISIONS[0] else f"_{args.division}"
            path = args.results / f"{part}_{args.held_out}{ending}.csv"
            tables.write(path, table)
            print(path, flush=True)


def _runs(args: argparse.Namespace) -> list[tuple[int, Path | None]]:
    return [(seed, Path(args.runs.format(seed=seed)) if args.runs else None) for seed in range(args.seeds)]


def _kept(args: argparse.Namespace, part: str, seed: int, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of an earlier call with the same options, or a new one."""
    described = map(str, args.describers if part == "fidelity" else [])
    made_with = " ".join([*([args.runs.format(seed=seed)] if args.runs else []), *described])
    path = args.out / f"{part}_{args.held_out}_{seed}.json"
    if path.is_file():
        result = json.loads(path.read_text())
        if result["run"] == made_with:
            return result
        raise InputError(f"{path} is of the runs {result['run'] or '(none)'}; got {made_with or '(none)'}: name another --out")
    start = time.perf_counter()
    result = {"run": made_with, **measure(), "total_s": 0.0}
    result["total_s"] = round(time.perf_counter() - start, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(result) + "\n")
    print(f"{path}: {result['total_s']} s", flush=True)
    return json.loads(path.read_text())


if __name__ == "__main__":
    guarded(main)

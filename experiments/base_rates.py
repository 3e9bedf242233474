"""Finds the base learning rate of each optimiser on one device, by a rule that was written before the study's runs.

    python -m experiments.base_rates --config luna16_nodules --data FOLDER --searches momentum=1 --out FILE.csv --workdir DIR

The rule:

1. Runs are on one device, with the base batch, constants of the optimiser as configured, and seeds that the study does not
   use: 10, 11 and 12, or those of `--seeds`.
2. A run ends at the target, or after 40 epochs. Its score is the epoch of the target; a miss is infinite.
3. The score of a learning rate is the median over its seeds. Where that is infinite, the median best metric decides.
4. Learning rates are START times powers of two. From START the search goes to the better neighbour, until neither neighbour
   is better. Of two equal neighbours the smaller one comes first.

The CSV has a row for each rate and seed, and marks the learning rate that was taken. Finished runs are not computed again.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gmmae
from benchmarks.options import Parser, guarded
from experiments import tables
from gmmae.config.schema import Config, changed

SEEDS = (10, 11, 12)
MAX_EPOCHS = 40


class Search(NamedTuple):
    """An optimiser, and the learning rate at which its search starts."""

    optimizer: str
    start: float


class Score(NamedTuple):
    """The score of a learning rate. The smaller tuple is better."""

    epochs: float
    cost: float


def climb(score: Callable[[int], Score]) -> int:
    """Returns the exponent with the best score, from 0 by steps of one, when neither neighbour is better.

    >>> climb(lambda exponent: Score(abs(exponent + 3), 0.0)), climb(lambda exponent: Score(math.inf, max(exponent, 2)))
    (-3, 0)
    """
    best = 0
    while True:
        found = min((best - 1, best + 1), key=score)
        if not score(found) < score(best):
            return best
        best = found


def run(config: Config, folder: Path) -> dict[str, Any]:
    """Trains, or resumes, one run and returns its row."""
    record = gmmae.train(config, folder, quiet=True)
    monitored = record.best_value
    return {
        "optimizer": config.optim.name,
        "learning_rate": f"{config.optim.learning_rate:g}",
        "seed": config.seed,
        "outcome": record.stop_reason,
        "epochs": record.epochs,
        "target_epoch": record.target_epoch or "",
        "best": f"{monitored:.6g}" if monitored is not None else "",
        "machine": record.machine,
        "git_commit": record.git_commit,
    }


def score(rows: list[dict[str, Any]], mode: str) -> Score:
    """Returns the score of a learning rate by its runs."""
    epochs = float(np.median([row["target_epoch"] or math.inf for row in rows]))
    best = float(np.median([float(row["best"] or "nan") for row in rows]))
    return Score(epochs, math.inf if math.isnan(best) else best if mode == "min" else -best)


def search(base: Config, wanted: Search, seeds: Sequence[int], workdir: Path) -> list[dict[str, Any]]:
    """Returns the rows of all runs of an optimiser."""
    found: dict[int, list[dict[str, Any]]] = {}

    def of(exponent: int) -> Score:
        rate = float(f"{wanted.start * 2.0**exponent:.4g}")
        if exponent not in found:
            found[exponent] = []
            for seed in seeds:
                config = changed(base, seed=seed, optim__name=wanted.optimizer, optim__learning_rate=rate)
                row = run(config, workdir / f"{wanted.optimizer}-{rate:g}-seed{seed}")
                print(*row.values(), flush=True)
                found[exponent].append(row)
        return score(found[exponent], base.stop.better)

    taken = climb(of)
    return [row | {"taken": "yes" if exponent == taken else ""} for exponent in sorted(found) for row in found[exponent]]


def parsed(text: str) -> Search:
    """Returns a search from `optimizer=rate`."""
    name, _, rate = text.partition("=")
    try:
        return Search(name, float(rate))
    except ValueError:
        raise argparse.ArgumentTypeError(f"a search must be OPTIMIZER=RATE, as momentum=1; got {text}") from None


def main() -> None:
    """Writes the table."""
    parser = Parser(__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--data", required=True, help="folder of the real nodules")
    parser.add_argument("--searches", type=parsed, nargs="+", required=True, metavar="OPTIMIZER=RATE")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workdir", type=Path, required=True)
    args = parser.parse_args()
    # The other changes silence a run, and end one that has collapsed.
    base = gmmae.configure(
        args.config, data__root=args.data, parallel__devices=1, stop__max_epochs=MAX_EPOCHS, stop__collapse_epochs=5,
        log__tensorboard=False, log__figure_epochs=(),
    )  # fmt: skip
    tables.write(args.out, [row for wanted in args.searches for row in search(base, wanted, args.seeds, args.workdir)])


if __name__ == "__main__":
    guarded(main)

"""Tests whether runs that were stopped early could still reach the target, by their last checkpoints.

    python -m experiments.given_up SWEEP... --data FOLDER --out DIR

It reads every run of these sweeps (`keep_checkpoints = true`) that missed its target. It computes three numbers over all
training samples: the gradient's norm, the fraction of trainable units in the encoder's worst layer, and the densities' standard
deviation between samples. `experiments.failure` defines them. A run is

- `frozen` if the gradient's norm is zero in float32. No entry is above 1e-19, so Adam with an ε of 1e-8 changes nothing;
- `blind` if some layer of the encoder is dead and all samples get the same density. No parameter before that layer can
  change, so all samples will always get the same. Its loss cannot fall below `least`. That is the loss of the best constant
  density of each voxel on the validation set, which no mixture may reach;
- `open` otherwise: it could still reach the target.

`drift` is the largest total change of a weight in the encoder's first layer by Adam's memory of earlier gradients. DIR gets
given_up.csv.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from benchmarks.options import Parser, guarded
from experiments import tables
from experiments.failure import judge, numbers
from experiments.more_arms import MORE
from experiments.targets import ended
from gmmae.config.schema import Config, OptimConfig, changed, flatten
from gmmae.scaling.strategies import STRATEGIES
from gmmae.system.stop_reasons import TARGET_REACHED
from gmmae.training import compilation
from gmmae.training.checkpoint import newest
from gmmae.training.step import TrainState
from gmmae.training.workdir import WorkDir
from gmmae.workloads.configuration import read_config

SAME = 1e-6
"""Largest standard deviation between samples that is rounding alone."""


def least(volumes: np.ndarray) -> float:
    """Returns the mean squared logarithmic error of the best constant density: the variance over the samples.

    >>> round(least(np.expm1(np.array([[1.0], [3.0]]))), 6)
    1.0
    """
    return float(np.log1p(np.asarray(volumes, np.float64)).var(axis=0).mean())


def kind(found: Mapping[str, float]) -> str:
    """Returns the state of a run: `frozen`, `blind` or `open`.

    >>> kind({"gradient": 0.0, "alive_encoder": 0.0, "spread": 0.0})
    'frozen'
    >>> kind({"gradient": 0.1, "alive_encoder": 0.0, "spread": 0.0})
    'blind'
    >>> kind({"gradient": 0.1, "alive_encoder": 0.2, "spread": 0.0})
    'open'
    """
    if found["gradient"] == 0:
        return "frozen"
    return "blind" if found["alive_encoder"] == 0 and found["spread"] < SAME else "open"


def drift(state: TrainState, rate: float, optim: OptimConfig) -> float:
    """Returns the sum of Adam's remaining steps of the encoder's first weights without further gradients."""
    first, second = (optax.tree_utils.tree_get(state.opt_state, name)["params"]["encoder"] for name in ("mu", "nu"))
    mean, square = (next(leaf for leaf in jax.tree.leaves(tree) if leaf.ndim > 1) for tree in (first, second))
    return rate / (1 - optim.beta1) * float(np.max(np.abs(mean) / (np.sqrt(square) + optim.epsilon)))


def missed(sweep: Path) -> list[WorkDir]:
    """Returns the runs of a sweep's work directory that ended by themselves without their target."""
    return [folder for folder, record in ended(sweep) if record.stop_reason != TARGET_REACHED]


def _base(config: Config, data: Path) -> Config:
    """Returns a configuration with the run's model and data, for one program that evaluates all runs of a sweep."""
    return changed(config, data__root=str(data), scaling="strong", parallel__simulate_devices=1)


def judged(folders: Sequence[WorkDir], data: Path) -> list[dict[str, Any]]:
    """Returns a row for each run. All runs have one model and one data set."""
    setup = compilation.prepare(_base(read_config(folders[0].config), data))
    blank = compilation.blank_state(setup.config, setup.workload)
    program = judge(setup, compilation.initial_state(setup).params, len(setup.data.train))
    bound, rows = least(np.asarray(setup.data.validation)), []
    for folder in folders:
        record, kept = folder.read_record(), newest(folder.checkpoints, blank)
        assert record is not None
        assert kept is not None
        config, found = read_config(folder.config), numbers(program(kept.state.params))
        options = dict(flatten(config))
        rows.append(
            {key: options[key] for key in ("scaling", "seed", "data.seed", "stop.target")}
            | {
                "devices": record.devices,
                "outcome": record.stop_reason,
                "epochs": record.epochs,
                "val_loss": record.final_val_loss,
            }
            | {"kind": kind(found), "least": bound}
            | {key: found[key] for key in ("gradient", "alive_encoder", "spread", "at_the_edge")}
            | {"drift": drift(kept.state, record.learning_rate, config.optim)}
            | {"machine": record.machine, "git_commit": record.git_commit}
        )
    return rows


def main() -> None:
    """Writes the table."""
    parser = Parser(__doc__)
    parser.add_argument("sweeps", type=Path, nargs="+", metavar="SWEEP")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    STRATEGIES.update(MORE)
    rows = [row for sweep in args.sweeps if (folders := missed(sweep)) for row in judged(folders, args.data)]
    if not rows:
        raise SystemExit("the sweeps must have runs that missed their targets, with checkpoints; got none")
    tables.write(args.out / "given_up.csv", rows)
    for row in rows:
        run = f"{row['scaling']}, n = {row['devices']}, seed {row['seed']}"
        print(f"{row['kind']:6} {run}: {row['outcome']} after {row['epochs']}")
    print(dict(Counter(row["kind"] for row in rows)))


if __name__ == "__main__":
    guarded(main)

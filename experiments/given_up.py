"""Whether runs that were given up could have arrived: what is left to learn in the last checkpoint of each.

    python -m experiments.given_up SWEEP... --data FOLDER --out DIR

Of every run of these sweeps' work directories (`keep_checkpoints = true`) that missed its target, by all training samples:
the gradient's norm, the share of units that still learn in the encoder's worst layer, and the spread of the densities over
samples, as `experiments.failure` has them. A run is

- `frozen` if the gradient's norm is zero in float32: no entry is above 1e-19, and Adam, whose ε is 1e-8, moves nothing by that;
- `blind` if in some layer of the encoder no unit has a gradient, and all samples get the same density: no parameter before
  that layer can change any more, so that all samples will always get the same. Its loss cannot come below `least`, that of the
  best density a voxel that is the same for all samples of the validation set, which no mixture need reach;
- `open` otherwise: it might have arrived.

`drift` is how far what Adam remembers of earlier gradients can still move a weight of the encoder's first layer, in all.

DIR gets given_up.csv.
"""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

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
"""Of the densities' spread: what rounding leaves where all samples get the same."""


def least(volumes: np.ndarray) -> float:
    """The mean squared logarithmic error of the best density that is the same for all samples: the variance over them.

    >>> round(least(np.expm1(np.array([[1.0], [3.0]]))), 6)
    1.0
    """
    return float(np.log1p(np.asarray(volumes, np.float64)).var(axis=0).mean())


def kind(found: Mapping[str, float]) -> str:
    """What a run can still become.

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
    """The sum of the steps that Adam still makes of the encoder's first weights when no gradient comes any more."""
    first, second = (optax.tree_utils.tree_get(state.opt_state, name)["params"]["encoder"] for name in ("mu", "nu"))
    mean, square = (next(leaf for leaf in jax.tree.leaves(tree) if leaf.ndim > 1) for tree in (first, second))
    return rate / (1 - optim.beta1) * float(np.max(np.abs(mean) / (np.sqrt(square) + optim.epsilon)))


def missed(sweep: Path) -> list[WorkDir]:
    """The runs of a sweep's work directory that ended without their target, by themselves."""
    return [folder for folder, record in ended(sweep) if record.stop_reason != TARGET_REACHED]


def _base(config: Config, data: Path) -> Config:
    """The run's model and data, with which one program judges all runs of a sweep."""
    return changed(config, data__root=str(data), scaling="strong", parallel__simulate_devices=1)


def judged(folders: Sequence[WorkDir], data: Path) -> list[dict[str, Any]]:
    """A row for each run, of one model and one data set."""
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", type=Path, nargs="+", metavar="SWEEP")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    STRATEGIES.update(MORE)
    rows = [row for sweep in asked.sweeps if (folders := missed(sweep)) for row in judged(folders, asked.data)]
    if not rows:
        raise SystemExit("the sweeps must have runs that missed their targets, with checkpoints; got none")
    tables.write(asked.out / "given_up.csv", rows)
    for row in rows:
        print(
            f"{row['kind']:6} {row['scaling']}, n = {row['devices']}, seed {row['seed']}: {row['outcome']} after {row['epochs']}"
        )
    print(dict(Counter(row["kind"] for row in rows)))


if __name__ == "__main__":
    main()

"""Measures whether generated nodules help a U-Net that learns from few masks: Dice on real nodules of other patients.

    python -m experiments.few_masks --root FOLDER --out DIR [--numbers 50 100] [--seeds 5] [--only real generated]
        [--held-out tune] [--division 2]

For each seed and number N, N training nodules are chosen. A generator is trained on these N nodules and masks, and on no
others. The tuning set chooses its epoch. Each arm trains the U-Net of `experiments.masks` from equal parameters. Arms have
equally many steps of equal batches, in random symmetries of the cube. `real` sees the N nodules alone. The other arms add
`MULTIPLE` nodules for each real one, in the first steps. `copy_paste` adds symmetries, which `real` has already. So it shows
what chance does.

DIR gets the generators, the U-Nets, and a JSON file for each arm, seed and number. Files that exist are not computed again.
--results gets segmentation_PART_DIVISION.csv.

This file is the generator's workload as well.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
from jaxtyping import Array, Float, Int

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.options import Parser, guarded
from experiments import baselines, cohorts, downstream, gains, masks, tables
from experiments.cohorts import WINDOW, Cohorts
from gmmae.config.rules import PositiveInt, Seed
from gmmae.data.sources import SplitNodules
from gmmae.data.splits import Split
from gmmae.data.volumes import Nodules, joined
from gmmae.generation import generator
from gmmae.generation.judging.novelty import nearest, novelty
from gmmae.generation.prior import Strengths
from gmmae.system.files import whole_file, write_text
from gmmae.workloads import lattice, nodules
from gmmae.workloads.interface import Params, PerSample, Samples, Splits, Workload

if TYPE_CHECKING:
    from gmmae.training.trained import Trained

NUMBERS = (50, 100)
"""Numbers of real training nodules with masks."""
MULTIPLE = 3
"""Number of further nodules for each real one."""
BASELINES = ("copy_paste", "carved", "cutmix")
"""Arms without a model (`experiments.baselines`)."""
ARMS = ("real", "generated", *BASELINES)
STRENGTHS = Strengths(bandwidth=0.6, bands=(0, 16))
"""Strengths of the draws. 50 nodules span fewer components than the generator's own second band begins at."""
EPOCH = 400
"""Samples in an epoch of a generator. The few nodules are repeated, so validation costs little."""
GENERATOR = {
    "optim__batch_size": 16,
    "optim__warmup_epochs": 1,
    "optim__cosine_epochs": 12,
    "stop__max_epochs": 12,
    "checkpoint__every_epochs": 12,
    "log__tensorboard": False,
}
"""Options of a generator besides those of configs/nodules_generate.toml. It is shortened for few nodules."""
STEPS, BATCH, LEARNING_RATE, WARMUP_SHARE = 240, 4, 0.003, 0.1
"""Constants of the U-Net's training. Its learning rate falls along half a cosine."""
JUDGED_AT_ONCE = 32
"""Number of judged nodules in a program, to bound memory."""
MORE_SHARE = 0.5
"""Share of a batch that are further nodules."""
REAL_LAST = 0.6
"""Share of the steps, the last ones, in which batches hold real nodules only."""


@dataclass(frozen=True)
class Config(nodules.Config):
    """Configuration of a generator that knows few nodules."""

    division: PositiveInt = 2  # of experiments.cohorts
    number: PositiveInt = 50  # of training nodules
    lot: Seed = 0  # of their choice


def build(config: Config) -> Workload:
    """Returns the generator's workload. It trains on few nodules and is validated on the tuning set."""

    def load() -> Splits:
        found = cohorts.read(config.data.folder, config.division)
        few = chosen(found.train, config.number, config.lot)
        count, held_out = len(few.names), len(found.tune.names)
        repeated = np.resize(np.arange(count), max(1, EPOCH // count) * count)
        divided = SplitNodules(joined(few, found.tune), Split(repeated, count + np.arange(held_out)))
        return lattice.samples_of(divided, config.data)

    return nodules.build(config)._replace(load=load)


def chosen(training: Nodules, number: int, lot: int) -> Nodules:
    """Returns `number` random nodules, with some of each category."""
    rng = np.random.default_rng([lot, number])
    return training.take(downstream.choose(training.categories, number, rng))


def trained_generator(args: Any, number: int, seed: int) -> "Trained":
    """Returns a generator's model of few nodules, trained only if DIR has it not."""
    import gmmae

    workdir = args.out / f"generator_{number}_{seed}"
    settings = {"data__root": str(args.root.resolve()), "division": args.division, "number": number, "lot": seed, "seed": seed}
    config = gmmae.configure("nodules_generate", workload=str(Path(__file__)), **settings, **GENERATOR)
    gmmae.train(config, workdir, quiet=True)
    return gmmae.load(workdir)


def more_nodules(arm: str, few: Nodules, held_out: Nodules, model: "Callable[[], Trained]", seed: int) -> Nodules | None:
    """Returns the further nodules of an arm; None for the arm of the real ones.

    Copies are not rejected.
    """
    if arm == "real":
        return None
    count = MULTIPLE * len(few.names)
    if arm in BASELINES:
        return getattr(baselines, arm)(few, count, seed)
    fitted = generator.fit(model(), few, held_out)._replace(min_distance=0.0)
    return fitted.sample(count, seed=seed, strengths=STRENGTHS).nodules


def batches(real: int, more: int, seed: int) -> Int[np.ndarray, "steps batch"]:
    """Returns the samples of each step: real ones from 0, further ones from `real`.

    Where batches of two arms hold real nodules, they hold the same ones.
    """
    rng = np.random.default_rng(seed)
    index = rng.integers(real, size=(STEPS, BATCH))
    if more:
        mixed, part = round((1 - REAL_LAST) * STEPS), round(MORE_SHARE * BATCH)
        index[:mixed, :part] = real + rng.integers(more, size=(mixed, part))
    return index


def trained_network(path: Path, workload: Workload, few: Nodules, more: Nodules | None, seed: int) -> Params:
    """Returns the parameters of a U-Net in a file, which is written if there is none."""
    start, key = jax.random.split(jax.random.key(seed))
    params = workload.init(start)
    leaves, tree = jax.tree.flatten(params)
    if not path.is_file():
        samples = masks.samples_of(few)
        if more is not None:
            samples = jax.tree.map(lambda *parts: np.concatenate(parts), samples, masks.samples_of(more))
        state = _optimizer().init(params)
        for step, batch in enumerate(batches(len(few.names), 0 if more is None else len(more.names), seed)):
            chosen_ones = jax.tree.map(lambda array, batch=batch: array[batch], samples)
            params, state = _step(params, state, chosen_ones, jax.random.fold_in(key, step), losses=workload.losses)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part, part.open("wb") as file:
            np.savez(file, *map(np.asarray, jax.tree.leaves(params)))
    with np.load(path) as arrays:
        return jax.tree.unflatten(tree, [arrays[f"arr_{i}"] for i in range(len(leaves))])


def _optimizer() -> optax.GradientTransformation:
    warmup = round(WARMUP_SHARE * STEPS)
    return optax.adam(optax.warmup_cosine_decay_schedule(0.0, LEARNING_RATE, warmup, STEPS, LEARNING_RATE / 100))


@partial(jax.jit, static_argnames=("losses",), donate_argnums=(0, 1))
def _step(params: Params, state: Any, batch: Samples, key: Array, *, losses: Callable) -> tuple[Params, Any]:
    def loss(params: Params) -> Array:
        return losses(params, batch, jax.random.split(key, BATCH)).mean()

    updates, state = _optimizer().update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state


@partial(jax.jit, static_argnames=("metrics",))
def _metrics(params: Params, samples: Samples, *, metrics: Callable) -> PerSample:
    return metrics(params, samples)


def dice_of(workload: Workload, params: Params, judged: Nodules) -> Float[np.ndarray, " judged"]:
    """Returns the Dice of each nodule."""
    samples, found = masks.samples_of(judged), []
    for start in range(0, len(judged.names), JUDGED_AT_ONCE):
        part = jax.tree.map(lambda array, start=start: array[start : start + JUDGED_AT_ONCE], samples)
        found.append(np.asarray(_metrics(params, part, metrics=workload.metrics)["dice"]))
    return np.concatenate(found)


def measured(args: Any, found: Cohorts, workload: Workload, number: int, seed: int, arm: str) -> dict[str, Any]:
    """Returns the row of an arm, from an earlier call or measured now."""
    name = f"{number}_{seed}_{arm}"
    path = args.out / f"{args.held_out}_{name}.json"
    if not path.is_file():
        few, judged = chosen(found.train, number, seed), getattr(found, args.held_out)
        more = more_nodules(arm, few, found.tune, lambda: trained_generator(args, number, seed), seed)
        params = trained_network(args.out / f"unet_{name}.npz", workload, few, more, seed)
        dice = dice_of(workload, params, judged)
        row = {"real": number, "draw": 0, "arm": arm, "classes": [], "scores": dice.round(5).tolist()}
        write_text(path, json.dumps(row | {"nn_sym": None if more is None else _novelty(few, judged, more)}) + "\n")
        print(f"{path}: {dice.mean():.4f}", flush=True)
    return json.loads(path.read_text())


def _novelty(few: Nodules, judged: Nodules, more: Nodules) -> float:
    apart, of_more = (nearest(one.values, few.values, WINDOW, symmetric=True).distance for one in (judged, more))
    return round(novelty(of_more, apart), 4)


def main() -> None:
    """Measures what is missing, and writes the table."""
    parser = Parser(__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--numbers", type=int, nargs="+", default=NUMBERS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--held-out", choices=("tune", "test"), default="tune")
    parser.add_argument("--division", type=int, choices=cohorts.DIVISIONS, default=cohorts.DIVISIONS[-1])
    parser.add_argument("--results", type=Path, default=Path("results/generation"))
    args = parser.parse_args()
    found = cohorts.read(args.root, args.division)
    judged, workload = getattr(found, args.held_out), masks.build(masks.Config())
    row = partial(measured, args, found, workload)
    by_seed = [{"dice": {"labels": [], "groups": judged.groups, "rows": []}} for _ in range(args.seeds)]
    for number in args.numbers:
        for seed, of_seed in enumerate(by_seed):
            of_seed["dice"]["rows"] += [row(number, seed, arm) for arm in args.only]
    path = args.results / f"segmentation_{args.held_out}_{args.division}.csv"
    tables.write(path, gains.summary(by_seed))
    print(path)


if __name__ == "__main__":
    guarded(main)

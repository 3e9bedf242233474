"""Trains the zoo: each workload at several batches and learning rates, five seeds, side by side in one program a batch.

    python -m experiments.zoo.runs --out runs/zoo [--workloads NAME ...]     # NAME.npz: validation curves, and training losses

A batch is trained until the lowest learning rate has reached the target with all seeds, and for 30 % more steps. So a higher
learning rate that has not come by then has missed it.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int

from benchmarks.options import Parser, guarded
from experiments.zoo.workloads import WORKLOADS, Data, Params, Workload
from gmmae.planner.measurements import validation_spacing
from gmmae.planner.step_ratios import MetricCurve, smooth

SEEDS = 5
BATCH_FACTORS = (1, 0.5, 0.25, 2, 4, 8, 16)
"""Batches over the base batch, in the order in which they are trained."""
RATE_FACTORS = (1, 2, 4, 8, 16, 32, 64)
"""Learning rates over the lowest one."""
BASE_MARGIN = 1.25
"""Epochs of the base run over those that define the target."""
SLACK = 1.3
"""Steps of the other batches over those of the lowest learning rate to the target."""
MOST = {0.25: 3.6, 0.5: 2.0}
"""Largest number of steps at small batches, over those of the base batch."""
DECAY = 0.02
"""AdamW's weight decay."""


class Curves(NamedTuple):
    """The runs at one batch.

    Attributes:
      batch: samples of a step.
      spacing: steps between two validations.
      validation: loss at the start and at each validation, by seed and learning rate.
      training: loss of each step.
    """

    batch: int
    spacing: int
    validation: Float[np.ndarray, "seeds rates validations"]
    training: Float[np.ndarray, "seeds rates steps"]

    @property
    def steps(self) -> np.ndarray:
        """The step of each validation."""
        return self.spacing * np.arange(self.validation.shape[-1])


def training_step(workload: Workload, inputs: Array, outputs: Array) -> tuple[optax.GradientTransformation, Callable]:
    """Returns the optimiser, and a step: parameters and its state, samples and learning rate to the next ones and the loss."""
    optimizer = {"momentum": optax.trace(0.9)}.get(workload.optimizer, optax.scale_by_adam())
    decay = DECAY if workload.optimizer == "adamw" else 0.0

    def step(carry: Any, index: Array, learning_rate: Array) -> tuple[Any, Array]:
        params, state = carry
        loss, gradient = jax.value_and_grad(workload.loss)(params, inputs[index], outputs[index])
        updates, state = optimizer.update(gradient, state, params)
        params = jax.tree.map(lambda p, update: p - learning_rate * (update + decay * p), params, updates)
        return (params, state), loss

    return optimizer, step


class Trainer:
    """A workload's compiled training of all seeds and learning rates side by side."""

    def __init__(self, workload: Workload, data: Data):
        self.samples, self.learning_rates = len(data.inputs), workload.learning_rate * np.array(RATE_FACTORS, np.float32)
        inputs, outputs, validation_inputs, validation_outputs = map(jnp.asarray, data)
        optimizer, step = training_step(workload, inputs, outputs)

        def validations(carry: Any, indices: Array, learning_rate: Array) -> tuple[Any, tuple[Array, Array]]:
            def until_validation(carry: Any, indices: Array) -> tuple[Any, tuple[Array, Array]]:
                carry, losses = lax.scan(lambda carry, index: step(carry, index, learning_rate), carry, indices)
                return carry, (workload.loss(carry[0], validation_inputs, validation_outputs), losses)

            return lax.scan(until_validation, carry, indices)

        of_rates = jax.vmap(validations, in_axes=(0, None, 0))
        self.train = jax.jit(jax.vmap(of_rates, in_axes=(0, 0, None)))
        keys = jax.random.split(jax.random.key(7), SEEDS)
        params: Params = jax.vmap(workload.init)(keys)
        first = jax.vmap(lambda of: (of, optimizer.init(of)))(params)
        self.start = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], len(RATE_FACTORS), 1), first)
        losses = jax.vmap(lambda of: workload.loss(of, validation_inputs, validation_outputs))(params)
        self.first_losses = np.repeat(np.asarray(losses)[:, None, None], len(RATE_FACTORS), 1)

    def curves(self, batch: int, goes_on: Callable[[Curves], bool]) -> Curves:
        """Trains at a batch as long as `goes_on` says so."""
        spacing = validation_spacing(self.samples, batch)
        count = max(4, min(16, 64 // spacing))
        carry, orders = self.start, [batches(self.samples, batch, seed) for seed in range(SEEDS)]
        validation, training = [self.first_losses], []
        while True:
            indices = np.stack([[next(order) for _ in range(count * spacing)] for order in orders])
            carry, (losses, of_steps) = self.train(
                carry, indices.reshape(SEEDS, count, spacing, batch), jnp.asarray(self.learning_rates)
            )
            validation.append(np.asarray(losses))
            training.append(np.asarray(of_steps).reshape(*losses.shape[:2], -1))
            found = Curves(batch, spacing, np.concatenate(validation, -1), np.concatenate(training, -1))
            if not goes_on(found):
                return found


def batches(samples: int, batch: int, seed: int) -> Iterator[Int[np.ndarray, " batch"]]:
    """Yields the samples of each step: whole batches of one permutation after another."""
    rng = np.random.default_rng((seed, batch))
    while True:
        order = rng.permutation(samples).astype(np.int32)
        yield from order[: samples // batch * batch].reshape(-1, batch)


def levels(base: Curves, epochs: int, samples: int) -> list[float]:
    """Returns the targets: the median loss of the lowest learning rate after a quarter of the epochs, and after all.

    Each is one that all seeds reach.
    """
    lowest = smooth(base.validation)[:, 0]
    median = np.minimum.accumulate(np.median(lowest, 0))
    reachable = lowest.min(-1).max()
    parts = ((epochs / 4, 0.02), (epochs, 0.01))
    of_epochs = (np.interp(part * samples / base.batch, base.steps, median) for part, _ in parts)
    return [
        max(float(level), reachable + margin * (median[0] - reachable))
        for level, (_, margin) in zip(of_epochs, parts, strict=True)
    ]


def train(workload: Workload) -> tuple[dict[float, Curves], list[float]]:
    """Returns the curves by factor of the batch, and the targets."""
    data = workload.data()
    trainer, samples = Trainer(workload, data), len(data.inputs)
    enough = math.ceil(BASE_MARGIN * workload.epochs * samples / workload.batch_size)
    base = trainer.curves(workload.batch_size, lambda found: found.steps[-1] < enough)
    targets = levels(base, workload.epochs, samples)

    def slowest(found: Curves) -> float:
        return max(MetricCurve(found.steps, losses).reaches(targets[-1]) for losses in smooth(found.validation)[:, 0])

    found, longest = {1.0: base}, {1.0: slowest(base)}
    for factor in BATCH_FACTORS[1:]:
        batch = int(workload.batch_size * factor)
        if not 1 < batch <= samples:
            continue
        most = MOST.get(factor, SLACK * 2) * longest[max(1.0, factor / 2)]

        def goes_on(curves: Curves, most: float = most) -> bool:
            return curves.steps[-1] < min(most, SLACK * slowest(curves))

        found[factor] = trainer.curves(batch, goes_on)
        longest[factor] = min(slowest(found[factor]), most)
    return found, targets


def write(path: Path, found: dict[float, Curves], targets: Sequence[float], samples: int) -> None:
    """Writes the curves of a workload."""
    arrays: dict[str, Any] = {"targets": targets, "samples": samples}
    for factor, curves in found.items():
        for field, value in curves._asdict().items():
            arrays[f"{factor:g}/{field}"] = np.asarray(value, np.float32 if field in ("validation", "training") else None)
    np.savez_compressed(path, **arrays)


def read(path: Path) -> tuple[dict[float, Curves], list[float], int]:
    """Returns the curves by factor of the batch, the targets, and the number of training samples."""
    with np.load(path) as file:
        factors = sorted({float(name.split("/")[0]) for name in file.files if "/" in name})
        found = {
            factor: Curves(
                int(file[f"{factor:g}/batch"]), int(file[f"{factor:g}/spacing"]),
                file[f"{factor:g}/validation"].astype(float), file[f"{factor:g}/training"].astype(float),
            )
            for factor in factors
        }  # fmt: skip
        return found, [float(level) for level in file["targets"]], int(file["samples"])


def files(text: str | None) -> dict[str, Path]:
    """Returns the file of each workload that the command line names, in a folder that is there; `text` is the help."""
    parser = Parser(text)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    return {name: args.out / f"{name}.npz" for name in args.workloads}


def main() -> None:
    """Trains the workloads that are not there yet."""
    for name, path in files(__doc__).items():
        if path.exists():
            continue
        began = time.perf_counter()
        found, targets = train(WORKLOADS[name])
        write(path, found, targets, len(WORKLOADS[name].data().inputs))
        lasted = ", ".join(f"{factor:g}: {curves.steps[-1]}" for factor, curves in sorted(found.items()))
        print(
            f"{name}: targets {targets[0]:.4g}, {targets[1]:.4g}; steps {lasted}; {time.perf_counter() - began:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    guarded(main)

"""Compares two predictions of a nodule's mask from its cube: a model's head, and a U-Net.

    python -m experiments.masks --root FOLDER --run RUN --workdir DIR [--held-out test]

The head knows a latent vector. The U-Net reads the cube. Both are trained on the study's training
nodules and chosen by its tuning set. `experiments.generation --parts split` makes RUN. --results gets masks_PART.csv, the mean
Dice over the nodules with an interval by patient.

This file is the U-Net's workload as well: `train.py --workload experiments/masks.py --root FOLDER`.

100 epochs take 10 minutes (Intel Xeon, 2 cores, shared with other work).
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gmmae.config.rules import Section
from gmmae.data.volumes import windowed
from gmmae.generation.judging.features import radii
from gmmae.workloads.interface import Params, PerSample, Samples, Splits, Workload

sys.path.append(str(Path(__file__).parents[1]))

if TYPE_CHECKING:
    from jax import Array

    from gmmae.data.volumes import Nodules

SHAPE = (16, 16, 16)
"""Voxels of a cube, as `experiments.cohorts` reads it."""
FEATURES = (12, 24, 48)
"""Channels of the U-Net's stages."""
OPTIONS = {
    "optim__learning_rate": 0.003,
    "optim__batch_size": 16,
    "optim__warmup_epochs": 10,
    "optim__cosine_epochs": 100,
    "stop__max_epochs": 100,
}
"""Options of its training."""


@dataclass(frozen=True)
class Config(Section):
    """Configuration of the U-Net."""

    root: str = ""  # the nodules' folder


def build(config: Config) -> Workload:
    """Returns the workload. A sample has a mask and two channels, the windowed HU and the distance from the middle."""
    import jax
    import jax.numpy as jnp

    from experiments import cohorts
    from gmmae.models.losses import dice
    from gmmae.models.unet import UNet, mask_losses
    from gmmae.workloads.augment import symmetries
    from gmmae.workloads.segmentation import CPU_BATCH_PIXELS

    module = UNet(FEATURES)

    def load() -> Splits:
        read = cohorts.read(Path(config.root))
        return Splits(
            samples_of(read.train),
            samples_of(read.tune),
            "masks of cubes",
            names={"train": read.train.names, "validation": read.tune.names},
            groups={"train": read.train.groups, "validation": read.tune.groups},
        )

    def logits(params: Params, samples: Samples, keys: "Array | None") -> "tuple[Array, Array]":
        shares, masks = (jnp.asarray(samples[name]) for name in ("shares", "masks"))
        if keys is not None:
            shares, masks = symmetries(shares, keys), symmetries(masks, keys)
        out = module.apply(params, _images(shares))
        assert isinstance(out, jax.Array)
        return out, masks > 0

    def losses(params: Params, samples: Samples, keys: "Array | None") -> "Array":
        out, masks = logits(params, samples, keys)
        return mask_losses(out, masks, jnp.ones_like(masks))

    def init(key: "Array") -> Params:
        return module.init(key, jnp.zeros((1, *SHAPE, 2)))

    def metrics(params: Params, samples: Samples) -> PerSample:
        return {"dice": dice(*logits(params, samples, None))}

    return Workload(load, init, losses, metrics, cpu_samples=max(1, CPU_BATCH_PIXELS // math.prod(SHAPE)))


def samples_of(nodules: "Nodules") -> dict[str, np.ndarray]:
    """Returns the U-Net's inputs: windowed HU from 0 to 1, and masks."""
    assert nodules.masks is not None
    from experiments.cohorts import WINDOW

    return {"shares": windowed(nodules.values, WINDOW).astype(np.float32), "masks": nodules.masks.astype(np.float32)}


def _images(shares: "Array") -> "Array":
    import jax.numpy as jnp

    radius = jnp.broadcast_to(jnp.asarray(radii(shares.shape[1:]), shares.dtype), shares.shape)
    return jnp.stack([2 * shares - 1, radius - 1], axis=-1)


def ball(masks: np.ndarray) -> np.ndarray:
    """Returns the ball in the middle that has the largest mean Dice with these masks."""
    balls = [radii(masks.shape[1:]) <= radius for radius in np.linspace(0.2, 1, 41)]
    totals = masks.sum((1, 2, 3))
    return max(balls, key=lambda one: np.mean(2 * (masks * one).sum((1, 2, 3)) / (totals + one.sum())))


def main() -> None:
    """Trains the U-Net, unless DIR has it, and writes the table."""
    import jax.numpy as jnp

    import gmmae
    from benchmarks.options import Parser
    from experiments import cohorts, models, tables
    from gmmae.generation import generator
    from gmmae.generation.judging import bootstrap
    from gmmae.models.losses import dice

    parser = Parser(__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--held-out", choices=("tune", "test"), default="tune")
    parser.add_argument("--results", type=Path, default=Path("results/generation"))
    args = parser.parse_args()
    found = cohorts.read(args.root)
    config = gmmae.configure("", workload=str(Path(__file__)), root=str(args.root.resolve()), **OPTIONS)
    gmmae.train(config, args.workdir)
    judged, reader, trained = getattr(found, args.held_out), gmmae.load(args.workdir), models.read(args.run)
    cohorts.check_held_out(found, trained.training, args.run)
    head = generator.decode(trained.model, generator.encode(trained.model, judged))["mask"]
    assert found.train.masks is not None
    middle = np.broadcast_to(ball(found.train.masks > 0), judged.masks.shape)
    truth = jnp.asarray(judged.masks > 0)
    scores = {
        "the ball that suits the training nodules best": np.asarray(dice(jnp.asarray(middle - 0.5), truth)),
        "the model's head": np.asarray(dice(jnp.asarray(head - 0.5), truth)),
        "a U-Net that reads the cube": reader.metrics(samples_of(judged))["dice"],
    }
    lines = []
    for name, of in scores.items():
        mean = bootstrap.mean(of, judged.groups, seed=0)
        lines.append(
            {"found by": name, "nodules": len(of), **{key: tables.number(value) for key, value in mean._asdict().items()}}
        )
        print(*lines[-1].values())
    tables.write(args.results / f"masks_{args.held_out}.csv", lines)


if __name__ == "__main__":
    main()

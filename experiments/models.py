"""Results of a trained model: reconstructions, and new nodules from generators fitted to given nodules and labels."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments import baselines
from gmmae.data.volumes import Nodules, from_density, masses, to_density
from gmmae.generation import generator
from gmmae.generation.generator import Generator, Wanted
from gmmae.generation.prior import Strengths
from gmmae.system.errors import InputError
from gmmae.training.trained import Trained

REFINING_STEPS = (30, 120)
FOR_CLASSIFIERS = (0.6, 0.8, 1.2, 1.6)
"""Bandwidths in the order of preference. The first one with enough nodules that are no copies is used.

Labels fade with the noise. The tuning set preferred smaller values down to 0.6. The last one is more than the generator's own,
because few nodules with a label may leave too many copies at that.
"""


class Run(NamedTuple):
    """A trained model and its training nodules."""

    model: Trained
    training: Nodules


def read(run: Path) -> Run:
    """Reads the best parameters of a run, and its training set.

    Raises:
      InputError: as `gmmae.load`.
    """
    import gmmae
    from gmmae.data import sources

    trained = gmmae.load(run)
    data: Any = trained.config.settings
    nodules, divided = sources.load(data.data)
    return Run(trained, nodules.take(divided.train))


def reconstructed(run: Run, nodules: Nodules, steps: int = 0) -> Nodules:
    """Returns reconstructions after `steps` steps on each mixture, without masks and with the same patients."""
    window = generator.window_of(run.model)
    density = to_density(nodules.values, window)
    described = (run.model.refine(density, steps) if steps else run.model.describe(density))["density"]
    return nodules._replace(values=_hu(described, masses(nodules.values, window), window), masks=None)


def smote(run: Run, training: Nodules, count: int, seed: int) -> Nodules:
    """Interpolates the latent vectors of a training nodule and one of its 5 nearest of its category, and their masses.

    The result has no texture.
    """
    latent = generator.encode(run.model, training)
    window = generator.window_of(run.model)
    mass = np.log(masses(training.values, window))
    one, two, share = baselines.between(latent / latent.std(), training.categories, count, seed)
    points, mixed = (x[one] + share.reshape(-1, *[1] * (x.ndim - 1)) * (x[two] - x[one]) for x in (latent, mass))
    decoded = generator.decode(run.model, points.astype(np.float32))
    values = _hu(decoded["density"], np.exp(mixed), window)
    return baselines.named("latent", training, one, values, decoded["mask"] > 0.5)


def _hu(density: np.ndarray, mass: np.ndarray, window: tuple[float, float]) -> np.ndarray:
    return generator.to_hu(from_density(density, mass, (0.0, 1.0)), window)


def sampled(run: Run, training: Nodules, held_out: Nodules, count: int, seed: int) -> Nodules:
    """Returns new nodules from a generator fitted to these training nodules, in the proportions of their categories."""
    return generator.fit(run.model, training, held_out).sample(count, seed=seed).nodules


def labelled(
    run: Run, everything: Nodules, known: Nodules, held_out: Nodules, labels: Sequence[str], count: int, seed: int
) -> list[Nodules]:
    """Returns `count` new nodules of each label, from a generator fitted to all nodules.

    Only the known nodules have labels. The others provide everything that does not depend on a label.
    """
    label_of = dict(zip(known.names, known.categories, strict=True))
    nodules = everything._replace(categories=tuple(label_of.get(name, "") for name in everything.names))
    fitted = generator.fit(run.model, nodules, held_out)
    return [_nearest_sample(fitted, count, label, seed) for label in labels]


def _nearest_sample(fitted: Generator, count: int, label: str, seed: int) -> Nodules:
    *first, last = FOR_CLASSIFIERS
    for bandwidth in first:
        with suppress(InputError):  # too many copies
            return fitted.sample(count, Wanted(label), seed, strengths=Strengths(bandwidth)).nodules
    return fitted.sample(count, Wanted(label), seed, strengths=Strengths(last)).nodules

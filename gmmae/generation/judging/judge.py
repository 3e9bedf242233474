"""Comparison of generated with real nodules: fidelity, coverage and novelty, each beside the value of real nodules.

Copies of the training set have perfect fidelity, so novelty stands beside it. Both columns compare equally many nodules with
the same real ones: most values depend on the number.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from gmmae.data.grouped import FOLDS
from gmmae.data.splits import split
from gmmae.data.volumes import Nodules
from gmmae.generation.judging.features import CT_WINDOW, as_hu, features
from gmmae.generation.judging.novelty import Nearest, Novelty, copies, measure
from gmmae.generation.judging.two_samples import Comparison, Sample, compare
from gmmae.system.errors import InputError

MIN_NODULES = 25
"""In each set: five folds of five."""
MIN_PATIENTS = FOLDS
"""In each set, one for each fold. Intervals of fewer are far too narrow."""


class Judgement(NamedTuple):
    """The result of `judge`."""

    generated: Comparison  # of generated with real nodules
    real_vs_real: Comparison  # of equally many other real nodules with them, a perfect generator's result
    novelty: Novelty | None  # None: no training set
    nearest: Nearest | None  # training nodule of each generated one, compared or not
    masks: bool  # whether shapes follow from masks, not intensity
    window: tuple[float, float]
    hu: bool
    given: tuple[Nodules, Nodules, Nodules | None]  # real, generated, training
    compared: tuple[Nodules, Nodules]  # real and generated, equally many
    features: tuple[Float[np.ndarray, "compared features"], Float[np.ndarray, "compared features"]]


def judge(
    real: Nodules,
    generated: Nodules,
    training: Nodules | None = None,
    seed: int = 0,
    *,
    window: tuple[float, float],
    hu: bool = True,
    count: int = 0,
) -> Judgement:
    """Compares generated nodules with real ones held out of the generator's training; all volumes have one shape.

    `real_vs_real` compares the same real nodules with equally many of the training set, from other patients. Without a training
    set the real nodules are divided by patient, and both comparisons are with the first half. `count` nodules of each set are
    compared, 0 for the size of the smallest.

    Raises:
      InputError: too few nodules or patients, or sets that share nodules or patients.
    """
    _check(real, generated, training, window)
    if training is None:
        first, second = split(real.groups, real.categories, len(real.names) // 2, seed, whole=False)
        parts = {"the first half of REAL": real.take(first), "the second half of REAL": real.take(second)}
    else:
        parts = {"REAL": real, "--train": training}
    parts["GENERATED"] = generated
    smallest = min(len(nodules.names) for nodules in parts.values())
    if count and not MIN_NODULES <= count <= smallest:
        raise InputError(f"--count must be all, or from {MIN_NODULES} to {smallest}, the size of the smallest set; got {count}")
    # Generated ones come last, so their number does not change the real column.
    rng = np.random.default_rng(seed)
    chosen = [np.sort(rng.permutation(len(nodules.names))[: count or smallest]) for nodules in parts.values()]
    compared = [nodules.take(index) for nodules, index in zip(parts.values(), chosen, strict=True)]
    for name, nodules in zip(parts, compared, strict=True):
        _require_enough(f"the {len(nodules.names)} compared nodules of {name}", nodules)
    masks = all(nodules.masked.all() for nodules in compared)
    reference, others, new = (population(nodules, masks, window, hu) for nodules in compared)
    return Judgement(
        compare(reference, new, seed),
        compare(reference, others, seed),
        *((None, None) if training is None else measure(compared[0], generated, training, window, seed, chosen[2])),
        masks,
        window,
        hu,
        (real, generated, training),
        (compared[0], compared[2]),
        (reference.features, new.features),
    )


def population(nodules: Nodules, masks: bool, window: tuple[float, float], hu: bool = True) -> Sample:
    """Features of volumes, with shapes from masks if asked for."""
    values, window = (nodules.values, window) if hu else (as_hu(nodules.values, window), CT_WINDOW)
    return Sample(features(values, nodules.masks if masks else None, window), nodules.groups)


def _check(real: Nodules, generated: Nodules, training: Nodules | None, window: tuple[float, float]) -> None:
    # two halves of the real nodules
    _require_enough("REAL", real, 2 if training is None else 1)
    for name, others in (("GENERATED", generated), ("--train", training)):
        if others is None:
            continue
        _require_enough(name, others)
        if name == "--train" and (shared := {*real.groups} & {*others.groups}):
            raise InputError(
                f"REAL must have been held out of the training set; {len(shared)} of its {len(set(real.groups))} patients are "
                f"in --train, such as {min(shared)}: leave them out of one"
            )
        origins = real.table["origin"]
        if (again := np.isin(origins, others.table["origin"]) & (origins != "")).any():
            raise InputError(
                f"REAL must share no nodule with {name}; {again.sum()} of its {len(again)} are cut from a scan or volume "
                f"that is in it too, such as {real.names[again.argmax()]}: leave them out of one"
            )
        if found := copies(real.values, others.values, window):
            first, same = min(found.items())
            raise InputError(
                f"REAL must share no nodule with {name}; {len(found)} of its {len(real.names)} are in it, "
                f"perhaps flipped, such as {real.names[first]}, which is {others.names[same]}: leave them out of one"
            )


def _require_enough(name: str, nodules: Nodules, parts: int = 1) -> None:
    count, patients = len(nodules.names), len(set(nodules.groups))
    if count < parts * MIN_NODULES or patients < parts * MIN_PATIENTS:
        remedy = "add some" + (", or name the training set with --train" if parts > 1 else "")
        raise InputError(
            f"{name} must have at least {parts * MIN_NODULES} nodules of at least {parts * MIN_PATIENTS} patients (or scans, "
            f"if no patient is named); got {count} of {patients}: {remedy}"
        )

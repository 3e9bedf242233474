"""Labelled volumes of a run's data, divided as the run did, and what its model finds in them."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Shaped

from gmmae.classification.features import block_means, mixture_features
from gmmae.data import grouped, sources
from gmmae.data.settings import CROP_PATTERN, DataConfig
from gmmae.data.volumes import Nodules, masses, own_columns, to_density
from gmmae.system.errors import InputError
from gmmae.training.trained import Trained

MIN_SAMPLES = 2 * grouped.FOLDS
"""Fewest samples of each class in the training set."""


class LabelRule(NamedTuple):
    """How labels follow from a column of the CSV."""

    column: str | None = None  # None: the categories
    at_most: float | None = None  # up to this one: the first class; None: labels are text
    at_least: float | None = None  # from this one on the second class; those between have no label


class Labelled(NamedTuple):
    """Labelled volumes."""

    nodules: Nodules  # those without a label are left out
    classes: tuple[str, ...]  # their names
    truth: Int[np.ndarray, " samples"]  # class of each volume
    train: Int[np.ndarray, " train"]
    test: Int[np.ndarray, " test"]  # the model was not trained on them
    folds: list[tuple[np.ndarray, np.ndarray]]  # that choose settings, without the test set
    own_test: bool  # whether the data have a test set of their own
    unlabelled: int  # volumes without a label


def load(data: DataConfig, rule: LabelRule) -> Labelled:
    """Loads the data of a run, with their labels."""
    loaded = sources.load(replace(data, augment_with=None))
    labels = _labels(loaded.nodules, rule)
    kept = np.flatnonzero(labels != "")
    classes = np.unique(labels[kept])
    if len(classes) < 2:
        column = rule.column or ("category" if data.source == "medmnist" else data.category_column)
        raise InputError(
            f"labels must be of two classes or more; the column {column!r} gives {', '.join(classes) or 'none'}: name another "
            "with --label-column"
        )
    nodules, truth = loaded.nodules.take(kept), np.searchsorted(classes, labels[kept])
    train, validation, own = (np.flatnonzero(np.isin(kept, part)) for part in (*loaded.split, loaded.test))
    own_test = len(loaded.test) > 0
    test = own if own_test else validation
    parts = {"training": train, "test": test} | ({"validation": validation} if own_test else {})
    for name, part in parts.items():
        counts, least = np.bincount(truth[part], minlength=len(classes)), MIN_SAMPLES if name == "training" else 1
        if counts.min() < least:
            raise InputError(
                f"the {name} set must have {least} or more samples of each class; it has {counts.min()} of "
                f"{str(classes[counts.argmin()])!r}"
            )
    folds = [(train, validation)]
    if not own_test:
        divided = grouped.folds(truth[train], nodules.table["group"][train], data.seed)
        folds = [(train[fit], train[judged]) for fit, judged in divided]
    if not folds:
        raise InputError(
            f"a class must be in several of {grouped.FOLDS} folds by {nodules.by}; got one whose samples are of few groups"
        )
    return Labelled(nodules, tuple(classes.tolist()), truth, train, test, folds, own_test, len(labels) - len(kept))


def _labels(nodules: Nodules, rule: LabelRule) -> Shaped[np.ndarray, " samples"]:
    words = nodules.table["category"] if rule.column is None else nodules.column(rule.column)
    if words is None:
        known = ", ".join(own_columns(nodules.table, ())) or "none"
        raise InputError(f"--label-column must be one of the data's columns, {known}; got {rule.column}")
    if rule.at_most is None or rule.at_least is None:
        return words
    try:
        numbers = np.array([float(word or "nan") for word in words])
    except ValueError as error:
        raise InputError(
            f"--label-at-most needs numbers in {rule.column or 'the categories'}; {error}: name another --label-column"
        ) from None
    ranges = [numbers <= rule.at_most, numbers >= rule.at_least]
    return np.select(ranges, [f"at most {rule.at_most:g}", f"at least {rule.at_least:g}"], "")


def inputs(model: Trained, labelled: Labelled, data: DataConfig, blocks: int) -> dict[str, np.ndarray]:
    """The features of each kind, for all volumes.

    Diameters are a kind of their own where `data.crop` is a multiple of them, because the cubes then do not show them.
    """
    nodules = labelled.nodules
    density = to_density(nodules.values, data.window, nodules.places)
    described = model.describe(density)
    mixture = mixture_features(*(np.asarray(described[name]) for name in ("weights", "means", "covariances")))
    log_mass = np.log(masses(nodules.values, data.window, nodules.places))
    kinds = {
        "mixture": np.column_stack([mixture, log_mass]),
        "latent": np.asarray(model.encode(density), np.float64),
        "voxels": block_means(nodules.values, data.window, blocks),
    }
    kinds["all three"] = np.column_stack(list(kinds.values()))
    crop = CROP_PATTERN.fullmatch(data.crop)
    if crop is not None and crop["unit"] == "x" and not np.isnan(nodules.diameter_mm).any():
        sizes = np.log(nodules.diameter_mm)[:, None]
        kinds |= {"diameter": sizes, "all three and diameter": np.column_stack([kinds["all three"], sizes])}
    return kinds

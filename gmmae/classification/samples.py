"""Labelled volumes of a run's data, divided as the run did, and what its model finds in them."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Shaped
from sklearn.decomposition import PCA
from sklearn.model_selection import StratifiedGroupKFold

from gmmae.classification.features import block_means, mixture_features
from gmmae.data import grouped, sources
from gmmae.data.extraction.annotations import SERIES, is_blank
from gmmae.data.settings import CROP_PATTERN, DataConfig
from gmmae.data.volumes import Nodules, masses, own_columns, to_density, windowed
from gmmae.system.errors import InputError
from gmmae.training.trained import Trained

MIN_SAMPLES = 2 * grouped.FOLDS
"""Fewest samples of each class in the training set."""


MIN_TEST_GROUPS = 50
"""With fewer test patients all are cross-validated: half of 50 in each class leave an AUC uncertain by ±0.14."""
COMPONENTS = 10
"""Principal components of the voxels. Standardised, the small ones of many more are noise that hides the large ones."""

Indices = Int[np.ndarray, " samples"]


class LabelRule(NamedTuple):
    """How labels follow from a column of the CSV."""

    column: str | None = None  # None: the categories
    at_most: float | None = None  # up to this one: a class; None: labels are text
    at_least: float | None = None  # from this one on: the other class; those between have no label


class Labelled(NamedTuple):
    """Labelled volumes."""

    nodules: Nodules  # those without a label are left out
    classes: tuple[str, ...]  # their names
    truth: Int[np.ndarray, " samples"]  # class of each volume
    seen: Indices  # the model was trained on them
    patients: set[str]  # names of those whose volumes, labelled or not, the model or what is kept was fitted to
    test: Indices  # those that judge; all of them are a cross-validation
    # Volumes to fit to, those that judge the fit, and folds of the first, or a validation set, that choose settings. Of a
    # cross-validation the last round judges nothing, and fits what is kept.
    rounds: list[tuple[Indices, Indices, list[tuple[Indices, Indices]]]]
    own_test: bool  # whether the data have a test set of their own
    unlabelled: int  # volumes without a label


def load(data: DataConfig, rule: LabelRule) -> Labelled:
    """Loads the data of a run, with their labels."""
    loaded = sources.load(replace(data, augment_with=None))
    labels = labels_of(loaded.nodules, rule)
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
    groups, parts = nodules.table["group"], {"training": train, "test": own if own_test else validation}
    if own_test:
        parts["validation"] = validation
    elif len(set(groups[validation])) < MIN_TEST_GROUPS:
        parts = {"training": np.arange(len(truth))}
    for name, part in parts.items():
        counts, least = np.bincount(truth[part], minlength=len(classes)), MIN_SAMPLES if name == "training" else 1
        if counts.min() < least:
            raise InputError(
                f"the {name} set must have {least} or more samples of each class; it has {counts.min()} of "
                f"{str(classes[counts.argmin()])!r}, one of {len(classes)} classes, such as {', '.join(classes[:3])}: labels "
                "count as they are written"
            )
    fitted = parts["training"]
    pairs = [(fitted, parts.get("test", fitted[:0]))]
    if "test" not in parts:
        pairs[:0] = StratifiedGroupKFold(grouped.FOLDS, shuffle=True, random_state=data.seed).split(truth, truth, groups)
    rounds = []
    for fit, test in pairs:
        folds = [(fit[inner], fit[outer]) for inner, outer in grouped.folds(truth[fit], groups[fit], data.seed)]
        rounds.append((fit, test, [(train, validation)] if own_test else folds))
    if not all(folds for *_, folds in rounds):
        raise InputError(
            f"a class must be in several of {grouped.FOLDS} folds by {nodules.by}; got one whose samples are of few groups"
        )
    return Labelled(
        nodules,
        tuple(classes.tolist()),
        truth,
        train,
        _patients(loaded, np.union1d(loaded.split.train, kept[rounds[-1][0]]), data),
        parts.get("test", fitted),
        rounds,
        own_test,
        len(labels) - len(kept),
    )


def _patients(loaded: sources.SplitNodules, fitted: Indices, data: DataConfig) -> set[str]:
    by_patient = loaded.nodules.by.startswith("patient")  # otherwise groups have names of files, as others may
    of_each = sources.patients(loaded.nodules, data) if by_patient else sources.named(loaded.nodules, SERIES)
    names = [of_each[i] for i in fitted]
    if by_patient and data.augment_with:
        more = sources.of_folder(data, data.augment_with)
        names += sources.patients(sources.undivided(more), more)
    return set().union(*names)


def labels_of(nodules: Nodules, rule: LabelRule) -> Shaped[np.ndarray, " samples"]:
    """The labels; empty where a volume has none."""
    words = nodules.table["category"] if rule.column is None else nodules.column(rule.column)
    if words is None:
        known = ", ".join(own_columns(nodules.table, ())) or "none"
        raise InputError(f"--label-column must be one of the data's columns, {known}; got {rule.column}")
    if rule.at_most is None or rule.at_least is None:
        return np.array(["" if is_blank(word) else word for word in words.tolist()], words.dtype)
    try:
        numbers = np.array([np.nan if is_blank(word) else float(word) for word in map(str, words)])
    except ValueError as error:
        raise InputError(
            f"--label-at-most needs numbers in {rule.column or 'the categories'}; {error}: name another --label-column"
        ) from None
    ranges = [numbers <= rule.at_most, numbers >= rule.at_least]
    return np.select(ranges, [f"at most {rule.at_most:g}", f"at least {rule.at_least:g}"], "")


def principal_components(labelled: Labelled, data: DataConfig) -> Any:  # noqa: ANN401
    """Those of the labelled volumes that the model was trained on too, components × voxels."""
    values = windowed(labelled.nodules.values[labelled.seen], data.window).reshape(len(labelled.seen), -1)
    return PCA(min(COMPONENTS, *values.shape), svd_solver="full").fit(values).components_


def inputs(model: Trained, nodules: Nodules, data: DataConfig, blocks: int, basis: np.ndarray) -> dict[str, np.ndarray]:
    """The features of each kind, for all volumes.

    Diameters are a kind of their own where all are known and `data.crop` is a multiple of them, because the cubes then do not
    show them.
    """
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
    # Classifiers standardise these, so the mean volume is of no matter.
    kinds["PCA"] = windowed(nodules.values, data.window).reshape(len(mixture), -1) @ basis.T
    crop = CROP_PATTERN.fullmatch(data.crop)
    if crop and crop["unit"] == "x" and not np.isnan(nodules.diameter_mm).any():
        sizes = np.log(nodules.diameter_mm)[:, None]
        kinds |= {"diameter": sizes, "all three and diameter": np.column_stack([kinds["all three"], sizes])}
    return kinds

"""Labelled volumes of a run's data, divided as the run divided them, and what its model finds in them."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from gmmae.classification.classifiers import Fold
from gmmae.classification.features import block_means, mixture_features
from gmmae.data import sources
from gmmae.data.extraction import prepare
from gmmae.data.settings import CROP_PATTERN, DataConfig
from gmmae.data.splits import fold
from gmmae.data.volumes import Nodules, masses, to_density
from gmmae.system.errors import InputError
from gmmae.training.trained import Trained

FOLDS = 5
"""Folds of the training set by patient that choose settings, for data without a test set of their own."""
MIN_SAMPLES = 2 * FOLDS
"""Minimum number of samples of each class in the training set."""


class LabelRule(NamedTuple):
    """The origin of labels.

    Attributes:
      column: column of the CSV; None: the categories.
      at_most: numbers up to this one are the first class; None: labels are text.
      at_least: numbers from this one on are the second class. Those between have no label.
    """

    column: str | None = None
    at_most: float | None = None
    at_least: float | None = None


class Labelled(NamedTuple):
    """Labelled volumes.

    Attributes:
      nodules: the volumes. Those without a label are left out.
      classes: names of the classes.
      truth: class of each volume.
      train: indices for training.
      test: indices for the test, which the model was not trained on.
      folds: divisions that choose settings, within the data that are not for the test.
      own_test: whether the test set is the data's own, and not the run's validation set.
      unlabelled: number of volumes without a label.
    """

    nodules: Nodules
    classes: tuple[str, ...]
    truth: Int[np.ndarray, " samples"]
    train: Int[np.ndarray, " train"]
    test: Int[np.ndarray, " test"]
    folds: tuple[Fold, ...]
    own_test: bool
    unlabelled: int


def load(data: DataConfig, rule: LabelRule) -> Labelled:
    """Loads the data of a run, with their labels.

    Raises:
      DataError: the data cannot be used.
      InputError: there are no labels, or too few samples of a class.
    """
    loaded = sources.load(replace(data, augment_with=None))
    labels = by_numbers(_words(loaded.nodules, data, rule), rule)
    kept = np.flatnonzero([bool(label) for label in labels])
    classes = tuple(sorted({labels[i] for i in kept.tolist()}))
    if len(classes) < 2:
        column = rule.column or ("category" if data.source == "medmnist" else data.category_column)
        raise InputError(
            f"labels must be of two classes or more; the column {column!r} gives {', '.join(classes) or 'none'}: name another "
            "with --label-column"
        )
    place = np.full(len(labels), -1)
    place[kept] = np.arange(len(kept))
    train, validation, own = (place[part][place[part] >= 0] for part in (*loaded.split, loaded.test))
    nodules = loaded.nodules.take(kept)
    truth = np.array([classes.index(labels[i]) for i in kept.tolist()])
    own_test = bool(len(loaded.test))
    test = own if own_test else validation
    parts = {"training": train, "test": test} | ({"validation": validation} if own_test else {})
    for name, part in parts.items():
        _require_all_classes(name, truth[part], classes, MIN_SAMPLES if name == "training" else 1)
    folds = (Fold(train, validation),) if own_test else _folds(nodules, truth, train, data.seed)
    return Labelled(nodules, classes, truth, train, test, folds, own_test, len(labels) - len(kept))


def by_numbers(words: list[str], rule: LabelRule) -> list[str]:
    """Returns labels, which are the words themselves or two ranges of numbers; empty where there is none.

    Raises:
      InputError: a word must be a number and is none.

    >>> by_numbers(["1", "3", "4.5", ""], LabelRule("malignancy", 2, 4))
    ['at most 2', '', 'at least 4', '']
    """
    if rule.at_most is None or rule.at_least is None:
        return words
    labels = []
    for word in words:
        try:
            number = float(word or "nan")
        except ValueError:
            column = repr(rule.column) if rule.column else "of the categories"
            raise InputError(
                f"--label-at-most needs numbers in the column {column}; got {word!r}: name another with --label-column"
            ) from None
        low, high = number <= rule.at_most, number >= rule.at_least
        labels.append(f"at most {rule.at_most:g}" if low else f"at least {rule.at_least:g}" if high else "")
    return labels


def _words(nodules: Nodules, data: DataConfig, rule: LabelRule) -> list[str]:
    """Returns the text of the label of each nodule."""
    if rule.column is None:
        return list(nodules.categories)
    if data.source not in ("cubes", "luna16") or data.folder.suffix == ".npz":
        raise InputError(f"--label-column needs a folder with a CSV; got data.source = {data.source}, {data.root}")
    # The split depends on the categories, so it stays that of the run's own column.
    plan = prepare.SOURCES[data.source](replace(data, category_column=rule.column))
    word_of = {item.name: item.category for task in plan.tasks for item in task.items}
    return [word_of[name] for name in nodules.names]


def _require_all_classes(name: str, truth: np.ndarray, classes: tuple[str, ...], least: int) -> None:
    counts = np.bincount(truth, minlength=len(classes)) if len(truth) else np.zeros(len(classes), int)
    if counts.min() < least:
        rare = classes[int(counts.argmin())]
        raise InputError(f"the {name} set must have {least} or more samples of each class; it has {counts.min()} of {rare!r}")


def _folds(nodules: Nodules, truth: np.ndarray, train: np.ndarray, seed: int) -> tuple[Fold, ...]:
    """Divides the training samples by patient. Folds without each class on both sides are left out."""
    groups = [nodules.groups[i] for i in train.tolist()]
    words = [str(truth[i]) for i in train.tolist()]
    parts = (fold(groups, words, FOLDS, number, seed) for number in range(FOLDS))
    folds = [Fold(train[part.train], train[part.validation]) for part in parts]
    whole = set(truth.tolist())
    folds = [part for part in folds if all(set(truth[side].tolist()) == whole for side in part)]
    if not folds:
        raise InputError(
            f"a class must be in several of {FOLDS} folds by {nodules.by}; got one whose samples are of few groups"
        )
    return tuple(folds)


def inputs(model: Trained, labelled: Labelled, data: DataConfig, blocks: int) -> dict[str, np.ndarray]:
    """Returns the features of each kind, for all volumes.

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
        sizes = np.array([[math.log(mm)] for mm in nodules.diameter_mm.tolist()])
        kinds |= {"diameter": sizes, "all three and diameter": np.column_stack([kinds["all three"], sizes])}
    return kinds

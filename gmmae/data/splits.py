"""Splits into training and validation: whole groups, stratified by category, deterministic in the seed.

A hash of the seed and the group's name orders the groups, whatever the order of the rows and the version of a random generator.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from gmmae.data.volumes import DataError

SPLITS = {"train": "train", "validation": "val", "test": "test"}
"""Parts of data that are divided already, by their names in files."""


class Split(NamedTuple):
    """Increasing indices of the training and of the validation samples."""

    train: Int64[np.ndarray, " n_train"]
    validation: Int64[np.ndarray, " n_validation"]


def requested(samples: int, validation: int | float) -> int:
    """The requested number of validation samples: `validation` itself, or a rounded fraction of `samples`.

    >>> requested(770, 0.25), requested(770, 196)
    (192, 196)
    """
    if isinstance(validation, float):
        return min(max(round(validation * samples), 1), max(samples - 1, 1))
    return validation


def split(groups: Sequence[str], categories: Sequence[str], validation: int | float, seed: int, whole: bool = True) -> Split:
    """Divides samples into training and validation without dividing a group.

    Validation has the requested number or fraction of samples, or the nearest that whole groups can give. Each category has its
    share of all samples, as nearly as groups allow. `whole` makes a group that is larger than each side an error.
    """
    samples = len(groups)
    names = sorted(set(groups), key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())
    if len(names) < 2:
        raise DataError(
            f"a split needs at least 2 groups (patients where they are named, otherwise scans), because it divides none; got "
            f"{len(names)} with {samples} samples: add scans, or name smaller groups with data.group_column"
        )
    wanted = requested(samples, validation)
    if not 1 <= wanted < samples:
        raise DataError(
            f"data.validation must be between 1 and {samples - 1} of these {samples} samples; got {validation}: give a smaller "
            "count, or a fraction such as 0.25"
        )
    (largest, most), *_ = Counter(groups).most_common(1)
    if whole and most > max(wanted, samples - wanted):
        raise DataError(
            f"a side of the split must hold the largest group; {largest} has {most} of {samples} samples, and the sides "
            f"{samples - wanted} and {wanted}: give data.validation = {samples - most}, or check what names the groups"
        )
    rank = {name: i for i, name in enumerate(names)}
    kinds, kind_of = np.unique(categories, return_inverse=True)
    group_of = np.array([rank[group] for group in groups])
    counts = np.zeros((len(names), len(kinds)), np.int64)
    np.add.at(counts, (group_of, kind_of), 1)

    # Take groups in order while they fit their categories' quotas and the exact total stays possible. Bit t of `reach[i]` is
    # set when some of the groups from i on sum to t.
    sizes = counts.sum(1).tolist()
    reach = [1]
    for size in reversed(sizes):
        reach.append(reach[-1] | reach[-1] << size)
    reach.reverse()
    total = min((t for t in range(1, samples) if reach[0] >> t & 1), key=lambda t: abs(t - wanted))
    quota, rest = np.divmod(counts.sum(0) * total, samples)
    quota[np.argsort(-rest, kind="stable")[: total - quota.sum()]] += 1  # by largest remainder
    left, room, chosen = total, quota, np.zeros(len(names), bool)
    for i, size in enumerate(sizes):
        can_take = left >= size and reach[i + 1] >> (left - size) & 1
        can_skip = reach[i + 1] >> left & 1
        if can_take and (not can_skip or (counts[i] <= room).all()):
            chosen[i] = True
            left -= size
            room = room - counts[i]
    assert left == 0

    # Swap chosen groups for others of their size, as long as that brings the categories nearer to their quotas.
    patterns, pattern_of = np.unique(counts, axis=0, return_inverse=True)
    pattern_of = pattern_of.reshape(-1)
    while True:
        excess = counts[chosen].sum(0) - quota
        inside = np.unique(pattern_of[chosen])
        outside = np.unique(pattern_of[~chosen])
        change = patterns[outside][None] - patterns[inside][:, None]
        error = np.abs(excess + change).sum(-1)
        error[change.sum(-1) != 0] = np.iinfo(np.int64).max
        if error.min() >= np.abs(excess).sum():
            break
        leaving, entering = np.unravel_index(np.argmin(error), error.shape)
        chosen[np.flatnonzero(chosen & (pattern_of == inside[leaving]))[-1]] = False
        chosen[np.flatnonzero(~chosen & (pattern_of == outside[entering]))[0]] = True
    held_out = chosen[group_of]
    return Split(np.flatnonzero(~held_out), np.flatnonzero(held_out))


def fold(groups: Sequence[str], categories: Sequence[str], folds: int, number: int, seed: int) -> Split:
    """One fold of a cross-validation in which every sample is validated once: a `split` of what earlier folds left."""
    samples = left = np.arange(len(groups))
    parts = []
    for later in range(folds, 1, -1):
        share = round(len(left) / later)
        rest, taken = split(*(np.array(column)[left].tolist() for column in (groups, categories)), share, seed, whole=False)
        parts.append(left[taken])
        left = left[rest]
    held_out = [*parts, left][number]  # the last one is what all others leave
    return Split(np.setdiff1d(samples, held_out), held_out)

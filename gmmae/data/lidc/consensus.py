"""One nodule from the outlines of several readers.

Outlines of different readers belong to one nodule if their nearest voxels are at most a slice apart. Pairs are joined in the
order of their overlap, and no nodule gets two outlines of one reader. The consensus holds the voxels that at least a share of
those readers have inside, usually half. Its scores are the readers' medians.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.spatial
from jaxtyping import Bool, Int

from gmmae.data.extraction.dicom import Stack
from gmmae.data.lidc.masks import Drawn
from gmmae.data.lidc.messages import SCORES
from gmmae.data.volumes import DataError, Point


class Consensus(NamedTuple):
    """A nodule as its readers agree on it.

    Attributes:
      readers: number of those who outlined it.
      stack: number of the stack among those of the series.
      start: first index of the box, z, y, x.
      mask: the nodule in the box.
      centre_mm: world x, y, z of the mask's centre of mass.
      diameter_mm: of the ball with the mask's volume.
      scores: medians by the names in `SCORES`; those that no reader gave are missing.
    """

    readers: int
    stack: int
    start: Int[np.ndarray, " 3"]
    mask: Bool[np.ndarray, "z y x"]
    centre_mm: Point
    diameter_mm: float
    scores: dict[str, float]


def match(drawn: Sequence[Drawn], stacks: Sequence[Stack]) -> list[list[Drawn]]:
    """Returns the readers' outlines by nodule, in the order of each nodule's first outline."""
    pairs: list[tuple[float, float, int, int]] = []
    for i, j in itertools.combinations(range(len(drawn)), 2):
        one, other = drawn[i], drawn[j]
        if one.nodule.reader == other.nodule.reader or one.stack != other.stack:
            continue
        spacing = np.array(stacks[one.stack].volume.frame.GetSpacing())[::-1]
        distance = _distance_mm(one, other, spacing)
        if distance <= spacing.max() * (1 + 1e-6):
            pairs.append((-_overlap(one, other), distance, i, j))
    group = list(range(len(drawn)))
    for _, _, i, j in sorted(pairs):
        members = [k for k in range(len(drawn)) if group[k] in (group[i], group[j])]
        readers = [drawn[k].nodule.reader for k in members]
        if group[i] != group[j] and len(set(readers)) == len(readers):
            first = min(group[i], group[j])
            for k in members:
                group[k] = first
    return [[item for item, its in zip(drawn, group, strict=True) if its == one] for one in dict.fromkeys(group)]


def consensus(group: Sequence[Drawn], stacks: Sequence[Stack], share: float) -> Consensus:
    """Returns the nodule of a group of outlines.

    Args:
      group: the outlines.
      stacks: of the series.
      share: of the readers of the nodule who must have a voxel inside; 0 means any reader.

    Raises:
      DataError: no voxel is inside for that share of the readers.
    """
    low = np.min([item.start for item in group], 0)
    high = np.max([item.start + item.mask.shape for item in group], 0)
    votes = np.zeros(high - low, int)
    for item in group:
        votes[_box(item.start - low, item.mask.shape)] += item.mask
    needed = max(math.ceil(share * len(group) - 1e-9), 1)
    mask = votes >= needed
    if not mask.any():
        raise DataError(f"{needed} of {len(group)} readers must agree on a voxel; they agree on none")
    inside = np.argwhere(mask)
    first, last = inside.min(0), inside.max(0)
    geometry = stacks[group[0].stack].volume.frame
    centre = geometry.TransformContinuousIndexToPhysicalPoint((inside.mean(0) + low)[::-1].tolist())
    volume_mm3 = len(inside) * float(np.prod(geometry.GetSpacing()))
    scores = {name: [item.nodule.scores[name] for item in group if name in item.nodule.scores] for name in SCORES}
    return Consensus(
        len(group),
        group[0].stack,
        low + first,
        mask[_box(first, last - first + 1)],
        centre,
        float(np.cbrt(6 / np.pi * volume_mm3)),
        {name: float(np.median(values)) for name, values in scores.items() if values},
    )


def category(texture: float | None) -> str:
    """Returns the category of a texture score: 1 and 2 ground-glass, 3 and 4 part-solid, 5 solid.

    >>> category(1.5), category(2.5), category(4), category(4.5), category(None)
    ('ground-glass', 'part-solid', 'part-solid', 'solid', '')
    """
    if texture is None:
        return ""
    return "ground-glass" if texture <= 2 else "part-solid" if texture <= 4 else "solid"


def _box(start: Int[np.ndarray, " 3"], shape: Sequence[int] | Int[np.ndarray, " 3"]) -> tuple[slice, ...]:
    return tuple(slice(int(first), int(first + count)) for first, count in zip(start, shape, strict=True))


def _distance_mm(one: Drawn, other: Drawn, spacing: np.ndarray) -> float:
    """Returns the distance between the nearest voxels of two nodules, their outlines included."""
    apart = np.maximum(one.start - other.start - other.reach.shape + 1, other.start - one.start - one.reach.shape + 1)
    boxes = float(np.linalg.norm(np.maximum(apart, 0) * spacing))
    if boxes > spacing.max() * (1 + 1e-6):
        return boxes
    first, second = ((np.argwhere(item.reach) + item.start) * spacing for item in (one, other))
    return float(scipy.spatial.KDTree(first).query(second)[0].min())


def _overlap(one: Drawn, other: Drawn) -> float:
    """Returns the Dice of two nodules, their outlines included."""
    low = np.maximum(one.start, other.start)
    high = np.minimum(one.start + one.reach.shape, other.start + other.reach.shape)
    if (high <= low).any():
        return 0.0
    shared = np.logical_and(*(item.reach[_box(low - item.start, high - low)] for item in (one, other))).sum()
    return float(2 * shared / (one.reach.sum() + other.reach.sum()))

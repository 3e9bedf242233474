"""Nodules on which several readers agree, from their outlines.

An outline lies just outside of what it surrounds, so its pixels are no part of the nodule, or of the hole. Outlines of two
readers belong to one nodule if their nearest voxels are at most a slice apart. Pairs are joined in the order of their overlap,
and no nodule gets two outlines of one reader. Scores are the readers' medians.

Source: LIDC-IDRI, Armato et al. 2011, doi 10.1118/1.3528204.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
import scipy.ndimage
import scipy.spatial
from jaxtyping import Bool, Int

from gmmae.data.extraction.dicom import Stack
from gmmae.data.lidc.messages import SCORES, ReadNodule
from gmmae.data.volumes import DataError, Point

Voxels = Int[np.ndarray, "voxels 3"]


class OutlinedNodule(NamedTuple):
    """A reader's nodule on the grid of its stack."""

    nodule: ReadNodule
    stack: Stack
    voxels: Voxels  # indices z, y, x
    reach: Voxels  # with the outlines' pixels; by it readers mean the same nodule


def draw(nodule: ReadNodule, stacks: list[Stack]) -> OutlinedNodule:
    """Draws a reader's outlines on the slices of a series.

    Raises:
      DataError: an outline is not in the image of one slice, a slice is missing, or nothing is enclosed.
    """
    slices = [(stack, k, item) for stack in stacks for k, item in enumerate(stack.slices)]
    places: list[tuple[Stack, int]] = []
    for uid, z_mm, _, _ in nodule.outlines:
        found = [(stack, k) for stack, k, item in slices if uid and item.uid == uid] or [
            (stack, k) for stack, k, item in slices if abs(item.origin_mm[2] - z_mm) < 0.25 * stack.spacing_mm[2]
        ]
        if len(found) != 1:
            raise DataError(f"each outline must be on one slice of the series; there are {len(found)} at z = {z_mm:g} mm")
        places += found
    stack = places[0][0]
    if any(other is not stack for other, _ in places):
        raise DataError("a slice of the nodule is missing in the series")
    lines = [np.array(outline.points) for outline in nodule.outlines]
    points = np.array([(k, y, x) for line, (_, k) in zip(lines, places, strict=True) for x, y in line])
    low, high = points.min(0), points.max(0)
    width, height = stack.slices[0].size
    if low.min() < 0 or (high[1:] >= (height, width)).any():
        raise DataError(f"an outline must lie in the image of {width} × {height} pixels; it does not")
    mask, reach = np.zeros((2, *(high - low + 1)), bool)
    # Holes come last, whatever the file's order.
    for i in sorted(range(len(lines)), key=lambda i: not nodule.outlines[i].inclusion):
        k = places[i][1] - low[0]
        inside, line = enclosed(lines[i] - low[:0:-1], mask.shape[1:])
        if nodule.outlines[i].inclusion:
            mask[k] |= inside
            reach[k] |= inside | line
        else:
            mask[k] &= ~inside
    if not mask.any():
        raise DataError("the outlines must enclose a voxel; they enclose none")
    return OutlinedNodule(nodule, stack, np.argwhere(mask) + low, np.argwhere(reach) + low)


def enclosed(
    points: Int[np.ndarray, "points 2"], shape: tuple[int, ...]
) -> tuple[Bool[np.ndarray, "y x"], Bool[np.ndarray, "y x"]]:
    """The pixels inside a closed polygon, and those on it.

    >>> inside, line = enclosed(np.array([[0, 0], [3, 0], [3, 2], [0, 2]]), (3, 4))
    >>> inside.astype(int).tolist(), int(line.sum())
    ([[0, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]], 10)
    """
    line = np.zeros(shape, bool)
    for start, end in zip(points, np.roll(points, -1, 0), strict=True):
        steps = max(int(np.abs(end - start).max()), 1)
        x, y = np.rint(start + np.linspace(0, 1, steps + 1)[:, None] * (end - start)).astype(int).T
        line[y, x] = True
    return scipy.ndimage.binary_fill_holes(line) & ~line, line


class Consensus(NamedTuple):
    """A nodule as its readers agree on it."""

    stack: Stack
    voxels: Voxels  # indices z, y, x, in order
    centre_mm: Point  # centre of mass in the world
    diameter_mm: float  # of the ball with the nodule's volume
    scores: dict[str, float]  # medians of those that a reader gave


def match(drawn: list[OutlinedNodule]) -> list[list[OutlinedNodule]]:
    """The readers' outlines by nodule, in the order of each one's first outline."""
    pairs: list[tuple[float, float, int, int]] = []
    for (i, one), (j, other) in itertools.combinations(enumerate(drawn), 2):
        if one.nodule.reader == other.nodule.reader or one.stack is not other.stack:
            continue
        spacing = np.array(one.stack.spacing_mm[::-1])
        slice_mm = spacing.max() * (1 + 1e-6)
        distances, _ = scipy.spatial.KDTree(one.reach * spacing).query(other.reach * spacing, distance_upper_bound=2 * slice_mm)
        if distances.min() <= slice_mm:
            dice = 2 * np.sum(distances == 0) / (len(one.reach) + len(other.reach))
            pairs.append((-dice, distances.min(), i, j))
    groups = [[i] for i in range(len(drawn))]  # of each outline; members share one list
    for _, _, i, j in sorted(pairs):
        joined = sorted(groups[i] + groups[j])
        if groups[i] is not groups[j] and len({drawn[k].nodule.reader for k in joined}) == len(joined):
            for k in joined:
                groups[k] = joined
    return [[drawn[k] for k in group] for i, group in enumerate(groups) if i == group[0]]


def consensus(group: list[OutlinedNodule], share: float) -> Consensus:
    """The voxels that a share of a group's readers have inside, 0 for any reader; DataError if there is none."""
    voxels, votes = np.unique(np.concatenate([item.voxels for item in group]), axis=0, return_counts=True)
    needed = max(math.ceil(share * len(group) - 1e-9), 1)
    voxels = voxels[votes >= needed]
    if not len(voxels):
        raise DataError(f"{needed} of {len(group)} readers must agree on a voxel; they agree on none")
    stack = group[0].stack
    volume_mm3 = len(voxels) * math.prod(stack.spacing_mm)
    medians = {
        name: float(np.median(scores))
        for name in SCORES
        if (scores := [item.nodule.scores[name] for item in group if name in item.nodule.scores])
    }
    centre_mm = stack.point_mm(voxels.mean(0))
    return Consensus(stack, voxels, centre_mm, float(np.cbrt(6 / np.pi * volume_mm3)), medians)


def category(texture: float | None) -> str:
    """The category of a texture score: 1 and 2 ground-glass, 3 and 4 part-solid, 5 solid.

    >>> category(1.5), category(2.5), category(4), category(4.5), category(None)
    ('ground-glass', 'part-solid', 'part-solid', 'solid', '')
    """
    if texture is None:
        return ""
    return "ground-glass" if texture <= 2 else "part-solid" if texture <= 4 else "solid"

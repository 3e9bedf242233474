"""The voxels that a reader's outlines enclose.

LIDC-IDRI's convention: an outline lies just outside of what it surrounds. So the pixels of an outline are no part of the
nodule, and the pixels of a hole's outline are no part of the hole. A hole is cut out of the nodule.

Source: LIDC-IDRI, Armato et al. 2011, doi 10.1118/1.3528204.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.ndimage
from jaxtyping import Bool, Int

from gmmae.data.extraction.dicom import Stack, heights_mm
from gmmae.data.lidc.messages import Outline, ReadNodule
from gmmae.data.volumes import DataError


class Drawn(NamedTuple):
    """A reader's nodule on the grid of its stack.

    Attributes:
      nodule: the outlines.
      stack: number of the stack among those of the series.
      start: first index of the box, z, y, x.
      mask: the nodule in the box.
      reach: the nodule with the pixels of its outlines in the box; it tells whether readers mean the same nodule.
    """

    nodule: ReadNodule
    stack: int
    start: Int[np.ndarray, " 3"]
    mask: Bool[np.ndarray, "z y x"]
    reach: Bool[np.ndarray, "z y x"]


def draw(nodule: ReadNodule, stacks: Sequence[Stack]) -> Drawn:
    """Draws a reader's outlines on the slices of a series.

    Raises:
      DataError: an outline lies outside the image or on no slice, a slice between them is missing, or they enclose nothing.
    """
    places = [_place(outline, stacks) for outline in nodule.outlines]
    numbers = {stack for stack, _ in places}
    if len(numbers) > 1:
        raise DataError("a slice of the nodule is missing in the series")
    number = numbers.pop()
    width, height, _ = stacks[number].volume.size
    points = np.concatenate([outline.points for outline in nodule.outlines])
    if (points < 0).any() or (points >= (width, height)).any():
        raise DataError(f"an outline must lie in the image of {width} × {height} pixels; it does not")
    slices = [index for _, index in places]
    low = np.array([min(slices), *points.min(0)[::-1]])
    high = np.array([max(slices), *points.max(0)[::-1]])
    depth, rows, columns = (high - low + 1).tolist()
    mask, reach = (np.zeros((depth, rows, columns), bool) for _ in range(2))
    # Holes come last, so that a hole is cut for any order of the file.
    for outline, index in sorted(zip(nodule.outlines, slices, strict=True), key=lambda pair: not pair[0].inclusion):
        inside, line = enclosed(outline.points - low[:0:-1], (rows, columns))
        if outline.inclusion:
            mask[index - low[0]] |= inside
            reach[index - low[0]] |= inside | line
        else:
            mask[index - low[0]] &= ~inside
    if not mask.any():
        raise DataError("the outlines must enclose a voxel; they enclose none")
    return Drawn(nodule, number, low, mask, reach)


def enclosed(
    points: Int[np.ndarray, "points 2"], shape: tuple[int, int]
) -> tuple[Bool[np.ndarray, "y x"], Bool[np.ndarray, "y x"]]:
    """Returns the pixels inside a closed line, and those on it. Points that are no neighbours are joined by straight lines.

    Args:
      points: pixels of the line, x and y.
      shape: of the image, y and x.

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


def _place(outline: Outline, stacks: Sequence[Stack]) -> tuple[int, int]:
    """Returns the stack and the slice of an outline. The slice's UID decides where both know it, otherwise its position."""
    for number, stack in enumerate(stacks):
        uids = [item.uid for item in stack.slices]
        if outline.uid and outline.uid in uids:
            return number, uids.index(outline.uid)
    for number, stack in enumerate(stacks):
        distances = np.abs(heights_mm(stack) - outline.z_mm)
        if distances.min() < 0.25 * stack.volume.frame.GetSpacing()[2]:
            return number, int(distances.argmin())
    raise DataError(f"each outline must be on a slice of the series; there is none at z = {outline.z_mm:g} mm")

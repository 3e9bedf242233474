"""Patches of native volumes for a segmentation.

The network sees a crop of a patch, which is wider by `jitter` on each side. Where a patch reaches out of its volume, it repeats
the outermost voxels with the label `OUTSIDE`, which neither a loss nor a score counts.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Integer, Real, UInt8

from gmmae.data.synthetic.painting import interpolate
from gmmae.data.volumes import DataError, NativeNodule

NODULE, OUTSIDE = 1, 2
"""Labels; 0 is the rest."""


class Patches(NamedTuple):
    """Patches, several of one volume where they are slices.

    Attributes:
      values: as in `NativeNodule`; channels are neighbouring slices.
      labels: 0, `NODULE` or `OUTSIDE`.
      offsets: first voxel of the crop at validation.
      volumes: each patch's volume.
      corners: a patch's first voxel in its volume, z, y, x; for slices, on the volume's own grid.
    """

    values: Real[np.ndarray, "patches *edge channels"]
    labels: UInt8[np.ndarray, "patches *edge"]
    offsets: Int32[np.ndarray, "patches axes"]
    volumes: Int32[np.ndarray, " patches"]
    corners: Int32[np.ndarray, "patches 3"]

    def take(self, index: np.ndarray) -> "Patches":
        """Some of them."""
        return Patches(*(array[index] for array in self))


def require_visible(patches: Patches, volumes: Sequence[NativeNodule], size: int, jitter: int) -> None:
    """Refuses crops without a voxel of the volume, and nodules outside of all their patches: their Dice is undefined."""
    inside = patches.labels != OUTSIDE
    axes = range(1, inside.ndim)
    for axis in axes:
        along = inside.any(tuple(other for other in axes if other != axis))
        first, end = along.argmax(1), along.shape[1] - along[:, ::-1].argmax(1)
        unseen = ~along.any(1) | (first >= size) | (end <= 2 * jitter)
        if unseen.any():
            volume = volumes[int(patches.volumes[unseen.argmax()])]
            raise DataError(
                f"{volume.place or volume.name}: a crop must always hold a voxel of the volume; data.jitter = {jitter} "
                f"may move all {size} samples off it: lower data.jitter, or raise data.shape"
            )
    for number, volume in enumerate(volumes):
        if not (patches.labels[patches.volumes == number] == NODULE).any():
            raise DataError(
                f"{volume.place or volume.name}: the mask must have a voxel within {size + 2 * jitter} samples around the "
                "centre; it has none: is it the mask of another nodule, or are coordX, coordY, coordZ wrong?"
            )


def visible_labels(patches: Patches, size: int) -> Iterator[UInt8[np.ndarray, "*size"]]:
    """The labels of each patch's crop at validation."""
    for labels, offset in zip(patches.labels, patches.offsets, strict=True):
        yield labels[tuple(slice(first, first + size) for first in offset)]


def slices(
    volumes: Sequence[NativeNodule], size: int, jitter: int, neighbours: int = 0, empty: bool = False, seed: int = 0
) -> Patches:
    """Axial slices at the volume's own spacing, each of `size + 2 jitter` pixels around the nodule's centre.

    Args:
      volumes: the nodules.
      size: pixels of a crop along each axis.
      jitter: largest offset of a crop.
      neighbours: slices above, and below, that are further channels; the outermost one is repeated.
      empty: whether to include patches without a nodule.
      seed: of the offsets.
    """
    edge, parts = size + 2 * jitter, []
    for number, volume in enumerate(volumes):
        corner = [round(centre) - edge // 2 for centre in volume.centre[1:]]
        y, x = (np.arange(first, first + edge) for first in corner)
        chosen = np.arange(len(volume.mask))
        if not empty:  # another nodule of the mask may be beside the patch
            chosen = np.flatnonzero((_labels(volume, chosen, y, x) == NODULE).any((1, 2)))
        channels = [_nearest(volume.values, chosen + step, y, x) for step in range(-neighbours, neighbours + 1)]
        offsets = np.array([_offset(2, jitter, seed, number, z) for z in chosen.tolist()], np.int32).reshape(-1, 2)
        index, corners = np.full(len(chosen), number, np.int32), np.array([(z, *corner) for z in chosen], np.int32)
        parts.append((np.stack(channels, axis=-1), _labels(volume, chosen, y, x), offsets, index, corners.reshape(-1, 3)))
    return Patches(*map(np.concatenate, zip(*parts, strict=True)))


def _nearest(values: Real[np.ndarray, "z y x"], *places: Integer[np.ndarray, " _"]) -> Real[np.ndarray, "_ _ _"]:
    return values[np.ix_(*(np.clip(place, 0, n - 1) for place, n in zip(places, values.shape, strict=True)))]


def _labels(volume: NativeNodule, *places: Integer[np.ndarray, " _"]) -> UInt8[np.ndarray, "_ _ _"]:
    return _nearest(np.pad(volume.mask, 1, constant_values=OUTSIDE), *(place + 1 for place in places))


def _offset(axes: int, jitter: int, seed: int, *places: int) -> np.ndarray:
    return np.random.default_rng([seed, *places]).integers(0, 2 * jitter + 1, axes)


def boxes(volumes: Sequence[NativeNodule], size: int, jitter: int, voxel_mm: float, seed: int = 0) -> Patches:
    """Patches of `size + 2 jitter` cubic voxels along each axis, one around each nodule's centre; arguments as `slices`."""
    edge = size + 2 * jitter
    steps_mm = (np.arange(edge) - (edge - 1) / 2) * voxel_mm
    values, labels = [], []
    for volume in volumes:
        places = [steps_mm / mm + centre for mm, centre in zip(volume.spacing_mm, volume.centre, strict=True)]
        interpolated, kind = interpolate(volume.values.astype(np.float64), *np.ix_(*places)), volume.values.dtype
        values.append((np.rint(interpolated) if kind.kind in "iu" else interpolated).astype(kind))
        labels.append(_labels(volume, *(np.floor(place + 0.5).astype(int) for place in places)))
    offsets = np.array([_offset(3, jitter, seed, i) for i in range(len(volumes))], np.int32)
    index, corners = np.arange(len(volumes), dtype=np.int32), np.zeros((len(volumes), 3), np.int32)
    return Patches(np.stack(values)[..., None], np.stack(labels), offsets, index, corners)

"""One nodule put into one scan in memory."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Real

from gmmae.generation.insertion import noise as noises
from gmmae.generation.insertion.blending import Blend, dense
from gmmae.generation.insertion.cubes import Nodule, band_mm
from gmmae.generation.insertion.hosts import Host
from gmmae.generation.insertion.lungs import Lungs
from gmmae.generation.insertion.noise import Noise
from gmmae.generation.insertion.placing import Place, Taken, find_place

SMOOTH_MM = 1.0
"""Below its surface by so much, a nodule's own noise can be told from its edge."""


class Inserted(NamedTuple):
    """What was done to a scan.

    Attributes:
      region: the scan's voxels that hold the support.
      before: what was in the region.
      label: the nodule's voxels in the region.
      centre_mm: the centroid of these, world x, y, z.
      box_mm: the box around them along the world's axes: centre and width along x, y, z.
      turn: how the cube was turned.
      pleura_mm: from the nodule's surface to the pleura.
      displaced_hu: the median of the tissue that lay there.
      shift_hu: how much blending changed the nodule's mean within its surface.
      noise_hu: standard deviation of the noise that was added.
      scan_noise_hu: that of the scan's own.
    """

    region: tuple[slice, slice, slice]
    before: Real[np.ndarray, "z y x"]
    label: Bool[np.ndarray, "z y x"]
    centre_mm: Float[np.ndarray, "3"]
    box_mm: Float[np.ndarray, "6"]
    turn: str
    pleura_mm: float
    displaced_hu: float
    shift_hu: float
    noise_hu: float
    scan_noise_hu: float


def put(
    rng: np.random.Generator,
    nodule: Nodule,
    host: Host,
    lungs: Lungs,
    noise: Noise,
    taken: Sequence[Taken],
    gap_mm: float | None,
    blend: Blend,
) -> Inserted | str:
    """Change the voxels of a scan so that it holds a nodule, or say why no place for it was found.

    Voxels farther from the nodule's surface than the band stay as they are. Arguments: as `find_place`; the scan's noise, and a
    blending.
    """
    place = find_place(rng, nodule, host, lungs, taken, gap_mm)
    if isinstance(place, str):
        return place
    region, seen = place.seen.region, place.seen
    old = host.voxels[region].copy()
    before = old.astype(float)
    added = _lacking(seen.hu, seen.distance_mm, noise)
    hu = seen.hu + noises.draw(rng, noise._replace(hu=added), seen.hu.shape)
    hu += dense(before, hu) * (before - hu)
    width = band_mm(host.grid)
    after = blend(before, hu, seen.distance_mm, width, host.grid.spacing_mm)
    support = seen.distance_mm < width
    host.voxels[region][support] = _as(host.voxels.dtype, after[support])
    centre, box = _where(place, host)
    return Inserted(
        region,
        old,
        place.label,
        centre,
        box,
        str(place.turn),
        max(float(place.depth_mm[place.label].min()), 0.0),
        float(np.median(before[place.label])),
        float((after - hu)[place.label].mean()),
        added,
        noise.hu,
    )


def _lacking(hu: Float[np.ndarray, "z y x"], distance_mm: Float[np.ndarray, "z y x"], noise: Noise) -> float:
    """Standard deviation of what a nodule lacks of the scan's noise; none where it is too small to be measured."""
    for inner in (distance_mm < -SMOOTH_MM, distance_mm < 0):
        own = noises.within(hu, inner, noise.reach_pixels)
        if own is not None:
            return math.sqrt(max(noise.hu**2 - own**2, 0.0))
    return 0.0


def _as(kind: np.dtype, values: Float[np.ndarray, " n"]) -> Real[np.ndarray, " n"]:
    """The values as the scan's voxels: whole numbers where these are."""
    if np.issubdtype(kind, np.floating):
        return values.astype(kind)
    limits = np.iinfo(kind)
    return np.clip(np.rint(values), limits.min, limits.max).astype(kind)


def _where(place: Place, host: Host) -> tuple[Float[np.ndarray, "3"], Float[np.ndarray, "6"]]:
    """The centroid of a nodule's voxels, and the box that holds them to their outer corners, in the world."""
    indices = np.argwhere(place.label) + np.array([part.start for part in place.seen.region])
    points = host.grid.world(indices)
    half = np.abs(host.grid.matrix_mm).sum(axis=1) / 2
    low, high = points.min(0) - half, points.max(0) + half
    return points.mean(0), np.concatenate([(low + high) / 2, high - low])

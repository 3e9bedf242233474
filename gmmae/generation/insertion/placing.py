"""Search for a nodule's place in a scan: within the lung or at its pleura.

A free nodule lies wholly in the lung. A nodule with solid tissue at its cube's border is placed at the pleura. A symmetry of
the cube that keeps its slices orients that tissue towards the scan's wall.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Real

from gmmae.generation.insertion.blending import dense
from gmmae.generation.insertion.cubes import SYMMETRIES, Nodule, ResampledNodule, Symmetry, reoriented, resample
from gmmae.generation.insertion.hosts import Host
from gmmae.generation.insertion.lungs import AIR_HU, TISSUE_HU, Lungs
from gmmae.generation.insertion.noise import Noise

MAX_TRIES = 60
MAX_MEDIAN_HU = -700.0
"""Maximum median of the displaced tissue. It excludes places with many vessels."""

MAX_TISSUE = {"free": 0.08, "attached": 0.25}
"""Maximum share of displaced tissue denser than `TISSUE_HU`: vessels, and the wall beside an attached nodule."""

MIN_WITHIN = {"free": 1.0, "attached": 0.85}
"""Minimum share of a nodule within the lung, with a tolerance of `ERROR_MM`."""

MIN_GAP_MM = 2.0
"""Minimum gap between two nodules."""

ERROR_MM = 1.5
"""Error of the lung's surface, which is found on blocks."""

MIN_SLOPE = 0.3
"""Minimum gradient of the distance to the pleura, in mm per mm, for a direction to the wall."""

MIN_FIT = 0.7
"""Minimum cosine of the angle between a nodule's wall and the scan's, 45°: a nodule is not turned out of its slices."""

OVERLAP_MM = 1.5
"""Overlap of an attached nodule with the wall. The wall's own voxels are kept, so the nodule touches them."""

MAX_POINTS = 300
"""Approximate maximum number of points in the first check of a place."""

Occupied = tuple[Float[np.ndarray, "3"], float]
"""The centre (world mm) and the radius (mm) of a nodule in a scan."""


class Target(NamedTuple):
    """A scan with its lungs, its noise, and the nodules in it."""

    host: Host
    lungs: Lungs
    noise: Noise
    occupied: Sequence[Occupied]


class Placement(NamedTuple):
    """A place in a scan: the cube's centre and symmetry, the resampled nodule, its voxels, and their depth in the lung."""

    centre_mm: Float[np.ndarray, "3"]
    symmetry: Symmetry
    resampled: ResampledNodule
    label: Bool[np.ndarray, "z y x"]
    depth_mm: Float[np.ndarray, "z y x"]


def find_placement(rng: np.random.Generator, nodule: Nodule, target: Target, gap_mm: float | None) -> Placement | str:
    """Finds a random place for a nodule, or returns the reason for the failure.

    Args:
      rng: random generator.
      nodule: the nodule.
      target: the scan.
      gap_mm: wanted distance of a free nodule's surface from the pleura; None for any.
    """
    lungs, surface = target.lungs, nodule.surface_mm()
    radius = float(np.linalg.norm(surface, axis=1).max())
    if nodule.wall is None:
        candidates, depth_mm = lungs.depth_mm >= radius, None if gap_mm is None else nodule.diameter_mm / 2 + gap_mm
    else:
        depth_mm = float((surface @ nodule.wall).max()) - OVERLAP_MM
        candidates = lungs.inside
    if depth_mm is not None and (near := candidates & (np.abs(lungs.depth_mm - depth_mm) < 2 * ERROR_MM)).any():
        candidates = near
    blocks = np.flatnonzero(candidates)
    if not len(blocks):
        return f"no lung is as wide as its {2 * radius:.0f} mm" if lungs.inside.any() else "no lung was found"
    reasons: Counter[str] = Counter()
    for block in rng.choice(blocks, min(MAX_TRIES, len(blocks)), replace=False):
        index = (np.array(np.unravel_index(block, candidates.shape)) + rng.uniform(size=3)) * lungs.step - 0.5
        placement = _place(rng, nodule, index, target, radius)
        if isinstance(placement, Placement):
            return placement
        reasons[placement] += 1
    return f"most of {reasons.total()} places {reasons.most_common(1)[0][0]}"


def _place(
    rng: np.random.Generator, nodule: Nodule, index: Float[np.ndarray, "3"], target: Target, radius: float
) -> Placement | str:
    """Places a nodule at a voxel's index, or at the wall nearest to it; returns the reason if it does not fit."""
    host, lungs = target.host, target.lungs
    symmetry, centre, kind = Symmetry(), host.grid.world(index), "free"
    if nodule.wall is not None:
        kind = "attached"
        outward = np.linalg.inv(host.grid.matrix_mm.T) @ lungs.outward(index)[::-1]  # mm per mm, along the world's x, y, z
        slope = float(np.linalg.norm(outward))
        outward /= max(slope, MIN_SLOPE)
        fits = np.array([symmetry.of_vector(nodule.wall) @ outward[::-1] for symmetry in SYMMETRIES])
        if slope < MIN_SLOPE or fits.max() < MIN_FIT:
            return "are equally far from two walls, or have a wall at another angle to the slices"
        symmetry = SYMMETRIES[rng.choice(np.flatnonzero(fits > fits.max() - 1e-6))]
        nodule = reoriented(nodule, symmetry)
        reach = float((nodule.surface_mm() @ outward[::-1]).max()) - OVERLAP_MM
        centre = centre + outward * (float(lungs.depth_at(index)) - reach)
    if reason := _quick_check(nodule, centre, target, kind, radius):
        return reason
    resampled = resample(nodule, centre, host.grid)
    if resampled is None:
        return "reach beyond the scan"
    tissue = host.voxels[resampled.region].astype(float)
    first = np.array([axis.start for axis in resampled.region])
    depth = lungs.depth_at(np.moveaxis(np.indices(tissue.shape), 0, -1) + first)
    label = (resampled.distance_mm < 0) & ~((dense(tissue, resampled.hu) > 0.5) & (depth < 0))
    if not label.any():
        return "lie between the scan's voxels, which are wider than the nodule"
    if reason := _unfit(tissue[label], depth[label], kind):
        return reason
    return Placement(centre, symmetry, resampled, label, depth)


def _quick_check(nodule: Nodule, centre: Float[np.ndarray, "3"], target: Target, kind: str, radius: float) -> str:
    """Checks a place by a few of the nodule's points; returns the reason if it does not fit, or an empty string."""
    host = target.host
    if any(float(np.linalg.norm(centre - other)) < radius + width + MIN_GAP_MM for other, width in target.occupied):
        return "are too near to another nodule"
    points = nodule.surface_mm()
    points = host.grid.indices(centre + points[:: max(1, len(points) // MAX_POINTS), ::-1])
    rounded = np.rint(points).astype(int)
    if (rounded < 0).any() or (rounded >= host.voxels.shape).any():
        return "reach beyond the scan"
    return _unfit(host.voxels[tuple(rounded.T)], target.lungs.depth_at(points), kind)


def _unfit(hu: Real[np.ndarray, " n"], depth_mm: Float[np.ndarray, " n"], kind: str) -> str:
    """Returns why a nodule cannot displace tissue of these values and depths, or an empty string if it can."""
    if (depth_mm > -ERROR_MM).mean() < MIN_WITHIN[kind]:
        return "reach out of the lung"
    if np.median(hu) > MAX_MEDIAN_HU or (hu > TISSUE_HU).mean() > MAX_TISSUE[kind]:
        return "contain vessels or other tissue"
    return "contain the air of a bronchus" if np.median(hu) < AIR_HU else ""

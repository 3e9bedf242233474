"""Search for a nodule's place in a scan: within the lung or at its pleura.

A nodule with solid tissue at its cube's border is placed at the pleura, with that tissue turned towards the scan's wall by a
symmetry of the cube that keeps its slices.
"""

from collections import Counter
from itertools import product
from typing import NamedTuple

import numpy as np

from gmmae.data.extraction.scan import Scan
from gmmae.generation.insertion.blending import dense
from gmmae.generation.insertion.cubes import TURNS, Nodule, Turn, band_mm, resample
from gmmae.generation.insertion.geometry import Mask, Points, Vector, Volume, to_index, to_world
from gmmae.generation.insertion.lungs import AIR_HU, STEP_MM, TISSUE_HU, Lungs
from gmmae.generation.insertion.noise import Noise

MAX_TRIES = 60
MAX_MEDIAN_HU = -700.0
"""Median of the displaced tissue: more means many vessels."""

MAX_TISSUE = {"free": 0.08, "attached": 0.25}
"""Share of displaced tissue above `TISSUE_HU`: vessels, and the wall beside an attached nodule."""

MIN_WITHIN = {"free": 1.0, "attached": 0.85}
"""Share of a nodule within the lung, give or take `ERROR_MM`."""

MIN_GAP_MM = 2.0

ERROR_MM = 1.5
"""Error of the lung's surface, which is found on blocks."""

MIN_SLOPE = 0.3
"""A distance to the pleura that grows more slowly has no direction to the wall."""

MIN_FIT = 0.7
"""Cosine (45°) between a nodule's wall and the scan's: a nodule is not turned out of its slices."""

OVERLAP_MM = 1.5
"""An attached nodule overlaps the wall, whose own voxels are kept."""


class Target(NamedTuple):
    """A scan in HU with its lungs, its noise, and the centre (world mm) and radius (mm) of each nodule."""

    uid: str
    scan: Scan
    lungs: Lungs
    noise: Noise
    occupied: list[tuple[Vector, float]]


class Placement(NamedTuple):
    """A nodule on the voxels of a scan, in the region that contains its band."""

    turn: Turn
    region: tuple[slice, ...]
    hu: Volume
    distance_mm: Volume  # from the nodule's surface, negative inside
    label: Mask  # the nodule's voxels
    depth_mm: Volume  # from the pleura, negative outside of the lung


def find_placement(rng: np.random.Generator, nodule: Nodule, target: Target, gap_mm: float | None) -> Placement | str:
    """Finds a random place for a nodule, or returns the reason for the failure.

    `gap_mm` is a free nodule's wanted distance from the pleura.
    """
    lungs = target.lungs
    inside_mm = (np.argwhere(nodule.distance_mm < 0) - (np.array(nodule.hu.shape) - 1) / 2) * nodule.voxel_mm
    radius = float(np.linalg.norm(inside_mm, axis=1).max())
    if nodule.wall is None:
        candidates, depth_mm = lungs.depth_mm >= radius, None if gap_mm is None else nodule.diameter_mm / 2 + gap_mm
    else:
        candidates, depth_mm = lungs.depth_mm > 0, float((inside_mm @ nodule.wall).max()) - OVERLAP_MM
    if depth_mm is not None and (near := candidates & (np.abs(lungs.depth_mm - depth_mm) < 2 * ERROR_MM)).any():
        candidates = near
    blocks = np.argwhere(candidates)
    if not len(blocks):
        return f"no lung is as wide as its {2 * radius:.0f} mm" if (lungs.depth_mm > 0).any() else "no lung was found"
    reasons: Counter[str] = Counter()
    for block in rng.choice(blocks, min(MAX_TRIES, len(blocks)), replace=False):
        placement = _place(rng, nodule, inside_mm, radius, target, (block + rng.uniform(size=3)) * lungs.step - 0.5)
        if isinstance(placement, Placement):
            return placement
        reasons[placement] += 1
    return f"most of {reasons.total()} places {reasons.most_common(1)[0][0]}"


def _place(
    rng: np.random.Generator, nodule: Nodule, inside_mm: Points, radius: float, target: Target, index: Vector
) -> Placement | str:
    """At a voxel's index, or at the nearest wall."""
    _, (voxels, frame, *_), lungs, _, occupied = target
    turn, centre, kind = TURNS[0], to_world(frame, index), "free"
    if nodule.wall is not None:
        kind = "attached"
        ends = to_index(frame, centre + np.stack([-np.eye(3), np.eye(3)]) * STEP_MM)
        outward = -np.diff(lungs.depth_at(ends), axis=0)[0, ::-1] / (2 * STEP_MM)  # mm per mm, along z, y, x
        slope = np.linalg.norm(outward)
        outward /= max(slope, MIN_SLOPE)
        fits = TURNS @ nodule.wall @ outward
        if slope < MIN_SLOPE or fits.max() < MIN_FIT:
            return "are equally far from two walls, or have a wall at another angle to the slices"
        turn = TURNS[rng.choice(np.flatnonzero(fits > fits.max() - 1e-6))]
        inside_mm = inside_mm @ turn.T
        reach = (inside_mm @ outward).max() - OVERLAP_MM
        centre = centre + outward[::-1] * (lungs.depth_at(index) - reach)
    if any(np.linalg.norm(centre - other) < radius + width + MIN_GAP_MM for other, width in occupied):
        return "are too near to another nodule"
    edges = np.array(list(product((-1, 1), repeat=3))) * (np.abs(inside_mm).max(0) + band_mm(frame) + nodule.voxel_mm)
    corners = to_index(frame, centre + edges[:, ::-1])
    first, last = np.floor(corners.min(0)).astype(int) - 1, np.ceil(corners.max(0)).astype(int) + 1
    if (first < 0).any() or (last >= voxels.shape).any():
        return "reach beyond the scan"
    points = to_index(frame, centre + inside_mm[:, ::-1])
    tissue, depth_mm = voxels[tuple(np.rint(points).astype(int).T)], lungs.depth_at(points)
    faults = {
        "reach out of the lung": (depth_mm > -ERROR_MM).mean() < MIN_WITHIN[kind],
        "contain vessels or other tissue": np.median(tissue) > MAX_MEDIAN_HU or (tissue > TISSUE_HU).mean() > MAX_TISSUE[kind],
        "contain the air of a bronchus": np.median(tissue) < AIR_HU,
    }
    for reason, fails in faults.items():
        if fails:
            return reason
    region = tuple(map(slice, first.tolist(), (last + 1).tolist()))
    hu, distance_mm = resample(nodule, turn, centre, frame, region)
    depth_mm = lungs.depth_at(np.moveaxis(np.mgrid[region], 0, -1))
    label = (distance_mm < 0) & ~((dense(voxels[region].astype(float), hu) > 0.5) & (depth_mm < 0))
    if not label.any():
        return "lie between the scan's voxels, which are wider than the nodule"
    return Placement(turn, region, hu, distance_mm, label, depth_mm)

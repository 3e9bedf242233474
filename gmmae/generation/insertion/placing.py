"""Where in a scan a nodule can lie: within the lung or at its pleura, where there is air to lie in.

A free nodule lies wholly in the lung. One with solid tissue at its cube's border is laid against the pleura, turned by the
symmetry of the cube that brings that tissue nearest to the scan's wall.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from gmmae.generation.insertion.blending import dense
from gmmae.generation.insertion.cubes import TURNS, Nodule, Seen, Turn, see, turned
from gmmae.generation.insertion.hosts import Host
from gmmae.generation.insertion.lungs import AIR_HU, TISSUE_HU, Lungs

TRIES = 60
MEDIAN_HU = -700.0
"""The median of the tissue that a nodule displaces is at most this: lung, and not too much of vessels."""

MOST_TISSUE = {"free": 0.08, "attached": 0.25}
"""The largest share of that tissue denser than `TISSUE_HU`: vessels, and the wall that an attached nodule leans on."""

LEAST_WITHIN = {"free": 1.0, "attached": 0.85}
"""The smallest share of a nodule within the lung, a block's error of the lung's surface apart."""

APART_MM = 2.0
ERROR_MM = 1.5
OVERLAP_MM = 1.5
"""How far an attached nodule's voxels reach into the wall: those of the wall stay, so it touches them, and does not hover."""

POINTS = 300

Taken = tuple[Float[np.ndarray, "3"], float]
"""The centre of another nodule (world mm) and its radius (mm)."""


class Place(NamedTuple):
    """A place that was found: the cube's centre, how it is turned, what the scan sees of it, and the nodule's voxels there."""

    centre_mm: Float[np.ndarray, "3"]
    turn: Turn
    seen: Seen
    label: Bool[np.ndarray, "z y x"]
    depth_mm: Float[np.ndarray, "z y x"]


def find_place(
    rng: np.random.Generator, nodule: Nodule, host: Host, lungs: Lungs, taken: Sequence[Taken], gap_mm: float | None
) -> Place | str:
    """A random place for a nodule, or the reason why none was found.

    Args:
      rng: where all randomness comes from.
      nodule: to be placed.
      host: the scan.
      lungs: of the scan.
      taken: nodules that it holds already.
      gap_mm: the wanted distance of a free nodule's surface from the pleura; None for any.
    """
    surface = nodule.surface_mm()
    radius = float(np.linalg.norm(surface, axis=1).max())
    if nodule.wall is None:
        fits, wanted = lungs.depth_mm >= radius, None if gap_mm is None else nodule.diameter_mm / 2 + gap_mm
    else:
        wanted = float((surface @ nodule.wall).max()) - OVERLAP_MM
        fits = lungs.inside
    if wanted is not None and (near := fits & (np.abs(lungs.depth_mm - wanted) < 2 * ERROR_MM)).any():
        fits = near
    blocks = np.flatnonzero(fits)
    if not len(blocks):
        return f"no lung is as wide as its {2 * radius:.0f} mm" if lungs.inside.any() else "no lung was found"
    reasons: dict[str, int] = {}
    for block in rng.choice(blocks, min(TRIES, len(blocks)), replace=False):
        index = (np.array(np.unravel_index(block, fits.shape)) + rng.uniform(size=3)) * lungs.step - 0.5
        found = _try(nodule, index, wanted, host, lungs, taken, radius)
        if isinstance(found, Place):
            return found
        reasons[found] = reasons.get(found, 0) + 1
    return f"of {sum(reasons.values())} places most {max(reasons, key=lambda reason: reasons[reason])}"


def _try(
    nodule: Nodule,
    index: Float[np.ndarray, "3"],
    wanted: float | None,
    host: Host,
    lungs: Lungs,
    taken: Sequence[Taken],
    radius: float,
) -> Place | str:
    turn, kind = Turn(), "free"
    if nodule.wall is not None and wanted is not None:
        kind = "attached"
        outward = np.linalg.inv(host.grid.matrix_mm.T) @ lungs.outward(index)[::-1]  # mm a mm, along the world's x, y, z
        length = float(np.linalg.norm(outward))
        if length < 0.3:
            return "are as far from one wall as from another"
        outward /= length
        towards = outward[::-1]  # along the cube's z, y, x
        turn = max(TURNS, key=lambda turn: float(turn.vector(nodule.wall) @ towards))  # pyright: ignore
        nodule = turned(nodule, turn)
        reach = float((nodule.surface_mm() @ towards).max()) - OVERLAP_MM
        centre = host.grid.world(index) + outward * (float(lungs.depth_at(index)) - reach)
    else:
        centre = host.grid.world(index)
    if any(float(np.linalg.norm(centre - other)) < radius + width + APART_MM for other, width in taken):
        return "are too near to another nodule"
    points = nodule.surface_mm()
    points = host.grid.indices(centre + points[:: max(1, len(points) // POINTS), ::-1])
    rounded = np.rint(points).astype(int)
    if (rounded < 0).any() or (rounded >= host.voxels.shape).any():
        return "reach beyond the scan"
    if reason := _unfit(host.voxels[tuple(rounded.T)], lungs.depth_at(points), kind):
        return reason
    seen = see(nodule, centre, host.grid)
    if seen is None:
        return "reach beyond the scan"
    tissue = host.voxels[seen.region].astype(float)
    first = np.array([part.start for part in seen.region])
    depth = lungs.depth_at(np.moveaxis(np.indices(tissue.shape), 0, -1) + first)
    label = (seen.distance_mm < 0) & ~((dense(tissue, seen.hu) > 0.5) & (depth < 0))
    if not label.any():
        return "lie between the scan's voxels, which are wider than the nodule"
    if reason := _unfit(tissue[label], depth[label], kind):
        return reason
    return Place(centre, turn, seen, label, depth)


def _unfit(hu: Float[np.ndarray, " n"], depth_mm: Float[np.ndarray, " n"], kind: str) -> str:
    """Why a nodule cannot displace this tissue, which lies so deep; an empty string where it can."""
    if (depth_mm > -ERROR_MM).mean() < LEAST_WITHIN[kind]:
        return "reach out of the lung"
    if np.median(hu) > MEDIAN_HU or (hu > TISSUE_HU).mean() > MOST_TISSUE[kind]:
        return "hold vessels or other tissue"
    return "hold the air of a bronchus" if np.median(hu) < AIR_HU else ""

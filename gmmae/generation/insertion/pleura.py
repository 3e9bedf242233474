"""How far from the pleura nodules lie: the scans' own tell it, where there are enough."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from gmmae.data.volumes import DataError
from gmmae.generation.insertion.hosts import Table, annotated, inside, read_host
from gmmae.generation.insertion.lungs import find_lungs

LEAST_NODULES = 20
MOST_SCANS = 40
"""Annotated scans that are measured, each as long as an insertion."""

AT_PLEURA_MM = 1.0


class Gaps(NamedTuple):
    """Distances in mm from the surfaces of free nodules to the pleura; None where any place in the lung is as likely.

    `source` says in words where they come from.
    """

    free_mm: Float[np.ndarray, " nodules"] | None
    source: str

    def draw(self, rng: np.random.Generator) -> float | None:
        """One of the distances, or None."""
        return None if self.free_mm is None else float(rng.choice(self.free_mm))


def measure(scans: Mapping[str, Path], table: Table) -> Gaps:
    """The distances of the nodules that are annotated in the scans.

    With fewer than `LEAST_NODULES` of them nothing is known but the share of nodules at the pleura, which their own cubes tell;
    the others then lie anywhere in the lung with equal probability; most of its volume is near its surface, as nodules are.
    """
    gaps: list[float] = []
    listed = [uid for uid in scans if annotated(table.rows.get(uid, []))]
    if sum(len(annotated(table.rows[uid])) for uid in listed) >= LEAST_NODULES:
        for uid in listed[:MOST_SCANS]:
            try:
                host = read_host(uid, scans[uid])
            except DataError:
                continue  # it is named when its turn comes
            lungs = find_lungs(host)
            for centre, diameter in annotated(inside(host, table.rows[uid])):
                gaps.append(float(lungs.depth_at(host.grid.indices(centre))) - diameter / 2)
    free = np.array([gap for gap in gaps if gap > AT_PLEURA_MM])
    if len(gaps) < LEAST_NODULES or not len(free):
        return Gaps(
            None, "anywhere in the lung (too few annotated nodules to measure), or at the pleura as each cube's border tells"
        )
    text = (
        f"as the {len(gaps)} annotated nodules of the scans have it (median {np.median(free):.0f} mm of those off the pleura)"
    )
    return Gaps(free, f"{text}, or at the pleura as each cube's border tells")

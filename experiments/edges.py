"""Measures how much of a scan's blur the edges of its nodules show.

    python -m experiments.edges --root FOLDER

For each band of frequencies within slices, the logarithm of a nodule's energy is regressed on that of a Gaussian of its scan's
blur, `-4π² b² f²`. The other regressors are the squared frequency, the diameter, the energy of a coarser band, and the scan's
noise. A slope of 1 is all of the blur, and 0 is none. The test set of the second division is left out.

It takes a minute of one core.
"""

from pathlib import Path

import numpy as np

from benchmarks.options import Parser, guarded
from experiments import cohorts
from experiments.cohorts import WINDOW
from experiments.grain import measured
from gmmae.data.volumes import Nodules, joined, windowed
from gmmae.generation import grain as grains
from gmmae.generation.grain import Grain

COARSE = (len(grains.EDGES) + 1, 1)
"""Bands whose energy is a regressor: the lowest across slices for the first band within slices, which is that of the others."""


def slopes(nodules: Nodules, known: Grain) -> list[tuple[float, float, float]]:
    """Returns the middle of each band within slices but the lowest, the slope, and its standard error.

    Args:
      nodules: cubes with details.
      known: grain of their scans. Nodules without a measured one are left out.
    """
    assert nodules.details is not None
    rows = np.isfinite(known.blur_mm)
    energy = grains.spectra(windowed(nodules.values, WINDOW))[rows]
    blur, noise = known.blur_mm[rows], known.noise_hu[rows]
    voxel, diameter = nodules.details.edge_mm[rows] / nodules.values.shape[-1], nodules.details.diameter_mm[rows]
    edges = (0.0, *grains.EDGES, 1.0)
    found = []
    for band in range(1, len(grains.EDGES) + 1):
        middle = (edges[band] + edges[band + 1]) / 2
        frequency = middle / (2 * voxel)
        coarse = energy[:, COARSE[min(band, 2) - 1]]
        regressors = (-((2 * np.pi * frequency * blur) ** 2), frequency**2, *map(np.log, (diameter, coarse, noise)))
        design = np.column_stack([*regressors, np.ones(len(blur))])
        wanted = np.log(energy[:, band])
        fitted = np.linalg.lstsq(design, wanted)[0]
        variance = np.var(wanted - design @ fitted, ddof=design.shape[1])
        found.append((middle, float(fitted[0]), float(np.sqrt(variance * np.linalg.inv(design.T @ design)[0, 0]))))
    return found


def main() -> None:
    """Prints the slopes."""
    parser = Parser(__doc__)
    parser.add_argument("--root", type=Path, required=True)
    args = parser.parse_args()
    parts = cohorts.read(args.root, division=2)
    nodules = joined(parts.train, parts.tune)
    print(f"{len(nodules.names)} nodules\nfrequency  slope  standard error")
    for middle, slope, error in slopes(nodules, measured(args.root, nodules)):
        print(f"{middle:9.2f}  {slope:5.2f}  {error:.2f}")


if __name__ == "__main__":
    guarded(main)

"""A prior over latent vectors, masses and diameters, by category.

The 43 to 50 nodules of a class are too few for a normalising flow or a diffusion model, so the prior is a smoothed bootstrap
(Silverman, Density Estimation, 1986, section 6.4.1): noise on a training point, shrunk to keep the variance. That is nearly a
copy, so each band of principal components, in order of variance, comes from another point, a neighbour in the bands before.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

BANDS = (0, 64)
"""The first principal component of each band."""
NEIGHBOURS = 5
"""Nearest training points from which the donor of a later band is drawn."""


class Prior(NamedTuple):
    """Training points in principal components of unit variance, without their categories' means.

    Those of a rare category, or of none, lie about the mean of all: about their own they would be everybody's neighbours.
    """

    components: PCA  # of the covariance within the categories
    means: Float[np.ndarray, "samples features"]  # of each sample's category
    points: Float[np.ndarray, "samples components"]  # of each training sample


def fit(points: Float[np.ndarray, "samples features"], labels: Sequence[str]) -> Prior:
    """Fits the prior to latent vectors and further features; equal labels if none is known."""
    names, category, counts = np.unique(labels, return_inverse=True, return_counts=True)
    own = (names != "") & (counts > NEIGHBOURS)
    means = np.stack([points[category == i].mean(0) if own[i] else points.mean(0) for i in range(len(names))])[category]
    # Without variance: inactive latent units, or fewer samples than features.
    rank = int(np.linalg.matrix_rank(points - means))
    components = PCA(n_components=rank, whiten=True, svd_solver="full").fit(points - means)
    return Prior(components, means, components.transform(points - means))


def draw(
    prior: Prior, donors: Int[np.ndarray, " count"], bandwidth: float, rng: np.random.Generator
) -> tuple[Float[np.ndarray, "count features"], Int[np.ndarray, "count bands"]]:
    """Draws a point from each donor, in its category, and names the training sample behind each band.

    `bandwidth` is the noise's standard deviation, in standard deviations within a category.
    """
    components = np.empty((len(donors), prior.points.shape[1]))
    of_bands = []
    for start, end in zip(BANDS, (*BANDS[1:], prior.points.shape[1]), strict=True):
        if start >= prior.points.shape[1]:
            break
        if start:
            donors = random_neighbours(prior.points[:, :start], components[:, :start], NEIGHBOURS, 1, rng)[:, 0]
        of_bands.append(donors)
        points = prior.points[donors, start:end]
        noise = bandwidth * rng.standard_normal(points.shape)
        components[:, start:end] = (points + noise) / np.sqrt(1 + bandwidth**2)
    return prior.components.inverse_transform(components) + prior.means[of_bands[0]], np.stack(of_bands, 1)


def random_neighbours(
    training: np.ndarray, points: np.ndarray, neighbours: int, draws: int, rng: np.random.Generator
) -> Int[np.ndarray, "count draws"]:
    """Draws training points for each point, with replacement, among its nearest ones."""
    index = NearestNeighbors(n_neighbors=min(neighbours, len(training))).fit(training)
    candidates = index.kneighbors(points, return_distance=False)
    return np.take_along_axis(candidates, rng.integers(candidates.shape[1], size=(len(points), draws)), axis=1)

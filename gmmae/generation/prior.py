"""A prior over latent vectors, masses and diameters, by category: where new nodules are drawn from.

With 43 to 50 nodules in a class there is nothing for a flow or a diffusion to learn from. What is drawn is a smoothed
bootstrap (Silverman, Density Estimation, 1986, section 6.4.1): a training point, noise, and a shrinkage that keeps the
variance. Around one point such a sample is nearly a copy. So the principal components are divided into bands, from those with
the largest variance to those with the smallest, and each band comes from another training point, one that is near in the bands
before. Each band keeps its energy, and no nodule is followed throughout.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from gmmae.system.files import whole_file


class Strengths(NamedTuple):
    """How far a sample goes from the training points.

    Attributes:
      bandwidth: of the noise, in standard deviations within a category.
      bands: the first principal component of each band; the first is 0.
      neighbours: training points among which the donor of a later band is drawn.
    """

    bandwidth: float = 1.6
    bands: tuple[int, ...] = (0, 64)
    neighbours: int = 5


class Prior(NamedTuple):
    """Training points in principal components of unit variance, the categories' means taken away.

    Attributes:
      components: of the covariance within the categories, which they share.
      means: of each category.
      points: of each training sample.
      labels: the category of each.
    """

    components: PCA
    means: dict[str, Float[np.ndarray, " features"]]
    points: Float[np.ndarray, "samples components"]
    labels: tuple[str, ...]


class Draw(NamedTuple):
    """What was drawn: points, their categories, and the training samples that each band comes from."""

    points: Float[np.ndarray, "count features"]
    labels: tuple[str, ...]
    donors: Int[np.ndarray, "count bands"]


def fit(points: Float[np.ndarray, "samples features"], labels: Sequence[str]) -> Prior:
    """The prior of training points.

    Args:
      points: latent vectors, with whatever else is to be drawn with them.
      labels: the category of each; equal strings where none is known.
    """
    kinds = sorted(set(labels))
    member = np.array([[label == kind for label in labels] for kind in kinds])
    means = {kind: points[of].mean(0) for kind, of in zip(kinds, member, strict=True)}
    apart = points - np.stack([means[label] for label in labels])
    # Without the directions in which nothing varies: dead latent units, or fewer samples than features.
    rank = int(np.linalg.matrix_rank(apart))
    components = PCA(n_components=rank, whiten=True, svd_solver="full").fit(apart)
    return Prior(components, means, components.transform(apart), tuple(labels))


def save(prior: Prior, path: Path) -> None:
    """Writes all that the prior is: the components (`points = (x - category mean) @ components.T / scale`), their scales,
    the categories' means, and the training points with their labels.

    The file is whole whenever it is read, and several processes may write it at a time.

    Raises:
      OSError: it cannot be written.
    """
    kinds, fitted = sorted(prior.means), prior.components
    assert fitted.components_ is not None
    assert fitted.explained_variance_ is not None
    assert fitted.mean_ is not None
    with whole_file(path) as part, part.open("wb") as file:
        np.savez(
            file,
            components=fitted.components_,
            scale=np.sqrt(fitted.explained_variance_),
            categories=np.array(kinds),
            means=np.stack([prior.means[kind] for kind in kinds]) + fitted.mean_,
            points=prior.points,
            labels=np.array(prior.labels),
        )


def first_donors(prior: Prior, count: int, category: str | None, rng: np.random.Generator) -> Int[np.ndarray, " count"]:
    """Training samples for `draw` to begin with, of one category or (None) in the training set's proportions."""
    labels = np.array(prior.labels)
    return rng.choice(np.arange(len(labels)) if category is None else np.flatnonzero(labels == category), count)


def draw(prior: Prior, donor: Int[np.ndarray, " count"], strengths: Strengths, rng: np.random.Generator) -> Draw:
    """New points.

    Args:
      prior: from `fit`.
      donor: the training sample that the first band of each comes from, and its category.
      strengths: of what is drawn.
      rng: draws.
    """
    count, labels = len(donor), np.array(prior.labels)
    ends = (*strengths.bands[1:], prior.points.shape[1])
    found = np.empty((count, prior.points.shape[1]))
    donors = [donor]
    for start, end in zip(strengths.bands, ends, strict=True):
        if start:
            donor = _near(prior.points[:, :start], found[:, :start], strengths.neighbours, rng)
            donors.append(donor)
        found[:, start:end] = _smoothed(prior.points[donor, start:end], strengths.bandwidth, rng)
    kinds = tuple(labels[donors[0]].tolist())
    return Draw(
        prior.components.inverse_transform(found) + np.stack([prior.means[k] for k in kinds]), kinds, np.stack(donors, 1)
    )


def _smoothed(points: np.ndarray, bandwidth: float, rng: np.random.Generator) -> np.ndarray:
    return (points + bandwidth * rng.standard_normal(points.shape)) / np.sqrt(1 + bandwidth**2)


def near(prior: Prior, drawn: Draw, neighbours: int, donors: int, rng: np.random.Generator) -> Int[np.ndarray, "count donors"]:
    """Donors for points that were drawn, each one of the training points nearest to it in all components."""
    apart = drawn.points - np.stack([prior.means[label] for label in drawn.labels])
    candidates = _nearest(prior.points, prior.components.transform(apart), neighbours)
    return candidates[np.arange(len(apart))[:, None], rng.integers(candidates.shape[1], size=(len(apart), donors))]


def _near(points: np.ndarray, found: np.ndarray, neighbours: int, rng: np.random.Generator) -> np.ndarray:
    """For each of the points found one of the training points nearest to it."""
    candidates = _nearest(points, found, neighbours)
    return candidates[np.arange(len(found)), rng.integers(candidates.shape[1], size=len(found))]


def _nearest(points: np.ndarray, found: np.ndarray, neighbours: int) -> np.ndarray:
    return NearestNeighbors(n_neighbors=min(neighbours, len(points))).fit(points).kneighbors(found, return_distance=False)

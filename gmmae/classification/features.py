"""Numbers that describe a volume for a classifier: of its mixture, and of its coarse voxels.

The features of a mixture depend neither on the order of components nor on which of the cube's 48 symmetries is applied: most
are functions of lengths and eigenvalues, and masses of cells are sorted among the exchanged cells.
"""

import numpy as np
from jaxtyping import Float, Real
from scipy.special import ndtr

from gmmae.data.volumes import windowed

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Quantiles of the components' properties, by weight."""
LARGEST = 5
"""Number of largest weights among the features."""
CELLS = 4
"""Cells along each axis in which a mixture's mass is counted."""


def mixture_features(
    weights: Float[np.ndarray, "samples k"],
    means: Float[np.ndarray, "samples k n"],
    covariances: Float[np.ndarray, "samples k n n"],
) -> Float[np.ndarray, "samples features"]:
    """Invariant features of mixtures on [-1, 1]^n, in this order.

    - quantiles of the components' distance from the centre, size, elongation and flatness;
    - the largest weights and their perplexity, and the mean product of distance and size;
    - the distance of the whole mixture's mean, its standard deviations, and the norm of its third moments and of their trace;
    - E|y|⁴ and the sum of E y_i⁴, both relative to (E|y|²)², and Mardia's kurtosis between them;
    - the mass in each cell, without correlations, so that a component's is a product over the axes.
    """
    weights, means, covariances = (array.astype(np.float64) for array in (weights, means, covariances))
    samples, k, n = means.shape
    logs = np.log(np.maximum(np.linalg.eigvalsh(covariances), 1e-12)) / 2  # increasing
    distance, size = np.linalg.norm(means, axis=-1), logs.mean(-1)
    properties = (distance, size, logs[..., -1] - logs[..., n // 2], logs[..., n // 2] - logs[..., 0])
    largest = np.zeros((samples, LARGEST))
    largest[:, :k] = -np.sort(-weights, axis=1)[:, :LARGEST]
    perplexity = np.exp(-(weights * np.log(np.maximum(weights, 1e-300))).sum(1))

    mean = np.einsum("sk,ski->si", weights, means)
    offsets = means - mean[:, None]
    total = np.einsum("sk,skij->sij", weights, covariances) + np.einsum("sk,ski,skj->sij", weights, offsets, offsets)
    third = np.einsum("sk,ski,skj,skl->sijl", weights, offsets, offsets, offsets)
    mixed = np.einsum("sk,skij,skl->sijl", weights, covariances, offsets)
    third = third + mixed + mixed.transpose(0, 1, 3, 2) + mixed.transpose(0, 3, 2, 1)
    square = np.trace(total, axis1=1, axis2=2) ** 2
    inverse = np.linalg.inv(total)
    whitened = np.einsum("sij,ski->skj", inverse, offsets), np.einsum("sij,skjl->skil", inverse, covariances)
    variances = np.diagonal(covariances, axis1=-2, axis2=-1)
    axes = offsets**4 + 6 * offsets**2 * variances + 3 * variances**2

    edges, deviations = np.linspace(-1, 1, CELLS + 1), np.sqrt(np.maximum(variances, 1e-12))[..., None]
    shares = np.moveaxis(np.diff(ndtr((edges - means[..., None]) / deviations), axis=-1), 2, 0)  # axes, samples, k, cells
    terms = [term for axis in range(n) for term in (shares[axis], [0, 1, 2 + axis])]
    cells = np.einsum(weights, [0, 1], *terms, [0, *range(2, 2 + n)], optimize=True).reshape(samples, -1)
    # Symmetries exchange cells with the same distances from the centre.
    apart = np.sort(np.abs(2 * np.indices((CELLS,) * n) - (CELLS - 1)).reshape(n, -1), axis=0)
    orbits = np.broadcast_to(np.unique(apart, axis=1, return_inverse=True)[1], cells.shape)
    return np.column_stack(
        [
            *(np.quantile(values, QUANTILES, axis=1, weights=weights, method="inverted_cdf").T for values in properties),
            largest,
            perplexity,
            (weights * distance * size).sum(1),
            np.linalg.norm(mean, axis=1),
            np.sqrt(np.maximum(np.linalg.eigvalsh(total), 0)),
            np.cbrt(np.linalg.norm(third.reshape(samples, -1), axis=1)),
            np.cbrt(np.linalg.norm(np.einsum("siij->sj", third), axis=1)),
            _fourth_moment(weights, offsets, offsets, covariances) / square,
            _fourth_moment(weights, offsets, *whitened),
            np.einsum("sk,ski->s", weights, axes) / square,
            np.take_along_axis(cells, np.lexsort((cells, orbits)), 1),
        ]
    )


def block_means(
    values: Real[np.ndarray, "samples *volume"], window: tuple[float, float], blocks: int
) -> Float[np.ndarray, "samples blocks"]:
    """The means of the windowed volume in `blocks` parts along each axis.

    >>> block_means(np.arange(4.0).reshape(1, 4), (0.0, 4.0), 2).tolist()
    [[0.125, 0.625]]
    """
    shares = windowed(values, window)
    for axis in range(1, shares.ndim):
        parts = np.array_split(shares, min(blocks, shares.shape[axis]), axis)
        shares = np.stack([part.mean(axis) for part in parts], axis)
    return shares.reshape(len(shares), -1)


def _fourth_moment(weights: np.ndarray, offsets: np.ndarray, dual: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """E (yᵀAy)² of a mixture, from each mean δ, Aδ and AΣ: `(δᵀAδ + tr AΣ)² + 2 tr (AΣ)² + 4 δᵀAΣAδ`."""
    square = np.einsum("ski,ski->sk", offsets, dual)
    trace = np.trace(covariances, axis1=-2, axis2=-1)
    of_square = np.einsum("skij,skji->sk", covariances, covariances)
    # dual is Aδ, and covariances AΣ: (AΣ)(Aδ) · δ.
    between = np.einsum("ski,skij,skj->sk", offsets, covariances, dual)
    return (weights * ((square + trace) ** 2 + 2 * of_square + 4 * between)).sum(1)

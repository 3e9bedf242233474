"""Numbers that describe a volume for a classifier: of its mixture, and of its coarse voxels.

The features of a mixture do not change if the components are reordered. They do not change either if the cube is rotated or
reflected into one of its 48 symmetries. Most are functions of lengths and eigenvalues, which no rotation changes. The masses of
cells are sorted among the cells that the symmetries exchange.
"""

import itertools

import numpy as np
from jaxtyping import Float, Int, Real
from scipy.special import ndtr

from gmmae.data.volumes import windowed

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Quantiles of the components' properties, weighted by the components' weights."""
LARGEST = 5
"""Number of largest weights among the features."""
CELLS = 4
"""Cells along each axis in which the mass of a mixture is counted."""


def mixture_features(
    weights: Float[np.ndarray, "samples k"],
    means: Float[np.ndarray, "samples k n"],
    covariances: Float[np.ndarray, "samples k n n"],
) -> Float[np.ndarray, "samples features"]:
    """Returns invariant features of mixtures on [-1, 1]^n.

    Args:
      weights: of the components.
      means: of the components.
      covariances: of the components.
    """
    weights, means, covariances = (array.astype(np.float64) for array in (weights, means, covariances))
    return np.column_stack(
        [
            _component_features(weights, means, covariances),
            _moment_features(weights, means, covariances),
            _cell_masses(weights, means, covariances),
        ]
    )


def block_means(
    values: Real[np.ndarray, "samples *volume"], window: tuple[float, float], blocks: int
) -> Float[np.ndarray, "samples blocks"]:
    """Returns the means of the windowed volume in `blocks` parts along each axis.

    >>> block_means(np.arange(4.0).reshape(1, 4), (0.0, 4.0), 2).tolist()
    [[0.125, 0.625]]
    """
    shares = windowed(values, window)
    for axis in range(1, shares.ndim):
        parts = np.array_split(np.arange(shares.shape[axis]), min(blocks, shares.shape[axis]))
        shares = np.stack([shares.take(part, axis).mean(axis) for part in parts], axis)
    return shares.reshape(len(shares), -1)


def _component_features(weights: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """Computes quantiles of distance, size, elongation and flatness, largest weights, their perplexity, and a product.

    The product of distance and size tells whether outer components are larger.
    """
    variances = np.maximum(np.linalg.eigvalsh(covariances), 1e-12)  # increasing
    distance = np.linalg.norm(means, axis=-1)
    size = np.log(variances).mean(-1) / 2
    elongation = np.log(variances[..., -1] / variances[..., variances.shape[-1] // 2]) / 2
    flatness = np.log(variances[..., variances.shape[-1] // 2] / variances[..., 0]) / 2
    quantiles = [_weighted_quantiles(values, weights) for values in (distance, size, elongation, flatness)]
    largest = -np.sort(-weights, axis=1)[:, :LARGEST]
    largest = np.pad(largest, ((0, 0), (0, LARGEST - largest.shape[1])))
    perplexity = np.exp(-(weights * np.log(np.maximum(weights, 1e-300))).sum(1))
    product = (weights * distance * size).sum(1)
    return np.column_stack([*quantiles, largest, perplexity, product])


def _weighted_quantiles(values: np.ndarray, weights: np.ndarray) -> Float[np.ndarray, "samples quantiles"]:
    order = np.argsort(values, axis=1)
    values, weights = (np.take_along_axis(array, order, 1) for array in (values, weights))
    reached = np.cumsum(weights, axis=1) / weights.sum(1, keepdims=True)
    index = np.stack([(reached < level - 1e-9).sum(1) for level in QUANTILES], axis=1)
    return np.take_along_axis(values, np.minimum(index, values.shape[1] - 1), 1)


def _moment_features(weights: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """Computes invariants of the central moments of the whole mixture, to the fourth order.

    They are the distance of the mean, the standard deviations, the norm of the third moments and of their trace, and three
    fourth moments: E|y|⁴ relative to (E|y|²)², Mardia's kurtosis, and the sum of E y_i⁴ relative to (E|y|²)².
    """
    mean = np.einsum("sk,ski->si", weights, means)
    offsets = means - mean[:, None]
    total = np.einsum("sk,skij->sij", weights, covariances) + np.einsum("sk,ski,skj->sij", weights, offsets, offsets)
    deviations = np.sqrt(np.maximum(np.linalg.eigvalsh(total), 0))
    third = np.einsum("sk,ski,skj,skl->sijl", weights, offsets, offsets, offsets)
    mixed = np.einsum("sk,skij,skl->sijl", weights, covariances, offsets)
    third = third + mixed + mixed.transpose(0, 1, 3, 2) + mixed.transpose(0, 3, 2, 1)
    trace = np.einsum("siij->sj", third)
    square = np.trace(total, axis1=1, axis2=2)
    inverse = np.linalg.inv(total)
    whitened = np.einsum("sij,skjl->skil", inverse, covariances)
    squares = np.diagonal(covariances, axis1=-2, axis2=-1)
    axes = offsets**4 + 6 * offsets**2 * squares + 3 * squares**2
    return np.column_stack(
        [
            np.linalg.norm(mean, axis=1),
            deviations,
            np.cbrt(np.linalg.norm(third.reshape(len(third), -1), axis=1)),
            np.cbrt(np.linalg.norm(trace, axis=1)),
            _fourth_moment(weights, offsets, offsets, covariances) / square**2,
            _fourth_moment(weights, offsets, np.einsum("sij,skj->ski", inverse, offsets), whitened),
            np.einsum("sk,ski->s", weights, axes) / square**2,
        ]
    )


def _fourth_moment(weights: np.ndarray, offsets: np.ndarray, dual: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """Returns E (yᵀAy)² of a mixture, from each mean δ, Aδ and AΣ: `(δᵀAδ + tr AΣ)² + 2 tr (AΣ)² + 4 δᵀAΣAδ`."""
    square = np.einsum("ski,ski->sk", offsets, dual)
    trace = np.trace(covariances, axis1=-2, axis2=-1)
    of_square = np.einsum("skij,skji->sk", covariances, covariances)
    # dual is Aδ, and covariances AΣ: (AΣ)(Aδ) · δ.
    between = np.einsum("ski,skij,skj->sk", offsets, covariances, dual)
    return (weights * ((square + trace) ** 2 + 2 * of_square + 4 * between)).sum(1)


def _cell_masses(weights: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """Computes the mass of a mixture in each cell, sorted among the cells that the symmetries of the cube exchange.

    Correlations are left out, so that the mass of a component is a product over the axes.
    """
    n = means.shape[-1]
    deviations = np.sqrt(np.maximum(np.diagonal(covariances, axis1=-2, axis2=-1), 1e-12))
    edges = np.linspace(-1, 1, CELLS + 1)
    shares = np.diff(ndtr((edges - means[..., None]) / deviations[..., None]), axis=-1)  # samples, k, axes, cells
    letters = "abcdef"[:n]
    terms = ",".join(f"sk{letter}" for letter in letters)
    masses = np.einsum(f"sk,{terms}->s{letters}", weights, *np.moveaxis(shares, 2, 0), optimize=True)
    masses = masses.reshape(len(masses), -1)
    orbits = _orbits(n)
    return np.concatenate([np.sort(masses[:, orbits == orbit], axis=1) for orbit in np.unique(orbits)], axis=1)


def _orbits(axes: int) -> Int[np.ndarray, " cells"]:
    """Returns a number for each cell, equal for cells that the symmetries of the cube exchange."""
    distance = np.abs(np.arange(CELLS) * 2 - (CELLS - 1))
    kinds = [tuple(sorted(cell)) for cell in itertools.product(distance.tolist(), repeat=axes)]
    return np.array([sorted(set(kinds)).index(kind) for kind in kinds])

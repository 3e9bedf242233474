"""The gradient noise scale: the batch whose mean gradient has as much noise as signal (McCandlish et al., arXiv:1812.06162).

The mean gradient of b samples has the expected squared norm |G|² + tr(Σ) / b. Two batch sizes tell the two apart, and their
ratio tr(Σ) / |G|² is the noise scale, in samples. Norms may be those that the optimiser sees, |P^(-1/2) g|² with
P = √v̂ + ε of Adam.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Parts(NamedTuple):
    """Unbiased estimates, which may be negative."""

    signal: Float[np.ndarray, "..."]  # |G|²
    noise: Float[np.ndarray, "..."]  # tr(Σ), of one sample


def parts(small: int, small_squares: np.ndarray, large: int, large_squares: np.ndarray) -> Parts:
    """Signal and noise from the mean squared norms of mean gradients of two batch sizes (appendix A.1 there).

    >>> parts(1, np.array(11.0), 10, np.array(2.0))  # |G|² = 1, tr(Σ) = 10
    Parts(signal=np.float64(1.0), noise=np.float64(10.0))
    """
    signal = (large * large_squares - small * small_squares) / (large - small)
    return Parts(signal, (small_squares - large_squares) / (1 / small - 1 / large))


def noise_scale(small: int, small_squares: np.ndarray, large: int, large_squares: np.ndarray, blocks: int = 8) -> float | None:
    """The noise scale from the norms of many steps: of each block of them, the ratio of the means; then the median.

    A few steps have gradients far above all others, and a ratio of means over all would be theirs. None where the signal of
    most blocks is lost in the noise.

    Args:
      small, large: samples in the two batches.
      small_squares, large_squares: mean squared norms, one a step, in order.
      blocks: of consecutive steps.

    >>> noise_scale(1, np.full(16, 11.0), 10, np.full(16, 2.0))
    10.0
    """
    signal, noise = parts(small, np.asarray(small_squares, float), large, np.asarray(large_squares, float))
    count = min(blocks, len(signal))
    means = [
        (part.mean(), other.mean()) for part, other in zip(*(np.array_split(x, count) for x in (signal, noise)), strict=True)
    ]
    ratios = np.array([other / part if part > 0 else np.inf for part, other in means])
    found = float(np.median(ratios))
    return found if 0 < found < np.inf else None

"""Exponent of each component as a polynomial in x, for the arrays of any framework.

It is written for three dimensions with operators only. All reference implementations compute it as `gmmae.models.mixture`
does.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any


def coefficients(
    log_weights: Any,
    means: Sequence[Any],
    sigma: Sequence[Any],
    partial: Sequence[Any],
    *,
    sqrt: Callable,
    log: Callable,
) -> list[Any]:
    """Returns the ten coefficients of `log α + log N(x; μ, Σ)` in the order of `Problem.monomials`.

    Args:
      log_weights: log α of each component.
      means: x, y, z of each.
      sigma: the standard deviations along x, y, z of each.
      partial: ρ12, ρ13 and the partial correlation of y and z given x.
      sqrt: the framework's function.
      log: the framework's function.
    """
    r12, r13, r23 = partial
    q12, q13, q23 = (sqrt(1 - r * r) for r in partial)
    s1, s2, s3 = sigma
    # The inverse of the covariance's Cholesky factor, by forward substitution.
    i11, i22, i33 = 1 / s1, 1 / (s2 * q12), 1 / (s3 * q13 * q23)
    i21 = -(s2 * r12) * i11 * i22
    l32 = s3 * r23 * q13
    i31 = -(s3 * r13 * i11 + l32 * i21) * i33
    i32 = -l32 * i22 * i33
    p11, p12, p13 = i11 * i11 + i21 * i21 + i31 * i31, i21 * i22 + i31 * i32, i31 * i33
    p22, p23, p33 = i22 * i22 + i32 * i32, i32 * i33, i33 * i33
    x, y, z = means
    bx, by, bz = p11 * x + p12 * y + p13 * z, p12 * x + p22 * y + p23 * z, p13 * x + p23 * y + p33 * z
    constant = log_weights - 0.5 * (bx * x + by * y + bz * z) + log(i11 * i22 * i33) - 1.5 * math.log(2 * math.pi)
    return [constant, bx, by, bz, -0.5 * p11, -p12, -p13, -0.5 * p22, -p23, -0.5 * p33]

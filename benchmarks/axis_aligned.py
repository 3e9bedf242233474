"""Times the loss and its gradient of mixtures without correlations, in three forms alternately.

    python -m benchmarks.axis_aligned [--samples 32] [--size 16] [--components 432] [--rounds 9]

A CPU multiplies matrices sample by sample, and a GPU does so for the whole batch. The third form evaluates the polynomials of
mixtures with correlations, sample by sample.
"""

import os
import platform
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.options import Parser, at_least, guarded
from benchmarks.seeds import seconds
from gmmae.models.kernels import axis_aligned, per_sample_loss
from gmmae.models.kernels.axis_aligned import AxisAligned
from gmmae.models.losses import mean_of_each, msle
from gmmae.models.mixture import coefficients_of, grid, monomials_at


def forms(mixture: AxisAligned, volumes: jax.Array) -> dict[str, Callable[[], Any]]:
    """Returns each compiled form, after a check of its gradient against the first one's."""
    points = grid(volumes.shape[1:], volumes.ndim - 1, volumes.dtype)

    def by_sample(mixture: AxisAligned) -> jax.Array:
        return axis_aligned.losses(mixture, volumes, msle)

    def at_once(mixture: AxisAligned) -> jax.Array:
        return mean_of_each(msle(axis_aligned.density_on_grid(mixture, volumes.shape[1:]), volumes))

    def polynomials(mixture: AxisAligned) -> jax.Array:
        terms = coefficients_of(mixture.mixture)
        return per_sample_loss.of_polynomials(terms, monomials_at(points), volumes.reshape(len(volumes), -1), msle)

    found, expected = {}, None
    for form in (by_sample, at_once, polynomials):
        compiled = jax.jit(jax.grad(lambda mixture, form=form: form(mixture).sum())).lower(mixture).compile()
        slopes = compiled(mixture)
        expected = slopes if expected is None else expected
        for one, other in zip(slopes, expected, strict=True):
            # Polynomials of narrow components cancel in float32.
            np.testing.assert_allclose(one, other, rtol=0.05, atol=2e-3 * float(jnp.abs(other).max()), err_msg=form.__name__)
        found[form.__name__] = lambda compiled=compiled: jax.block_until_ready(compiled(mixture))
    return found


def main() -> None:
    """Runs the benchmark."""
    parser = Parser(__doc__)
    parser.add_argument("--samples", type=at_least(1), default=32)
    parser.add_argument("--size", type=at_least(1), default=16)
    parser.add_argument("--components", type=at_least(1), default=432)
    parser.add_argument("--rounds", type=at_least(1), default=9)
    asked = parser.parse_args()
    rng, many = np.random.default_rng(0), (asked.samples, asked.components)
    weights = jnp.asarray(rng.dirichlet(np.ones(many[1]), many[0]), jnp.float32)
    means, sigma = (jnp.asarray(rng.uniform(*ends, (*many, 3)), jnp.float32) for ends in ((-0.95, 0.95), (0.08, 0.3)))
    volumes = jnp.asarray(rng.exponential(0.125, (many[0], *[asked.size] * 3)), jnp.float32)
    work = forms(AxisAligned(jnp.log(weights), means, sigma), volumes)
    turns = np.array([[seconds(form) for form in work.values()] for _ in range(asked.rounds)])
    print(f"{jax.devices()[0].device_kind}, {os.cpu_count()} cores, Python {platform.python_version()}, jax {jax.__version__}")
    print(f"{asked.samples} volumes of {asked.size}³, {asked.components} components; {asked.rounds} rounds, ms a volume")
    gflop = 6 * asked.size**3 * asked.components / 1e9  # of one volume: the product forward, and two backward
    for name, of in zip(work, turns.T, strict=True):
        ratio, each = of / turns[:, 0], of / asked.samples * 1e3
        words = f"{np.median(ratio):.2f} ({ratio.min():.2f} to {ratio.max():.2f}) times the first"
        rate = "" if name == "polynomials" else f", {gflop / np.median(each) * 1e3:.0f} GFLOP/s"
        print(f"{name:<12} {np.median(each):6.3f} ({each.min():.3f} to {each.max():.3f}), {words}{rate}")


if __name__ == "__main__":
    guarded(main)

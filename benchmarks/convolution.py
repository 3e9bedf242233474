"""The CPU's matrix-product form of a convolution against XLA's own, in the scan of an epoch, alternating in one run.

python benchmarks/convolution.py
"""

import os
import platform
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from gmmae.models.convolution import convolve

BATCH, STEPS, ROUNDS = 32, 3, 5
LAYERS = ((16, 7, 1, 32), (10, 5, 32, 32), (6, 3, 32, 32))  # size, kernel edge, channels, filters of the default model


def library(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """XLA's convolution, differentiated by JAX."""
    return jax.lax.conv_general_dilated(x, kernel, (1, 1, 1), "VALID", dimension_numbers=("NDHWC", "DHWIO", "NDHWC"))


def epoch(convolution: Callable[[jax.Array, jax.Array], jax.Array], first: bool) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """A scan of gradient steps; the first layer of a network needs no gradient of its input."""

    def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jnp.square(convolution(x, kernel)).mean()

    def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[tuple[jax.Array, jax.Array], None]:
        x, kernel = carry
        to_x, to_kernel = jax.grad(loss, argnums=(0, 1))(x, kernel)
        return (x if first else x - 1e-3 * to_x, kernel - 1e-3 * to_kernel), None

    return jax.jit(lambda x, kernel: jax.lax.scan(step, (x, kernel), None, length=STEPS)[0])


def seconds(function: Callable[..., object], *arguments: jax.Array) -> float:
    """Of one step."""
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return (time.perf_counter() - start) / STEPS


def main() -> None:
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, jax {jax.__version__}")
    print("| layer | XLA, s a step | matrix products, s a step | ratio (least, most) | largest relative difference |")
    print("|---|---|---|---|---|")
    for size, edge, channels, filters in LAYERS:
        draw = np.random.default_rng(0).standard_normal
        x = jnp.asarray(draw((BATCH, size, size, size, channels)), jnp.float32)
        kernel = jnp.asarray(draw((edge, edge, edge, channels, filters)), jnp.float32)
        theirs, ours = (epoch(form, first=channels == 1) for form in (library, convolve))
        expected, got = theirs(x, kernel), ours(x, kernel)
        error = max(float(jnp.abs(a - b).max() / jnp.abs(a).max()) for a, b in zip(expected, got, strict=True))
        pairs = np.array([(seconds(theirs, x, kernel), seconds(ours, x, kernel)) for _ in range(ROUNDS)])
        ratios = pairs[:, 0] / pairs[:, 1]
        median = np.median(pairs, axis=0)
        print(
            f"| {size}³×{channels}, {edge}³, {filters} filters | {median[0]:.4f} | {median[1]:.4f} "
            f"| {np.median(ratios):.1f} ({ratios.min():.1f}, {ratios.max():.1f}) | {error:.0e} |"
        )


if __name__ == "__main__":
    main()

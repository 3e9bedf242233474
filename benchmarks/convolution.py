"""The CPU's forms of a convolution against XLA's own, in the scan of an epoch, in turns in one run.

python benchmarks/convolution.py
"""

import os
import platform
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from gmmae.models.convolution import FORMS, Form, form_of

STEPS, ROUNDS = 3, 5
LAYERS = ((16, 7, 1, 32), (10, 5, 32, 32), (6, 3, 32, 32))  # size, kernel edge, channels, filters of the default model
BATCHES = (1, 4, 32)

Layer = Callable[[jax.Array, jax.Array], jax.Array]


def library(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """XLA's convolution, differentiated by JAX."""
    return jax.lax.conv_general_dilated(x, kernel, (1, 1, 1), "VALID", dimension_numbers=("NDHWC", "DHWIO", "NDHWC"))


def of_form(form: Form) -> Layer:
    """A convolution in one form, with that form's gradients."""

    @jax.custom_vjp
    def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return form.apply(x, kernel)

    def forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        return convolve(x, kernel), (x, kernel)

    def backward(saved: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
        return form.gradients(*saved, g)

    convolve.defvjp(forward, backward)
    return convolve


def epoch(convolution: Layer, first: bool) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """A scan of gradient steps; the first layer of a network needs no gradient of its input."""

    def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jnp.square(convolution(x, kernel)).mean()

    def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[tuple[jax.Array, jax.Array], None]:
        x, kernel = carry
        to_x, to_kernel = jax.grad(loss, argnums=(0, 1))(x, kernel)
        return (x if first else x - to_x, kernel - to_kernel), None

    return jax.jit(lambda x, kernel: jax.lax.scan(step, (x, kernel), None, length=STEPS)[0])


def seconds(function: Callable[..., object], *arguments: jax.Array) -> float:
    """Of one step."""
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return (time.perf_counter() - start) / STEPS


def main() -> None:
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, jax {jax.__version__}")
    print(
        "| layer | batch | XLA, ms a step | "
        + " | ".join(f"{name}, ms" for name in FORMS)
        + " | chosen: XLA over it (least, most) "
        "| largest relative difference |"
    )
    print("|---" * (6 + len(FORMS)) + "|")
    for size, edge, channels, filters in LAYERS:
        for batch in BATCHES:
            row(size, edge, channels, filters, batch)


def row(size: int, edge: int, channels: int, filters: int, batch: int) -> None:
    """One line of the table."""
    draw = np.random.default_rng(0).standard_normal
    x = jnp.asarray(draw((size, size, size, batch, channels)), jnp.float32)
    kernel = jnp.asarray(draw((edge, edge, edge, channels, filters)), jnp.float32)
    first = channels == 1
    programs = {"XLA": (epoch(library, first), jnp.moveaxis(x, 3, 0))}
    programs |= {name: (epoch(of_form(form), first), x) for name, form in FORMS.items() if first or name != "first axis"}
    expected = programs["XLA"][0](programs["XLA"][1], kernel)[1]
    error = 0.0
    for program, start in programs.values():
        error = max(error, float(jnp.abs(program(start, kernel)[1] - expected).max() / jnp.abs(expected - kernel).max()))
    turns = [{name: seconds(program, start, kernel) for name, (program, start) in programs.items()} for _ in range(ROUNDS)]
    median = {name: f"{1e3 * np.median([turn[name] for turn in turns]):.2f}" for name in programs}
    chosen = next(name for name, form in FORMS.items() if form == form_of(x, kernel))
    ratios = np.array([turn["XLA"] / turn[chosen] for turn in turns])
    print(
        f"| {size}³×{channels}, {edge}³, {filters} filters | {batch} | "
        + " | ".join(median.get(name, "") for name in ("XLA", *FORMS))
        + f" | {chosen}: {np.median(ratios):.1f} ({ratios.min():.1f}, {ratios.max():.1f}) | {error:.0e} |",
        flush=True,
    )


if __name__ == "__main__":
    main()

"""Times the forms of a convolution, the library's among them, alternately in the scan of an epoch.

python -m benchmarks.convolution [--model unet] [--precision tf32] [--batches 4 32 256]
"""

import os
import platform
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.options import Parser, at_least, guarded
from gmmae.models.kernels import winograd
from gmmae.models.kernels.convolution import FORMS, Form, form_of
from gmmae.models.kernels.precision import precision

STEPS, ROUNDS = {"cpu": 3, "gpu": 30}, 5
LAYERS: dict[str, tuple[tuple[int, int, int, int, int], ...]] = {
    "paper": ((3, 16, 7, 1, 32), (3, 10, 5, 32, 32), (3, 6, 3, 32, 32)),
    "unet": (
        (2, 66, 3, 1, 16),
        (2, 66, 3, 16, 16),
        (2, 66, 3, 32, 16),
        (2, 34, 3, 32, 32),
        (2, 18, 3, 64, 64),
        (2, 10, 3, 128, 128),
    ),
}
"""Axes, padded size, kernel size, channels and filters of a model's layers."""

Layer = Callable[[jax.Array, jax.Array], jax.Array]


def of_form(form: Form, tf32: bool) -> Layer:
    """Returns a convolution in one form, with that form's gradients."""
    products = precision(tf32)

    @jax.custom_vjp
    def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return form.apply(x, kernel, products)

    def forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        return convolve(x, kernel), (x, kernel)

    def backward(saved: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
        to_x, to_kernel, _ = form.gradients(*saved, g, products)
        return to_x, to_kernel

    convolve.defvjp(forward, backward)
    return convolve


def epoch(convolution: Layer, first: bool) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Returns a scan of gradient steps. The first layer of a network needs no gradient of its input."""

    def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jnp.square(convolution(x, kernel)).mean()

    def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[tuple[jax.Array, jax.Array], None]:
        x, kernel = carry
        to_x, to_kernel = jax.grad(loss, argnums=(0, 1))(x, kernel)
        return (x if first else x - to_x, kernel - to_kernel), None

    return jax.jit(lambda x, kernel: jax.lax.scan(step, (x, kernel), None, length=steps())[0])


def steps() -> int:
    """Returns the number of steps in a scan."""
    return STEPS[jax.default_backend()]


def seconds(function: Callable[..., object], *arguments: jax.Array) -> float:
    """Returns the seconds of one step."""
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return (time.perf_counter() - start) / steps()


def main() -> None:
    """Prints the table."""
    parser = Parser(__doc__)
    parser.add_argument("--precision", default="float32", choices=["float32", "tf32"])
    parser.add_argument("--model", default="paper", choices=list(LAYERS))
    parser.add_argument("--batches", type=at_least(1), nargs="+", default=[1, 4, 32])
    args = parser.parse_args()
    device = jax.devices()[0].device_kind
    print(
        f"{device}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, jax {jax.__version__}\n"
    )
    times = " | ".join(f"{name}, ms a step" for name in FORMS)
    print(f"| layer | batch | {times} | chosen: library over it (least, most) | largest relative difference |")
    print("|---" * (4 + len(FORMS)) + "|")
    for layer in LAYERS[args.model]:
        for batch in args.batches:
            print(row(*layer, batch, args.precision == "tf32"), flush=True)


def row(axes: int, size: int, edge: int, channels: int, filters: int, batch: int, tf32: bool) -> str:
    """Returns one line of the table."""
    draw = np.random.default_rng(0).standard_normal
    x = jnp.asarray(draw((*(size,) * axes, batch, channels)), jnp.float32)
    kernel = jnp.asarray(draw((*(edge,) * axes, channels, filters)), jnp.float32)
    first = channels == 1
    forms = {name: form for name, form in FORMS.items() if first or name not in ("first axis", "banded")}
    if not winograd.fits(x, kernel):
        del forms["tiles"]
    programs = {name: epoch(of_form(form, tf32), first) for name, form in forms.items()}
    ends = {name: program(x, kernel)[1] for name, program in programs.items()}
    scale = jnp.abs(ends["library"] - kernel).max()
    error = max(float(jnp.abs(end - ends["library"]).max() / scale) for end in ends.values())
    turns = [{name: seconds(program, x, kernel) for name, program in programs.items()} for _ in range(ROUNDS)]
    median = [f"{1e3 * np.median([turn[name] for turn in turns]):.3g}" if name in programs else "" for name in FORMS]
    best = form_of(x, kernel, "cpu" if jax.default_backend() == "cpu" else "cuda", tf32)
    chosen = next(name for name, form in FORMS.items() if form == best)
    ratios = np.array([turn["library"] / turn[chosen] for turn in turns])
    spread = f"{chosen}: {np.median(ratios):.1f} ({ratios.min():.1f}, {ratios.max():.1f})"
    power = "¹²³"[axes - 1]
    about = f"{size}{power}×{channels}, {edge}{power}, {filters} filters"
    return f"| {about} | {batch} | {' | '.join(median)} | {spread} | {error:.0e} |"


if __name__ == "__main__":
    guarded(main)

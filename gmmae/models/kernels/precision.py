"""Products of float32 numbers at full precision or in TF32, which a GPU's matrix units compute several times as fast.

TF32 (NVIDIA A100 and later) rounds the operands to 10 bits after the point, multiplies them exactly and adds in float32. A CPU
has no such units, so there the operands are rounded explicitly. The effect of TF32 on a training can then be seen without a
GPU, though not its speed. Gradients are products too and are computed likewise.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

TF32 = "tensorfloat32"
"""JAX's name of the precision, for `jax.default_matmul_precision`."""

FULL = lax.Precision.HIGHEST
"""The precision for products in float32; a GPU may otherwise choose TF32."""


def tf32_wanted() -> bool:
    """Returns whether products are traced for TF32, inside of `jax.default_matmul_precision(TF32)`."""
    return jax.config.jax_default_matmul_precision == TF32  # pyright: ignore[reportAttributeAccessIssue]


def precision(tf32: bool) -> lax.Precision:
    """Returns the precision of a product whose operands went through `operands`."""
    return lax.Precision.DEFAULT if tf32 else FULL


def operands(*arrays: Array, tf32: bool) -> tuple[Array, ...]:
    """Returns the factors of a product, rounded where the product does not round them itself."""
    if not tf32:
        return arrays

    def rounded(*arrays: Array) -> tuple[Array, ...]:
        return tuple(lax.reduce_precision(array, exponent_bits=8, mantissa_bits=10) for array in arrays)

    return lax.platform_dependent(*arrays, cpu=rounded, default=lambda *arrays: arrays)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x: Float[Array, "rows inner"], y: Float[Array, "inner columns"], tf32: bool) -> Float[Array, "rows columns"]:
    """Returns `x y` at full precision or in TF32, with gradients in the same precision."""
    return jnp.matmul(*operands(x, y, tf32=tf32), precision=precision(tf32))


def _forward(x: Array, y: Array, tf32: bool) -> tuple[Array, tuple[Array, Array]]:
    return matmul(x, y, tf32), (x, y)


def _backward(tf32: bool, saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, y, g = operands(*saved, g, tf32=tf32)
    return jnp.matmul(g, y.T, precision=precision(tf32)), jnp.matmul(x.T, g, precision=precision(tf32))


matmul.defvjp(_forward, _backward)


def dense_product(x: Array, kernel: Array, dimensions: lax.DotDimensionNumbers, **_: object) -> Array:
    """Applies `matmul` with the signature that `flax.linen.Dense` needs: `dot_general = dense_product`."""
    assert dimensions == (((x.ndim - 1,), (0,)), ((), ()))
    return matmul(x, kernel, tf32_wanted())

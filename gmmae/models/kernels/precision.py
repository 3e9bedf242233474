"""Products of float32 numbers at full precision or in TF32, which a GPU's matrix units compute several times as fast.

TF32 (NVIDIA A100 and later) rounds the operands to 10 bits after the point, multiplies them exactly and adds in float32. A CPU
has no such units and computes at full precision. Gradients are products too and have the same precision.
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


def wanted() -> lax.Precision:
    """Returns the precision for products: full, but inside of `jax.default_matmul_precision(TF32)`."""
    tf32 = jax.config.jax_default_matmul_precision == TF32  # pyright: ignore[reportAttributeAccessIssue]
    return lax.Precision.DEFAULT if tf32 else FULL


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(
    x: Float[Array, "rows inner"], y: Float[Array, "inner columns"], precision: lax.Precision
) -> Float[Array, "rows columns"]:
    """Returns `x y` with gradients in the same precision. Their order of sums is not that of `jnp.matmul`'s own gradients."""
    return jnp.matmul(x, y, precision=precision)


def _forward(x: Array, y: Array, precision: lax.Precision) -> tuple[Array, tuple[Array, Array]]:
    return matmul(x, y, precision), (x, y)


def _backward(precision: lax.Precision, saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, y = saved
    return jnp.matmul(g, y.T, precision=precision), jnp.matmul(x.T, g, precision=precision)


matmul.defvjp(_forward, _backward)


def dense_product(x: Array, kernel: Array, dimensions: lax.DotDimensionNumbers, **_: object) -> Array:
    """Applies `matmul` with the signature that `flax.linen.Dense` needs: `dot_general = dense_product`."""
    assert dimensions == (((x.ndim - 1,), (0,)), ((), ()))
    return matmul(x, kernel, wanted())

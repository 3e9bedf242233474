"""Products of float32 numbers at full precision or in TF32, which a GPU's matrix units compute several times as fast.

TF32 (NVIDIA A100 and later) rounds the operands to 10 bits after the point, multiplies exactly and adds in float32. A CPU has
full precision.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

TF32 = "tensorfloat32"
"""JAX's name of the precision, for `jax.default_matmul_precision`."""

FULL = lax.Precision.HIGHEST
"""Otherwise a GPU may choose TF32."""


def wanted() -> lax.Precision:
    """The precision for products: full, but inside of `jax.default_matmul_precision(TF32)`."""
    tf32 = jax.config.jax_default_matmul_precision == TF32  # pyright: ignore[reportAttributeAccessIssue]
    return lax.Precision.DEFAULT if tf32 else FULL


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(
    x: Float[Array, "rows inner"], y: Float[Array, "inner columns"], precision: lax.Precision
) -> Float[Array, "rows columns"]:
    """`x y` with gradients in the same precision, whose order of sums is not that of `jnp.matmul`'s own."""
    return jnp.matmul(x, y, precision=precision)


def _backward(precision: lax.Precision, saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, y = saved
    return jnp.matmul(g, y.T, precision=precision), jnp.matmul(x.T, g, precision=precision)


matmul.defvjp(lambda *args: (matmul(*args), args[:2]), _backward)


def dense_product(x: Array, kernel: Array, dimensions: lax.DotDimensionNumbers, **_: object) -> Array:
    """`matmul` as the `dot_general` of `flax.linen.Dense`."""
    assert dimensions == (((x.ndim - 1,), (0,)), ((), ()))
    rows: Array = matmul(x.reshape(-1, x.shape[-1]), kernel, wanted())
    return rows.reshape(*x.shape[:-1], -1)

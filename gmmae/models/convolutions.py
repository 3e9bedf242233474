"""Other people's convolutions at full speed on a CPU, without a change of their model: `fast_convolutions`.

XLA:CPU has a fast routine for convolutions of one form: samples first, features last. A pass of XLA (`ConvCanonicalization`)
brings convolutions into it, in a program's entry computation only. The body of a loop is another computation. So a step that
is compiled alone is fast, and is many times slower inside a `scan` (jax-ml/jax #12868). The gradients suffer most, because JAX
writes them in other forms. In three dimensions the routine is slow in any form. `gmmae.models.kernels.convolution` is not.
"""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jaxtyping import Array

from gmmae.models.kernels.convolution import convolve

P = ParamSpec("P")
T = TypeVar("T")


def fast_convolutions(function: Callable[P, T]) -> Callable[P, T]:
    """Returns a function of the same results to rounding, whose convolutions are fast on a CPU, in loops too.

    Where the function takes gradients, wrap it, and also wrap the loss before its gradient is taken:

        loss = fast_convolutions(loss)
        step = fast_convolutions(step)      # calls jax.grad(loss)
        state, losses = jax.lax.scan(step, state, batches)

    - In three dimensions a convolution becomes products of matrices (`convolve`), with gradients of their own. Strides,
      dilation and kernels of unequal edges are included. Groups and half precision are not.
    - Every other convolution gets its operands in the order of XLA's fast routine. Its parameters stay.
    - Bodies of `scan`, `while_loop`, `cond`, `jit` and `checkpoint` are rewritten too, branches of `platform_dependent` not.
      A function with a rule of its own for derivatives keeps the rule. What the rule computes is rewritten in the function
      that takes the gradient.

    The choice depends on shapes and types only. A function without convolutions is computed as it is.

    Args:
      function: of arrays or pytrees of them, which `jax.jit` could compile.

    Raises:
      NotImplementedError: by JAX, for forward-mode derivatives (`jax.jvp`, `jax.hessian`) of a result where a
        convolution in three dimensions was replaced. Those inside the function are not concerned.
    """
    return rewritten(function, _fast_convolution)


def rewritten(function: Callable[P, T], rule: Callable[[core.JaxprEqn], core.JaxprEqn | None]) -> Callable[P, T]:
    """Returns a function with other equations, also in bodies of loops and of branches.

    Args:
      function: of arrays or pytrees of them, which `jax.jit` could compile.
      rule: returns an equation or another in its place. None: those in its parameters are rewritten.
    """

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        jaxpr, shape = jax.make_jaxpr(partial(function, **options), return_shape=True)(*args)
        new = _rewritten(rule, jaxpr)
        if new is jaxpr:
            return function(*args, **options)
        results = core.jaxpr_as_fun(new)(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return call


def _rewritten(rule: Callable[[core.JaxprEqn], core.JaxprEqn | None], part: Any) -> Any:  # noqa: ANN401 a jaxpr, or any parameter
    """Returns a jaxpr, or a parameter of an equation, in which a rule has replaced equations; itself where it has not."""
    inner = partial(_rewritten, rule)
    if type(part) is tuple:
        new = tuple(map(inner, part))
        return part if all(map(_same, new, part)) else new
    if isinstance(part, core.Jaxpr):
        eqns = list(map(inner, part.eqns))
        return part if all(map(_same, eqns, part.eqns)) else part.replace(eqns=eqns)
    if isinstance(part, core.ClosedJaxpr):
        jaxpr = inner(part.jaxpr)
        return part if jaxpr is part.jaxpr else part.replace(jaxpr=jaxpr)
    if isinstance(part, core.JaxprEqn):
        if found := rule(part):
            return found
        params = {name: inner(value) for name, value in part.params.items()}
        return part if all(map(_same, params.values(), part.params.values())) else part.replace(params=params)
    return part


def _same(new: object, old: object) -> bool:
    return new is old


def replaced(eqn: core.JaxprEqn, function: Callable[..., Array]) -> core.JaxprEqn:
    """Returns an equation that computes a function of the operands of another one."""
    avals: list[Any] = [variable.aval for variable in eqn.invars]
    shapes = (jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)
    call = jax.make_jaxpr(jax.jit(function))(*shapes).eqns[-1]
    return eqn.replace(primitive=call.primitive, params=call.params)


def _fast_convolution(eqn: core.JaxprEqn) -> core.JaxprEqn | None:
    if eqn.params.get("branches_platforms"):  # whoever chose by platform, as `convolve` does, knows better
        return eqn
    if eqn.primitive is not lax.conv_general_dilated_p:
        return None
    avals: list[Any] = [variable.aval for variable in (*eqn.invars, *eqn.outvars)]
    lhs, rhs, out = (jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)
    form = _form(lhs, rhs, out, eqn.params)
    return replaced(eqn, form) if form else eqn


def _form(
    lhs: jax.ShapeDtypeStruct, rhs: jax.ShapeDtypeStruct, out: jax.ShapeDtypeStruct, params: dict[str, Any]
) -> Callable[[Array, Array], Array] | None:
    ungrouped = params["feature_group_count"] == params["batch_group_count"] == 1
    one_type = lhs.dtype == rhs.dtype == out.dtype and lhs.dtype in (jnp.float32, jnp.float64)
    if lhs.ndim == 5 and ungrouped and one_type and lhs.size and rhs.size and out.size:
        return partial(_own, out.shape, params)
    return None if params["dimension_numbers"] == _fast_numbers(lhs.ndim) else partial(_canonical, params)


def _fast_numbers(ndim: int) -> lax.ConvDimensionNumbers:
    """Returns XLA's fast order of axes: samples, volume, features, and for the kernel volume, inputs, features."""
    volume = range(1, ndim - 1)
    data = 0, ndim - 1, *volume
    return lax.ConvDimensionNumbers(data, (ndim - 1, ndim - 2, *range(ndim - 2)), data)


def _canonical(params: dict[str, Any], lhs: Array, rhs: Array) -> Array:
    names = params["dimension_numbers"]
    (samples, channels, *volume), (outputs, inputs, *edges) = names.lhs_spec, names.rhs_spec
    params = params | {"dimension_numbers": _fast_numbers(lhs.ndim)}
    operands = lhs.transpose(samples, *volume, channels), rhs.transpose(*edges, inputs, outputs)
    out: Array = lax.conv_general_dilated_p.bind(*operands, **params)
    samples, channels, *volume = names.out_spec
    return _in_places(out, (samples, *volume, channels))


def _in_places(x: Array, places: Sequence[int]) -> Array:
    return jnp.moveaxis(x, range(x.ndim), places)


def _own(shape: Sequence[int], params: dict[str, Any], lhs: Array, rhs: Array) -> Array:
    names, strides, dilation = params["dimension_numbers"], params["window_strides"], params["lhs_dilation"]
    (samples, channels, *volume), (outputs, inputs, *edges) = names.lhs_spec, names.rhs_spec
    x, kernel = lhs.transpose(*volume, samples, channels), rhs.transpose(*edges, inputs, outputs)
    kernel = _padded(kernel, [(0, 0, d - 1) for d in params["rhs_dilation"]])
    samples, channels, *volume = names.out_spec
    precision, *_ = params["precision"] or (lax.Precision.DEFAULT,)
    size, products = [shape[axis] for axis in volume], partial(convolve, bias=None, precision=precision)
    if max(strides) == 1 < max(dilation):
        out = _spread(products, x, kernel, dilation, [low for low, _ in params["padding"]], size)
    else:
        x = _padded(x, [(low, high, d - 1) for (low, high), d in zip(params["padding"], dilation, strict=True)])
        out = _strided(products, x, kernel, strides, size)
    return _in_places(out, (*volume, samples, channels))


def _strided(
    products: Callable[[Array, Array], Array], x: Array, kernel: Array, strides: Sequence[int], size: Sequence[int]
) -> Array:
    """Returns a convolution with strides: blocks of the volume become channels, and the kernel has one tap for each."""
    edge = max(-(-k // stride) for k, stride in zip(kernel.shape, strides, strict=False))
    count = [out + edge - 1 for out in size]
    return products(_blocks(x, count, strides, 1), _blocks(kernel, [edge] * len(size), strides, 0))


def _spread(
    products: Callable[[Array, Array], Array], x: Array, kernel: Array, dilation: Sequence[int], low: Sequence[int],
    size: Sequence[int],
) -> Array:  # fmt: skip
    """Returns a convolution of a volume with zeros between its voxels: `dilation - 1` of them, and `low` before the first.

    A tap meets voxels for one of `dilation` results side by side, and zeros for the others. So these results are features of
    one convolution without the zeros. Result `d m + r` is `Σ_t x[m + t] kernel[d t + low - r]`.
    """
    n, axes = len(size), list(zip(kernel.shape, dilation, low, strict=False))
    edge = max((k + d - 2 - start) // d + start // d + 1 for k, d, start in axes)
    front = [(d * edge - k - (d - 1 - start % d), 0, 0) for k, d, start in axes]
    kernel = _padded(jnp.flip(kernel, range(n)), front)
    kernel = jnp.flip(_blocks(kernel, [edge] * n, dilation, 1), range(n))
    count = [-(-out // d) for out, d in zip(size, dilation, strict=True)]
    voxels = [
        (start // d, blocks + edge - 1 - start // d - there, 0)
        for start, d, blocks, there in zip(low, dilation, count, x.shape, strict=False)
    ]
    out = products(_padded(x, voxels), kernel)
    out = out.reshape(*count, x.shape[n], *dilation, -1)
    out = jnp.moveaxis(out, range(n + 1, 2 * n + 1), range(1, 2 * n, 2))
    out = out.reshape(*(blocks * d for blocks, d in zip(count, dilation, strict=True)), *out.shape[2 * n :])
    return out[tuple(slice(length) for length in size)]


def _blocks(x: Array, count: Sequence[int], strides: Sequence[int], before: int) -> Array:
    """Returns this number of blocks along each axis of the volume, with the places in a block as further channels.

    `before` axes lie between those of the volume and the channels. What the blocks do not reach is left out, and the last may
    have zeros.
    """
    ends = [(0, blocks * stride - size, 0) for blocks, stride, size in zip(count, strides, x.shape, strict=False)]
    n, x = len(count), _padded(x, ends)
    x = x.reshape(*(size for pair in zip(count, strides, strict=True) for size in pair), *x.shape[n:])
    x = jnp.moveaxis(x, range(1, 2 * n, 2), range(n + before, 2 * n + before))
    return x.reshape(*count, *x.shape[n : n + before], -1, *x.shape[2 * n + before + 1 :])


def _padded(x: Array, config: Sequence[tuple[int, int, int]]) -> Array:
    return lax.pad(x, jnp.zeros((), x.dtype), [*config, (0, 0, 0), (0, 0, 0)])

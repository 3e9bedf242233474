"""Other people's convolutions at full speed on a CPU: `fast_convolutions`.

XLA:CPU has a fast routine for convolutions with samples first and features last. A pass (`ConvCanonicalization`) brings
convolutions into this form, but not in the body of a loop, so a step is many times slower inside a `scan` than alone
(jax-ml/jax #12868). In three dimensions the routine is slow in any form, and `gmmae.models.kernels.convolution` is not.
"""

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jaxtyping import Array

from gmmae.models.kernels.blocks import blocked, unblocked
from gmmae.models.kernels.convolution import convolve

P = ParamSpec("P")
T = TypeVar("T")

MOST_TAPS = 3
"""Along an axis; what more of them meet is too much memory side by side."""

CHUNK = 2**16
"""Numbers at a time, which fit into a core's cache."""

MOST_PARTS = 128
"""Taps or groups by themselves; more compile too long."""


def fast_convolutions(function: Callable[P, T]) -> Callable[P, T]:
    """The same function up to rounding, with convolutions that are fast on a CPU, also in loops.

    If it takes gradients, also wrap the loss before its gradient is taken:

        loss = fast_convolutions(loss)
        step = fast_convolutions(step)      # calls jax.grad(loss)
        state, losses = jax.lax.scan(step, state, batches)

    - In three dimensions a convolution becomes products of matrices (`convolve`), also with strides, dilation and kernels of
      unequal edges, but not in half precision.
    - Each group is a convolution of its own; kernels for single channels become sums over taps, likewise.
    - Every other convolution gets its operands in the order of XLA's fast routine.
    - Bodies of `scan`, `while_loop`, `cond`, `jit` and `checkpoint` are rewritten too, branches of `platform_dependent` not.
      A function with its own rule for derivatives keeps it.

    `jax.jit` must be able to compile the function.

    Raises:
      TypeError: by JAX, for forward-mode derivatives (`jax.jvp`, `jax.hessian`) of, but not inside, the function,
        where a convolution in three dimensions or of single channels was replaced.
    """
    return rewritten(function, _fast_convolution)


def rewritten(function: Callable[P, T], rule: Callable[[core.JaxprEqn], core.JaxprEqn | None]) -> Callable[P, T]:
    """A function with other equations: the rule returns one to take its place, or None to look into its parameters."""

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        jaxpr, shape = jax.make_jaxpr(partial(function, **options), return_shape=True)(*args)
        results = core.jaxpr_as_fun(_rewritten(rule, jaxpr))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return call


def _rewritten(rule: Callable[[core.JaxprEqn], core.JaxprEqn | None], part: Any) -> Any:  # noqa: ANN401 a jaxpr, or any parameter
    """The same object where no equation was replaced."""
    inner = partial(_rewritten, rule)
    if type(part) is tuple:
        new = tuple(map(inner, part))
        return part if all(map(operator.is_, new, part)) else new
    if isinstance(part, core.Jaxpr):
        eqns = list(map(inner, part.eqns))
        return part if all(map(operator.is_, eqns, part.eqns)) else part.replace(eqns=eqns)
    if isinstance(part, core.ClosedJaxpr):
        jaxpr = inner(part.jaxpr)
        return part if jaxpr is part.jaxpr else part.replace(jaxpr=jaxpr)
    if isinstance(part, core.JaxprEqn):
        if found := rule(part):
            return found
        params = {name: inner(value) for name, value in part.params.items()}
        return part if all(map(operator.is_, params.values(), part.params.values())) else part.replace(params=params)
    return part


def replaced(eqn: core.JaxprEqn, function: Callable[..., Array]) -> core.JaxprEqn:
    """An equation that computes a function of another one's operands."""
    avals: list[Any] = [variable.aval for variable in eqn.invars]
    shapes = (jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)
    call = jax.make_jaxpr(jax.jit(function))(*shapes).eqns[-1]
    return eqn.replace(primitive=call.primitive, params=call.params)


def _fast_convolution(eqn: core.JaxprEqn) -> core.JaxprEqn | None:
    if eqn.params.get("branches_platforms"):  # who chose by platform, as `convolve` does, knows better
        return eqn
    if eqn.primitive is not lax.conv_general_dilated_p:
        return None
    avals: list[Any] = [variable.aval for variable in (*eqn.invars, *eqn.outvars)]
    (lhs, rhs, out), params = avals, eqn.params
    groups = max(params["feature_group_count"], params["batch_group_count"])
    floats = lhs.dtype == rhs.dtype == out.dtype and lhs.dtype in (jnp.float32, jnp.float64)
    usual = floats and lhs.size and rhs.size and out.size
    if lhs.ndim == 5 and groups == 1 and usual:
        return replaced(eqn, partial(_own, out.shape, params))
    as_it_is = groups == 1 and params["dimension_numbers"] == _fast_numbers(lhs.ndim)
    return eqn if as_it_is else replaced(eqn, partial(_canonical, usual, params))


def _fast_numbers(ndim: int) -> lax.ConvDimensionNumbers:
    """Samples, volume, features, and for the kernel volume, inputs, features."""
    volume = range(1, ndim - 1)
    data = 0, ndim - 1, *volume
    return lax.ConvDimensionNumbers(data, (ndim - 1, ndim - 2, *range(ndim - 2)), data)


def _canonical(usual: bool, params: dict[str, Any], lhs: Array, rhs: Array) -> Array:
    names, strides = params["dimension_numbers"], params["window_strides"]
    dilation, spread = params["rhs_dilation"], params["lhs_dilation"]
    (samples, channels, *volume), (outputs, inputs, *edges) = names.lhs_spec, names.rhs_spec
    x, kernel = lhs.transpose(samples, *volume, channels), rhs.transpose(*edges, inputs, outputs)
    params = params | {"dimension_numbers": _fast_numbers(x.ndim)}
    *edges, inputs, outputs = kernel.shape
    groups, taps = max(params["feature_group_count"], params["batch_group_count"]), math.prod(edges)
    by_parts = usual and params["batch_group_count"] == 1 < groups
    if by_parts and inputs == 1 and taps <= MOST_PARTS:

        def summed(x: Array, kernel: Array) -> Array:
            weights = kernel.reshape(-1, outputs)
            each = jax.checkpoint(
                lambda x: sum(map(operator.mul, _met(_surrounded(x, params), edges, strides, dilation), weights))
            )
            # Without a loop XLA computes the sum again for each operation that needs it.
            return lax.map(each, x[..., None, :], batch_size=max(1, CHUNK * len(x) // x.size))[..., 0, :]

        library = partial(lax.conv_general_dilated_p.bind, **params | {"feature_group_count": outputs})
        out = _with_input_gradient(summed, library)(jnp.repeat(x, outputs // groups, -1), kernel)
    elif by_parts and groups <= MOST_PARTS:
        alone = fast_convolutions(partial(lax.conv_general_dilated_p.bind, **params | {"feature_group_count": 1}))
        out = jnp.concatenate(list(map(alone, jnp.split(x, groups, -1), jnp.split(kernel, groups, -1))), -1)
    elif groups * max(strides) == 1 < max(spread) and taps > math.prod(x.shape[1:-1]):
        # The kernel's gradient of a transposed convolution. A dilated volume under a large kernel is slow, the reverse is not.
        sizes = zip(params["padding"], x.shape[1:], spread, edges, dilation, strict=False)
        padding = tuple((high + (gap := (n - 1) * s - (k - 1) * d), low + gap) for (low, high), n, s, k, d in sizes)
        params |= {"padding": padding, "lhs_dilation": dilation, "rhs_dilation": spread}
        out = lax.conv_general_dilated_p.bind(jnp.moveaxis(kernel, -1, 0), jnp.moveaxis(x, 0, -1), **params)
        out = jnp.flip(out, range(1, x.ndim - 1)).swapaxes(0, -1)
    else:
        out = lax.conv_general_dilated_p.bind(x, kernel, **params)
    samples, channels, *volume = names.out_spec
    return jnp.moveaxis(out, range(out.ndim), (samples, *volume, channels))


def _met(x: Array, edges: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> Iterator[Array]:
    """What each tap meets, along the first axes."""
    ends = [max(n - (k - 1) * d, 0) for n, k, d in zip(x.shape, edges, dilation, strict=False)]
    for tap in itertools.product(*map(range, edges)):
        first = list(map(operator.mul, tap, dilation))
        yield x[tuple(map(slice, first, map(operator.add, first, ends), strides))]


def _own(shape: Sequence[int], params: dict[str, Any], lhs: Array, rhs: Array) -> Array:
    names, strides, dilation = params["dimension_numbers"], params["window_strides"], params["lhs_dilation"]
    (samples, channels, *volume), (outputs, inputs, *edges) = names.lhs_spec, names.rhs_spec
    x, kernel = lhs.transpose(*volume, samples, channels), rhs.transpose(*edges, inputs, outputs)
    kernel = _padded(kernel, [(0, 0, d - 1) for d in params["rhs_dilation"]])
    samples, channels, *volume = names.out_spec
    precision, *_ = params["precision"] or (lax.Precision.DEFAULT,)
    if max(strides) == 1 < max(dilation):
        low, size = [low for low, _ in params["padding"]], [shape[axis] for axis in volume]
        out = _spread(x, kernel, dilation, low, size, precision)
    else:
        x = _surrounded(x, params)
        few = max(kernel.shape[:3]) <= MOST_TAPS and any(map(operator.mod, kernel.shape, strides))
        by_taps, by_blocks = (partial(form, strides=strides, precision=precision) for form in (_by_taps, _by_blocks))
        out = (_with_input_gradient(by_taps, by_blocks) if few else by_blocks)(x, kernel)
    return jnp.moveaxis(out, range(out.ndim), (*volume, samples, channels))


def _by_blocks(x: Array, kernel: Array, strides: Sequence[int], precision: lax.Precision) -> Array:
    """Blocks of a stride's edge become channels, and the kernel has one tap for each."""
    edge = max(-(-k // stride) for k, stride in zip(kernel.shape, strides, strict=False))
    count = [(n - k) // stride + edge for n, k, stride in zip(x.shape, kernel.shape, strides, strict=False)]
    return convolve(_blocks(x, count, strides), _blocks(kernel.mT, [edge] * 3, strides).mT, precision=precision)


def _by_taps(x: Array, kernel: Array, strides: Sequence[int], precision: lax.Precision) -> Array:
    """What each tap meets side by side: a kernel of 3³ at a stride of 2 fills 27 of the 64 taps of its blocks."""
    parts = jnp.concatenate(list(_met(x, kernel.shape[:3], strides, (1, 1, 1))), -1)
    return jnp.tensordot(parts, kernel.reshape(-1, kernel.shape[-1]), 1, precision=precision)


def _with_input_gradient(form: Callable[..., Array], other: Callable[..., Array]) -> Callable[..., Array]:
    """Another form gives the gradient of the input."""

    def forward(x: Array, kernel: Array) -> tuple[Array, Any]:
        out, to_kernel = jax.vjp(partial(form, x), kernel)
        return out, (jax.vjp(lambda x: other(x, kernel), x)[1], to_kernel)

    ruled = jax.custom_vjp(form)
    ruled.defvjp(forward, lambda gradients, g: tuple(gradient(g)[0] for gradient in gradients))
    return ruled


def _spread(
    x: Array, kernel: Array, dilation: Sequence[int], low: Sequence[int], size: Sequence[int], precision: lax.Precision
) -> Array:
    """Convolves a volume with `dilation - 1` zeros between its voxels, and `low` before the first.

    A tap meets voxels for one of `dilation` results side by side, so these are features of one convolution without the zeros:
    result `d m + r` is `Σ_t x[m + t] kernel[d t + low - r]`.
    """
    n, axes = len(size), list(zip(kernel.shape, dilation, low, strict=False))
    edge = max((k + d - 2 - start) // d + start // d + 1 for k, d, start in axes)
    front = [(d * edge - k - (d - 1 - start % d), 0, 0) for k, d, start in axes]
    kernel = _padded(jnp.flip(kernel, range(n)), front)
    kernel = jnp.flip(_blocks(kernel, [edge] * n, dilation), range(n))
    count = [-(-out // d) for out, d in zip(size, dilation, strict=True)]
    voxels = [
        (start // d, blocks + edge - 1 - start // d - there, 0)
        for start, d, blocks, there in zip(low, dilation, count, x.shape, strict=False)
    ]
    out = unblocked(convolve(_padded(x, voxels), kernel, precision=precision), dilation)
    return out[tuple(slice(length) for length in size)]


def _blocks(x: Array, count: Sequence[int], strides: Sequence[int]) -> Array:
    """`blocked`, after it is cut or padded to `count` blocks."""
    ends = [(0, blocks * stride - size, 0) for blocks, stride, size in zip(count, strides, x.shape, strict=False)]
    return blocked(_padded(x, ends), strides)


def _padded(x: Array, config: Sequence[tuple[int, int, int]]) -> Array:
    return lax.pad(x, jnp.zeros((), x.dtype), [*config, (0, 0, 0), (0, 0, 0)])


def _surrounded(x: Array, params: dict[str, Any]) -> Array:
    return _padded(x, [(low, high, d - 1) for (low, high), d in zip(params["padding"], params["lhs_dilation"], strict=True)])

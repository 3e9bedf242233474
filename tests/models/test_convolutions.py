from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core

from gmmae.models.convolutions import fast_convolutions

RTOL = 1e-12  # float64: sums of a few hundred terms, in another order
AXES = {1: ("NHC", "HIO", "NHC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}
SHUFFLED = {1: ("CNH", "OHI", "HNC"), 2: ("NCHW", "OIHW", "CNHW"), 3: ("NCDHW", "OIDHW", "NDCHW")}
CASES = [
    (n, seed, options)
    for n in (1, 2, 3)
    for seed, options in enumerate(({}, {"feature_group_count": 2}, {"feature_group_count": 4}))
]
CASES += [(2, 2, {"batch_group_count": 2}), *((3, seed, {}) for seed in range(1, 11))]


pytestmark = pytest.mark.usefixtures("x64")


def convolutions(jaxpr):
    """The numbers of axes and the orders of all convolutions of a jaxpr, inside loops and branches too."""
    for eqn in jaxpr.eqns:
        if eqn.primitive is lax.conv_general_dilated_p:
            yield eqn.invars[0].aval.ndim, eqn.params["dimension_numbers"]
        for inner in () if eqn.params.get("branches_platforms") else core.jaxprs_in_params(eqn.params):
            yield from convolutions(inner)


def are_fast(function, *args, ndims=(3, 4)):
    found = set(convolutions(jax.make_jaxpr(function)(*args)))
    return found <= {(n, lax.conv_dimension_numbers((1,) * n, (1,) * n, AXES[n - 2])) for n in ndims}


def assert_close(ours, theirs):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=RTOL, atol=RTOL * float(jnp.abs(other).max()))


def with_gradients(function):
    def values_and_gradients(c, *args):
        values, gradients = jax.vjp(function, *args)
        return values, gradients(c)

    return values_and_gradients


def case(n, seed, options, axes):
    """A convolution of drawn edges, padding, strides and dilations, and its operands."""
    rng = np.random.default_rng(seed)
    factors = rng.integers(1, 4, (3, n))
    factors[seed % 3] = 1
    drawn = dict(zip(("window_strides", "lhs_dilation", "rhs_dilation"), factors.tolist(), strict=True))
    edges, padding = rng.integers(1, 5, n).tolist(), rng.integers(-1, 4, (n, 2)).tolist()
    sizes = {"N": 4, "C": 4, "I": 4 // options.get("feature_group_count", 1), "O": 8}
    letters = axes[0].replace("N", "").replace("C", "")
    x, w = (
        jnp.asarray(rng.standard_normal([(sizes | dict(zip(letters, edges, strict=False)))[axis] for axis in order]))
        for order, edges in ((axes[0], (14, 9, 8)), (axes[1], edges))
    )
    return partial(lax.conv_general_dilated, padding=padding, dimension_numbers=axes, **drawn, **options), x, w


@pytest.mark.parametrize(
    ("n", "seed", "options", "axes"),
    [(n, seed, options, axes[n]) for cases, axes in ((CASES, SHUFFLED), (CASES[:9], AXES)) for n, seed, options in cases],
)
def test_values_and_gradients_are_those_of_the_library(n, seed, options, axes, monkeypatch):
    convolution, x, w = case(n, seed, options, axes)
    monkeypatch.setattr("gmmae.models.convolutions.CHUNK", x.size // 2)  # some samples at a time
    c = jnp.asarray(np.random.default_rng(1).standard_normal(jax.eval_shape(convolution, x, w).shape))
    plain = with_gradients(convolution)
    fast = fast_convolutions(with_gradients(fast_convolutions(convolution)))
    expected = jax.jit(plain)(c, x, w)
    for function in (fast, fast_convolutions(plain)):
        assert_close(jax.jit(function)(c, x, w), expected)
    assert are_fast(fast, c, x, w)


@jax.custom_vjp
def ruled(x, w):
    return lax.conv(x, w, (1, 1), "SAME")


ruled.defvjp(lambda x, w: (ruled(x, w), (x, w)), lambda saved, g: (3 * lax.conv(g, saved[1], (1, 1), "SAME"), 2 * saved[1]))


def everywhere(x, w):
    """Convolutions in all that holds other functions, of one, two and three dimensions."""
    volume = lambda x: lax.conv(x[:, :, None], w[..., None], (1, 1, 1), "SAME")[:, :, 0]  # noqa: E731
    plane = jax.jit(lambda x: lax.conv(x, w, (1, 1), "SAME"))
    x = lax.scan(lambda x, _: (jnp.tanh(plane(x)), None), x, None, length=2)[0]
    x = lax.cond(x.sum() > 0, plane, lambda x: jnp.sin(volume(x)), x)
    x = jax.checkpoint(lambda x: jnp.tanh(volume(x)))(x)
    x = jax.vmap(lambda x: ruled(x[None], w)[0])(x)
    x = jax.vmap(lambda x, c: lax.conv(x[None], c * w, (2, 2), "SAME")[0])(x, 1 + jnp.arange(len(x)))
    return x + lax.stop_gradient(lax.fori_loop(0, x.shape[0], lambda _, x: plane(x), x)) + jax.nn.relu(x)


def test_it_reaches_loops_branches_and_rules_for_derivatives():
    rng = np.random.default_rng(0)
    x, w = jnp.asarray(rng.standard_normal((2, 3, 6, 6))), jnp.asarray(rng.standard_normal((3, 3, 3, 3)) / 5)
    c = jnp.asarray(rng.standard_normal((2, 3, 3, 3)))
    plain, fast = with_gradients(everywhere), fast_convolutions(with_gradients(fast_convolutions(everywhere)))
    assert not are_fast(plain, c, x, w)
    assert are_fast(fast, c, x, w)
    assert_close(jax.jit(fast)(c, x, w), jax.jit(plain)(c, x, w))


def test_a_function_without_convolutions_keeps_its_program():
    gradient, x = jax.grad(lambda x: jax.nn.relu(x @ x).sum()), jnp.ones((3, 3))
    assert str(jax.make_jaxpr(fast_convolutions(gradient))(x)) == str(jax.make_jaxpr(gradient)(x))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("n", [2, 3])
def test_half_precision_keeps_its_types(n, dtype):
    convolution, x, w = case(n, 0, {"preferred_element_type": jnp.float32}, SHUFFLED[n])
    args = x.astype(dtype), w.astype(dtype)
    assert are_fast(fast_convolutions(convolution), *args, ndims=(4, 5))
    ours, theirs = fast_convolutions(convolution)(*args), convolution(*args)
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, atol=0.05)

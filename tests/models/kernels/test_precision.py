"""Products in TF32, in programs for a GPU."""

import re

import jax
import jax.numpy as jnp
import pytest

from gmmae.models.encoder import Encoder, Heads
from gmmae.models.kernels.precision import TF32


@pytest.mark.parametrize("module", [Encoder((4,), (3,), "VALID", "silu", 5), Heads(3, 2)], ids=["encoder", "heads"])
def test_the_model_takes_tf32_and_so_do_its_gradients(module):
    x = jnp.ones((2, 8, 8) if isinstance(module, Encoder) else (2, 8))
    params = module.init(jax.random.key(0), x)

    def precisions() -> set[str]:
        of_parameters = jax.jit(jax.grad(lambda params: jax.tree.leaves(module.apply(params, x))[0].sum()))
        text = of_parameters.trace(params).lower(lowering_platforms=("cuda",)).as_text()
        products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
        return {found[0] if (found := re.search(r"precision = \[.*?\]", line)) else "none" for line in products}

    assert precisions() == {"precision = [HIGHEST, HIGHEST]"}
    with jax.default_matmul_precision(TF32):
        assert precisions() == {"precision = [DEFAULT, DEFAULT]"}

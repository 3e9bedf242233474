"""Products in TF32, in programs for a GPU."""

import jax
import jax.numpy as jnp
import pytest

from gmmae.models.encoder import Encoder, Heads
from gmmae.models.kernels.precision import TF32
from gmmae.models.settings import ModelConfig

SMALL = ModelConfig(filters=(4,), kernels=(3,), activation="silu", latent_dim=5)


@pytest.mark.parametrize(("module", "shape"), [(Encoder(SMALL), (2, 8, 8)), (Heads(3, 2), (2, 8))])
def test_the_model_takes_tf32_and_so_do_its_gradients(module, shape):
    x = jnp.ones(shape)
    params = module.init(jax.random.key(0), x)
    for precision, word in ((None, "HIGHEST"), (TF32, "DEFAULT")):
        with jax.default_matmul_precision(precision):
            of_parameters = jax.jit(jax.grad(lambda params: jax.tree.leaves(module.apply(params, x))[0].sum()))
            text = of_parameters.trace(params).lower(lowering_platforms=("cuda",)).as_text()
        products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
        assert products
        assert all(f"precision = [{word}, {word}]" in line for line in products)

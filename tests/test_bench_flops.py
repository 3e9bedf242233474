"""Operations counted by formula, against counts worked manually."""

import jax
import pytest

from benchmarks import flops
from gmmae.config.schema import Config, OptimConfig, ParallelConfig
from gmmae.data.settings import DataConfig
from gmmae.models.settings import ModelConfig
from gmmae.training import compilation
from gmmae.workloads import nodules
from tests.small import small

# One 2³ kernel with 3 filters on 5³ volumes: 4³ outputs, 192 numbers flattened; 2 latent numbers; 1 component.
TINY = Config(
    settings=nodules.Config(
        data=DataConfig(shape=5, samples=4, validation=1),
        model=ModelConfig(filters=(3,), kernels=(2,), latent_dim=2, components=1),
    ),
    optim=OptimConfig(batch_size=7),
    parallel=ParallelConfig(devices=1),
)


def test_a_step_of_a_tiny_model():
    counts = flops.of_step(TINY)
    assert counts["convolution 1"] == 2 * (2 * 7 * 64 * 8 * 3)  # forward and kernel
    assert counts["dense"] == 3 * 2 * 7 * (192 * 2 + 2 * 10)
    assert counts["density and loss"] == 7 * 125 * (2 * 2 * 10 + 3)
    assert counts["optimiser"] == 14 * (3 * 8 + 3 + 192 * 2 + 2 + 2 * 10 + 10)


def test_a_second_convolution_needs_its_input_s_gradient_too():
    counts = flops.of_step(small(model__filters=(3, 5), model__kernels=(3, 2)))  # 8³ → 6³ → 5³
    assert counts["convolution 2"] == 3 * 2 * 8 * 5**3 * 2**3 * 3 * 5


def test_the_optimiser_s_parameters_are_the_model_s():
    setup = compilation.prepare(TINY)
    counted = flops.of_step(TINY)["optimiser"] / flops.ADAM
    assert counted == compilation.parameter_count(compilation.initial_state(setup).params)


def test_the_forward_product_is_what_xla_counts():
    # XLA counts the products of this convolution on its own; padding none, so the two agree to the additions of the first tap.
    def forward(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1, 1, 1), "VALID", dimension_numbers=("NDHWC", "DHWIO", "NDHWC"))

    shapes = jax.ShapeDtypeStruct((2, 6, 6, 6, 3), "float32"), jax.ShapeDtypeStruct((3, 3, 3, 3, 4), "float32")
    analysis = jax.jit(forward).lower(*shapes).compile().cost_analysis()
    assert analysis
    assert analysis["flops"] == pytest.approx(flops.convolution(2, 4, 3, 3, 4), rel=0.02)

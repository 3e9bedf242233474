"""Skips where JAX has no CUDA part to compile for a GPU. `make test-gpu-programs` makes an environment that has it."""

import os
from importlib.util import find_spec

import pytest


@pytest.fixture(scope="session", autouse=True)
def cuda_part():
    if not (find_spec("jax_cuda12_plugin") or find_spec("jax_cuda13_plugin")):
        text = "JAX has no CUDA part here: make test-gpu-programs"
        (pytest.fail if os.environ.get("GMMAE_TEST_GPU_PROGRAMS") else pytest.skip)(text)

"""GPUs, where there are some and they may be used: JAX_PLATFORMS=cuda,cpu pytest tests/gpu, as `make gpu-report` runs it."""

import jax
import pytest


@pytest.fixture(scope="session")
def gpus():
    """All of this process, or a skip."""
    found = tuple(device for device in jax.local_devices() if device.platform != "cpu")
    if not found:
        pytest.skip("JAX sees no GPU here, or JAX_PLATFORMS leaves it out")
    return found

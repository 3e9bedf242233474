"""Eight virtual CPU devices and eight threads for every test, decided before JAX is first used."""

import gc
import os
from collections.abc import Iterator

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("PJRT_NPROC", "8")  # as gmmae.environment sets it for exact reductions of eight shards

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def compile_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs that several tests compile alike are taken from a cache that lives as long as the session."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    yield
    jax.config.update("jax_compilation_cache_dir", None)


@pytest.fixture(scope="module", autouse=True)
def forget_programs() -> Iterator[None]:
    """Drops a module's compiled programs: each takes memory mappings, of which a process may have 65530, and then crashes."""
    yield
    jax.clear_caches()
    gc.collect()

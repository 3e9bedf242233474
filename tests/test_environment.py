import os

import pytest

from gmmae.config import ParallelConfig
from gmmae.environment import THREADS, prepare, require_prepared
from gmmae.errors import InputError

EXACT = ParallelConfig(reduction="exact", shards=16)


def test_only_the_exact_reduction_fixes_the_threads(monkeypatch):
    monkeypatch.setenv(THREADS, "3")
    prepare(ParallelConfig())
    assert os.environ[THREADS] == "3"
    prepare(EXACT)
    assert os.environ[THREADS] == "16"
    require_prepared(EXACT, cpu_devices=16)


def test_more_cpu_devices_than_shards_are_refused(monkeypatch):
    """They would bring more threads with them."""
    monkeypatch.setenv(THREADS, "16")
    with pytest.raises(InputError, match=r"at most parallel.shards = 16 CPU devices .*; got 17: lower JAX_NUM_CPU_DEVICES"):
        require_prepared(EXACT, cpu_devices=17)


@pytest.mark.parametrize("threads", [None, "2"])
def test_another_number_of_threads_is_refused_on_a_cpu(monkeypatch, threads):
    monkeypatch.delenv(THREADS, raising=False)
    if threads:
        monkeypatch.setenv(THREADS, threads)
    with pytest.raises(InputError, match=rf"needs PJRT_NPROC = parallel.shards = 16 .*; got {threads!r}: set it"):
        require_prepared(EXACT, cpu_devices=1)
    require_prepared(EXACT, cpu_devices=0)  # on a GPU

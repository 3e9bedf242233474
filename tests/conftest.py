"""Eight virtual CPU devices and eight threads for every test, decided before JAX is first used."""

import gc
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from gmmae.system import compilation_cache

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("PJRT_NPROC", "8")  # as gmmae.system.environment sets it for exact reductions of eight shards
# Programs that several tests compile alike, in subprocesses too, are kept, also for the next session, and never in the user's
# folder.
os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.01"
compilation_cache.keep(f"{Path(__file__).parents[1]}/.pytest_cache/compiled")
# Most of the time of most tests is compiling. Tests of bits, and of programs as such, use the fixture `optimised`.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"

import jax  # noqa: E402
import pytest  # noqa: E402

# JAX's many long-lived objects are searched for garbage more rarely: 7 % of the time of all tests.
gc.freeze()
gc.set_threshold(100_000, 50, 100)


@pytest.fixture(scope="session", autouse=True)
def hear_signals():
    """Restores what is ignored under nohup, and behind an `&` of a script, for the processes that tests start."""
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # which a new program does not inherit


MAPPINGS = 30_000
"""Memory mappings above which compiled programs are dropped. Each program takes some, and with 65530 a process crashes."""


TESTS = itertools.count(1)
"""Every fourth test counts the mappings, which takes up to 33 ms; no test leaves more than 4,000."""


@pytest.fixture(autouse=True)
def forget_programs() -> Iterator[None]:
    """Drops compiled programs between tests where there may be too many; otherwise the next test uses them again."""
    yield
    maps = Path("/proc/self/maps")
    if next(TESTS) % 4 == 0 and (not maps.exists() or maps.read_bytes().count(b"\n") > MAPPINGS):
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="module")
def optimised() -> Iterator[None]:
    """Programs as XLA compiles them for users, in subprocesses too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "false")
        jax.config.update("jax_disable_most_optimizations", False)
        jax.clear_caches()
        yield
    jax.config.update("jax_disable_most_optimizations", True)
    jax.clear_caches()


@pytest.fixture
def x64() -> Iterator[None]:
    """Numbers of 64 bits."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def few_divisions(monkeypatch: pytest.MonkeyPatch):
    """One division into folds for C2ST, so that the tests are quick."""
    monkeypatch.setattr("gmmae.generation.judging.two_samples.REPETITIONS", 1)


@pytest.fixture
def shell_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes shell scripts, `shell_scripts(srun="exit 3")`, to the folder `bin`, where they stand in for commands."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def write(**scripts: str):
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)

    return write

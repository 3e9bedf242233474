"""Compiled programs kept between processes: where, how many, and what happens when that goes wrong."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from gmmae.config.toml import to_toml
from gmmae.system import compilation_cache
from gmmae.system.compilation_cache import CACHE_FOLDER, CACHE_MIN_S, keep, user_cache
from gmmae.system.environment import THREADS
from gmmae.training.loop import run
from tests.small import Recorder, fingerprint, small

ROOT = Path(__file__).parent.parent.parent
LINES = small(data__ndim=1, stop__max_epochs=1)
"""A workload with figures that are drawn fast."""


@pytest.fixture
def cache(tmp_path):
    """A cache of this process's own, and the counts of what was looked for and found in it."""
    counts = {"hits": 0, "misses": 0}

    def listen(event: str, **_) -> None:
        name = event.rpartition("cache_")[2]
        counts[name] = counts.get(name, 0) + 1

    before = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    reset_cache()
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.monitoring.register_event_listener(listen)
    yield counts
    jax.monitoring.unregister_event_listener(listen)
    reset_cache()
    jax.config.update("jax_compilation_cache_dir", before)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)  # as in conftest.py


# Where


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "HOME"])
def test_on_is_the_users_folder_which_no_other_user_may_write(monkeypatch, tmp_path, variable):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    environ = {}
    keep("on", environ)
    folder = user_cache() / "compiled"
    assert user_cache() == (tmp_path if variable == "XDG_CACHE_HOME" else tmp_path / ".cache") / "gmmae"
    assert environ == {CACHE_FOLDER: str(folder), CACHE_MIN_S: "0.1"}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.iterdir()) == []


def test_a_path_is_that_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    environ = {CACHE_MIN_S: "2"}
    keep("~/programs", environ)
    assert environ == {CACHE_FOLDER: str(tmp_path / "programs"), CACHE_MIN_S: "2"}


@pytest.mark.parametrize(("asked", "environ"), [("off", {}), ("on", {CACHE_FOLDER: "elsewhere"}), ("on", {CACHE_FOLDER: ""})])
def test_off_keeps_nothing_and_jax_s_own_variable_decides(asked, environ):
    before = dict(environ)
    keep(asked, environ)
    assert environ == before


def homeless():
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("setting", ["{}/file/folder", "on"])
def test_a_folder_that_cannot_be_made_and_a_user_without_a_home_cost_a_line(tmp_path, monkeypatch, capsys, setting):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    (tmp_path / "file").write_text("")
    environ = {}
    keep(setting.format(tmp_path), environ)
    assert environ == {}
    error = capsys.readouterr().err
    assert error.startswith("warning: compiled programs cannot be kept, and every start takes as long as the first (")
    assert error.count("\n") == 1


# How many


def test_the_oldest_entries_go_first_and_nothing_of_others(tmp_path, monkeypatch):
    """Five entries of 10 bytes, the one made first named last, where 25 are allowed: two stay."""
    monkeypatch.setattr(compilation_cache, "LIMIT_BYTES", 25)
    names = [f"jit_f-{i:064x}-cache" for i in range(5)]
    for age, name in enumerate(names):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (0, 1_000_000 - age))
    others = ["thesis.tex", "my-cache", "jit_f-0-cache"]
    for name in others:
        (tmp_path / name).write_bytes(bytes(1000))
        os.utime(tmp_path / name, (0, 0))
    keep(str(tmp_path), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[:2] + others)


# When it goes wrong


@pytest.mark.parametrize("damage", [lambda data: data[:40], lambda data: data[:100] + bytes(8) + data[108:], lambda _: b""])
def test_a_damaged_entry_is_compiled_again_with_a_warning_of_jax(tmp_path, cache, damage):
    def compute():
        jax.clear_caches()
        return jax.jit(lambda x: jnp.sin(x) @ x).lower(np.ones((3, 3))).compile()(np.ones((3, 3)))

    right = compute()
    [entry] = (tmp_path / "compiled").iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    with pytest.warns(UserWarning, match="Error reading persistent compilation cache entry"):
        np.testing.assert_array_equal(compute(), right)
    assert cache["hits"] == 0


def train(tmp_path, name: str, **environ: str) -> tuple[Path, str]:
    """Runs `train.py` as a user does, with a home of its own; returns the work directory and standard error."""
    config = tmp_path / "run.toml"
    config.write_text(to_toml(LINES))
    workdir = tmp_path / name
    surroundings = {key: value for key, value in os.environ.items() if key not in (CACHE_FOLDER, CACHE_MIN_S)}
    environ = surroundings | {"XDG_CACHE_HOME": str(tmp_path / "home")} | environ
    command = [sys.executable, "train.py", "--config", str(config), "--workdir", str(workdir)]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return workdir, done.stderr


@pytest.mark.slow
def test_train_keeps_its_programs_in_the_users_folder_and_goes_on_without_one(tmp_path):
    kept = tmp_path / "home" / "gmmae" / "compiled" / "threads_8"  # conftest.py fixes the threads
    cold, said = train(tmp_path, "cold")
    assert said == ""
    entries = sorted(kept.iterdir())
    assert {path.name.partition("-")[0] for path in entries} >= {"jit_init", "jit__fun"}
    warm, said = train(tmp_path, "warm")
    assert said == ""
    assert sorted(kept.iterdir()) == entries
    without, said = train(tmp_path, "without", XDG_CACHE_HOME="/dev/null")
    assert said.startswith("warning: compiled programs cannot be kept")
    assert len({fingerprint(LINES, workdir) for workdir in (cold, warm, without)}) == 1


# What rests on it


@pytest.mark.slow
def test_exact_runs_have_the_same_bits_from_kept_programs_as_from_fresh_ones(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("PJRT_NPROC", "8")
    config = small(parallel__devices=4, parallel__deterministic=True, parallel__deterministic_shards=8, stop__max_epochs=10)
    run(config, tmp_path / "fresh", Recorder())
    assert cache["hits"] == 0
    jax.clear_caches()
    run(config, tmp_path / "kept", Recorder())
    assert cache["hits"] >= 4, "initial state, epoch, validation, description"
    assert fingerprint(config, tmp_path / "kept") == fingerprint(config, tmp_path / "fresh")


def test_programs_for_other_threads_are_in_other_folders(tmp_path):
    """XLA divides sums among the threads when it compiles; bits depend on their number, and JAX 0.12 has it not in its key."""
    places = []
    for threads in ({}, {THREADS: "2"}, {THREADS: "3"}):
        keep(str(tmp_path), environ := dict(threads))
        places.append(environ[CACHE_FOLDER])
    assert places == [str(tmp_path), str(tmp_path / "threads_2"), str(tmp_path / "threads_3")]

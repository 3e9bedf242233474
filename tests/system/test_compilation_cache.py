"""Compiled programs kept between processes: where, how many, and what happens when that goes wrong."""

import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from gmmae.config.toml import to_toml
from gmmae.system import compilation_cache
from gmmae.system.compilation_cache import CACHE_FOLDER, CACHE_MIN_S, keep
from gmmae.system.environment import THREADS
from tests.launched import python
from tests.small import EXACT, fingerprint, small

pytestmark = pytest.mark.usefixtures("optimised")

CONFIG = small(
    data__ndim=1,  # figures of lines are drawn fast
    parallel__devices=4,
    **EXACT,
)


@pytest.fixture
def cache(tmp_path):
    """A cache of this process's own, which is its folder."""
    before = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    for folder, seconds in ((tmp_path / "compiled", 0.0), (before, 0.01)):  # as in conftest.py
        reset_cache()
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)
        if folder != before:
            yield folder


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "HOME"])
def test_on_is_the_users_folder_which_no_other_user_may_write(monkeypatch, tmp_path, variable):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    environ = {}
    keep("on", environ)
    folder = (tmp_path if variable == "XDG_CACHE_HOME" else tmp_path / ".cache") / "gmmae" / "compiled"
    assert environ == {CACHE_FOLDER: str(folder), CACHE_MIN_S: "0.1"}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("asked", "environ", "folder"),
    [
        ("off", {}, None),
        ("on", {CACHE_FOLDER: "elsewhere"}, "elsewhere"),
        ("on", {CACHE_FOLDER: ""}, ""),
        ("~/programs", {CACHE_MIN_S: "2"}, "{}/programs"),
        # XLA divides sums among the threads when it compiles; bits depend on their number, and JAX 0.12 has it not in its key.
        ("~", {CACHE_MIN_S: "2", THREADS: "3"}, "{}/threads_3"),
    ],
)
def test_the_folder_is_that_of_jax_s_own_variable_or_of_the_option_and_the_threads(
    monkeypatch, tmp_path, asked, environ, folder
):
    monkeypatch.setenv("HOME", str(tmp_path))
    kept = dict(environ)
    keep(asked, kept)
    assert kept == environ | ({} if folder is None else {CACHE_FOLDER: folder.format(tmp_path)})


@pytest.mark.parametrize("setting", ["{}/file/folder", "on"])
def test_a_folder_that_cannot_be_made_and_a_user_without_a_home_cost_a_line(tmp_path, monkeypatch, capsys, setting):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as where there is no home
    (tmp_path / "file").write_text("")
    environ = {}
    keep(setting.format(tmp_path), environ)
    assert environ == {}
    assert re.fullmatch("warning: compiled programs cannot be kept, .*\n", capsys.readouterr().err)


def test_the_oldest_entries_go_first_and_nothing_of_others(tmp_path, monkeypatch):
    """Five entries of 10 bytes, the one made first named last, where 25 are allowed: two stay."""
    monkeypatch.setattr(compilation_cache, "LIMIT_BYTES", 25)
    names, others = [f"jit_f-{i:064x}-cache" for i in range(5)], ["thesis.tex", "my-cache", "jit_f-0-cache"]
    for age, name in enumerate(names + others):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (0, 1_000_000 - age))
    keep(str(tmp_path), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[:2] + others)


@pytest.mark.parametrize("damage", [lambda data: data[:40], lambda data: data[:100] + bytes(8) + data[108:], lambda _: b""])
def test_a_damaged_entry_is_compiled_again_with_a_warning_of_jax(cache, damage):
    def compute():
        jax.clear_caches()
        return jax.jit(lambda x: jnp.sin(x) @ x).lower(np.ones((3, 3))).compile()(np.ones((3, 3)))

    right = compute()
    [entry] = cache.iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    with pytest.warns(UserWarning, match="Error reading persistent compilation cache entry"):
        np.testing.assert_array_equal(compute(), right)


@pytest.mark.slow
def test_train_keeps_its_programs_in_the_users_folder_for_the_same_bits_and_goes_on_without_one(tmp_path):
    kept, config, entries, bits = tmp_path / "gmmae" / "compiled" / "threads_8", tmp_path / "run.toml", [], set()
    config.write_text(to_toml(CONFIG))
    surroundings = {key: value for key, value in os.environ.items() if key not in (CACHE_FOLDER, CACHE_MIN_S)}
    for home in (str(tmp_path), str(tmp_path), "/dev/null"):  # cold, warm, without
        workdir = tmp_path / str(len(entries))
        done = python("train.py", "--config", config, "--workdir", workdir, env=surroundings | {"XDG_CACHE_HOME": home})
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith("warning: compiled programs cannot be kept") == bool(done.stderr) == (home == "/dev/null")
        entries.append(sorted(path.name for path in kept.iterdir()))
        bits.add(fingerprint(CONFIG, workdir))
    assert {name.partition("-")[0] for name in entries[0]} >= {"jit_init", "jit__fun"}
    assert entries[0] == entries[1]
    assert len(bits) == 1

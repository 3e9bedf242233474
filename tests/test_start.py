"""A start that fails leaves the work directory as it was, so that the corrected command is not refused there."""

import os
import signal

import jax
import pytest

from gmmae.system.errors import InputError
from gmmae.training import programs
from tests.interrupting import tree
from tests.launched import ROOT, python
from tests.small import finish, small


def memory_runs_out(*_: object, **__: object):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")


def interrupted(*_: object):
    raise KeyboardInterrupt


COMPILATION = (programs, "training", memory_runs_out)
FAILURES = {
    "too many devices": ({"parallel__devices": 64}, None, InputError),
    "no such data": ({"data__source": "luna16", "data__root": "/no/such/folder"}, None, InputError),
    "memory, compiling": ({}, COMPILATION, jax.errors.JaxRuntimeError),
    "memory, at the first validation": (
        {"log__tensorboard": True},
        (programs, "validation", lambda *_: memory_runs_out),
        jax.errors.JaxRuntimeError,
    ),
    "Ctrl-C": ({}, (programs, "training", interrupted), KeyboardInterrupt),
}


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "failure", "error"), FAILURES.values(), ids=FAILURES.keys())
def test_a_start_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, changes, failure, error):
    if failure:
        monkeypatch.setattr(*failure)
    with pytest.raises(error):
        finish(small(**changes), tmp_path / "some" / "runs" / "one")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("files", [[], ["cell.toml"]], ids=["empty", "with other files"])
def test_a_folder_that_was_there_stays_as_it_was(tmp_path, files):
    for name in files:
        (tmp_path / name).write_text("seed = 0")
    with pytest.raises(InputError):
        finish(small(parallel__devices=64), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == files


@pytest.mark.slow
def test_a_resumption_that_fails_changes_nothing(tmp_path, monkeypatch):
    finish(small(), tmp_path)
    before = tree(tmp_path) | {".lock": b""}  # the last owner of the work directory may change
    with monkeypatch.context() as patched:
        patched.setattr(*COMPILATION)
        with pytest.raises(jax.errors.JaxRuntimeError):
            finish(small(stop__max_epochs=9, log__tensorboard=True), tmp_path)
    assert tree(tmp_path) | {".lock": b""} == before
    assert finish(small(stop__max_epochs=4), tmp_path)[0].epochs == 4


KILLED_IN_THE_FIRST_EPOCH = """
import os, signal, sys
from pathlib import Path
from gmmae.training import loop
from tests.interrupting import tree
from tests.small import Recorder, small
loop.Run._train_epoch = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # as Linux does where memory runs out
loop.run(small(optim__batch_size=16), Path(sys.argv[1]), Recorder())
"""


@pytest.mark.slow
def test_a_run_without_an_epoch_gives_way_to_another_configuration(tmp_path):
    assert python("-c", KILLED_IN_THE_FIRST_EPOCH, tmp_path).returncode == -signal.SIGKILL
    assert (tmp_path / "config.toml").is_file()
    record, _ = finish(small(optim__batch_size=8), tmp_path)
    assert (record.global_batch, record.epochs) == (8, 3)
    with pytest.raises(InputError, match=r"where optim\.batch_size was 8, now 16"):
        finish(small(optim__batch_size=16), tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JAX_PLATFORMS", "cuda"),
        ("XLA_FLAGS", "--xla_no_such_flag=1"),
        pytest.param("JAX_PLATFORMS", "nothing,cpu", marks=pytest.mark.slow),
        pytest.param("JAX_NUM_CPU_DEVICES", "x", marks=pytest.mark.slow),
        pytest.param("JAX_NUM_CPU_DEVICES", "0", marks=pytest.mark.slow),
    ],
)
def test_a_variable_with_which_jax_does_not_start_ends_in_one_line(tmp_path, name, value):
    done = python(ROOT / "train.py", "--workdir", tmp_path / "run", env={**os.environ, name: value}, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert name in done.stderr
    assert value in done.stderr

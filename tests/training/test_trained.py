"""The Python interface: `docs/api.md` as printed, and what it says of what is not there."""

import os
import shutil

import numpy as np
import pytest

import gmmae
from gmmae.system.errors import InputError
from tests.commands import refusal
from tests.launched import ROOT, python
from tests.small import EXACT, finish, small

BLOCKS = [part.partition("```")[0] for part in (ROOT / "docs" / "api.md").read_text(encoding="utf-8").split("```python\n")[1:]]


@pytest.mark.slow
def test_the_examples_run_as_printed(tmp_path):
    done = python("-c", "\n".join(BLOCKS), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    outcome, losses, shapes, refined, density = done.stdout.splitlines()[:5]
    assert outcome.startswith("max_epochs 0.00")
    assert losses.count("0.00") == 2
    assert shapes == "(2, 50) (2, 50, 3) (2, 50, 3, 3)"
    assert refined == "True"
    assert density.startswith("[")
    assert (tmp_path / "runs" / "from_python" / "figures" / "reconstructions.png").is_file()


def test_every_public_name_is_there_and_no_other():
    assert all(getattr(gmmae, name) is not None for name in gmmae.__all__)
    with pytest.raises(AttributeError, match="module 'gmmae' has no attribute 'nothing'"):
        gmmae.nothing  # noqa: B018


LOADING = """
import sys
import gmmae
from gmmae.system.errors import InputError

exact, empty = sys.argv[1:]
model = gmmae.load(exact)
losses = model.losses(model.workload.load().validation)
print(type(losses).__name__, losses.dtype, losses.mean())
try:
    gmmae.load(empty)
except InputError as error:
    print(error)
"""


@pytest.mark.slow
def test_an_exact_run_in_float64_loads_in_any_interpreter_and_its_folder_stays_as_it_is(tmp_path):
    record, _ = finish(small(precision="float64", stop__max_epochs=1, **EXACT), tmp_path / "exact")
    shutil.copytree(tmp_path / "exact", tmp_path / "empty", ignore=shutil.ignore_patterns("checkpoints"))
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("JAX", "XLA", "PJRT"))}
    done = python("-c", LOADING, tmp_path / "exact", tmp_path / "empty", env=plain)
    assert (done.returncode, done.stderr) == (0, "")
    losses, refusal = done.stdout.splitlines()
    *kind, mean = losses.split()
    assert kind == ["ndarray", "float64"]
    assert float(mean) == pytest.approx(record.best_val_loss, rel=1e-7)  # its weights of samples are float32
    assert refusal.startswith(f"workdir must hold a checkpoint; got none in {tmp_path / 'empty' / 'checkpoints'}: train on")
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_what_a_model_cannot_take_is_refused_in_a_line(tmp_path, whole):
    model = gmmae.load(whole(stop__max_epochs=5).workdir)
    volumes = np.zeros((2, 8, 8, 8), np.float32)
    refused = {
        "samples": (
            lambda: model.losses(volumes[0]),
            lambda: model.losses(np.zeros((2, 9, 9, 9), np.float32)),
            lambda: model.describe(volumes.astype(np.int16)),
        ),
        "steps": (lambda: model.refine(volumes, -1), lambda: model.refine(volumes, 2.5)),  # pyright: ignore[reportArgumentType]
        "train takes": (
            lambda: gmmae.train("quickstart", tmp_path / "x"),  # pyright: ignore[reportArgumentType]
            lambda: gmmae.train(small(), None),  # pyright: ignore[reportArgumentType]
        ),
        "workdir must be that of a run": (lambda: gmmae.load(tmp_path / "nothing"),),
    }
    for word, calls in refused.items():
        for call in calls:
            with pytest.raises(InputError, match=rf"\A{word}.*; got .*\Z"):
                call()


def test_a_run_without_a_finite_epoch_has_no_parameters_for_anything(tmp_path, capsys):
    folder = tmp_path / "run"
    assert finish(small(optim__learning_rate=1e30, stop__max_epochs=1), folder)[0].best_epoch is None
    for use in (lambda: gmmae.load(folder), lambda: finish(small(init_from=str(folder)), tmp_path / "out")):
        with pytest.raises(InputError, match="must be a run with a finite epoch"):
            use()
    for command in ("export", "evaluate"):
        assert "must be a run with a finite epoch" in refusal(capsys, command, folder, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()

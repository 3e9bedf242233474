"""`gmmae export`: the file, loaded where there is JAX and NumPy alone, gives the model's numbers for any number of samples."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import gmmae
from gmmae.export.loader import Model
from gmmae.system.errors import InputError
from gmmae.training import preparation
from gmmae.training.checkpoint import named
from gmmae.workloads import registry
from tests.commands import refusal, run_gmmae
from tests.launched import python
from tests.small import CHEAP, finish, small
from tests.volume_sources import from_source

LOAD = """
import sys, importlib.abc

class Nothing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("gmmae", "flax", "optax", "orbax", "tyro", "jaxtyping", "SimpleITK", "sklearn"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Nothing())
sys.path.insert(0, sys.argv[1])
import load
import numpy as np

model = load.Model(sys.argv[2])
with np.load(sys.argv[3]) as arrays:
    given = dict(arrays)
found = {}
for count in (1, 3, 20):
    samples = {name: array[:count] for name, array in given.items()}
    samples = samples["only"] if list(samples) == ["only"] else samples
    for function in model.functions:
        arrays = model(function, samples)
        for name, array in (arrays if isinstance(arrays, dict) else {"": arrays}).items():
            found[f"{count} {function} {name}"] = array
np.savez(sys.argv[4], **found)
"""


def export(root, tmp_path):
    assert run_gmmae("export", root, "--out", tmp_path / "model.zip") == 0
    return tmp_path / "model.zip"


def exported(root, tmp_path, monkeypatch):
    """Exports a run; what the file alone gives, by number of samples, function and name, and what the model does.

    The model computes them one by one, as the file does: forms of a convolution depend on the batch, and round otherwise.
    """
    file, model = export(root, tmp_path), gmmae.load(root)
    samples = model.workload.load().train
    given, found = tmp_path / "given.npz", tmp_path / "found.npz"
    np.savez(given, **(samples if isinstance(samples, dict) else {"only": samples}))
    with zipfile.ZipFile(file) as archive:
        archive.extract("load.py", tmp_path)
        meta = json.loads(archive.read("meta.json"))
    assert python("-I", "-c", LOAD, tmp_path, file, given, found).returncode == 0
    expected = {}
    monkeypatch.setattr(preparation, "EVAL_DEVICE_BATCH", 1)
    for count in (1, 3, 20):
        part = jax.tree.map(lambda array, count=count: array[:count], samples)
        of = {"losses": {"": model.losses(part)}, "metrics": model.metrics(part)}
        of["describe"] = model.describe(part) if model.workload.describe else {}
        expected |= {f"{count} {function} {name}": array for function, those in of.items() for name, array in those.items()}
    with np.load(found) as arrays:
        assert arrays.keys() == expected.keys()
        for name, array in arrays.items():
            assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape)
            np.testing.assert_allclose(array, expected[name], rtol=1e-6, atol=1e-6)
    return model, meta


@pytest.mark.parametrize("precision", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_the_file_alone_gives_the_numbers_of_the_model(mixture_run, tmp_path, monkeypatch, precision):
    folder = mixture_run.folder
    if precision == "float64":
        folder = tmp_path / "run"
        finish(small(precision=precision, stop__max_epochs=1), folder)
    model, meta = exported(folder, tmp_path, monkeypatch)
    assert meta["functions"].keys() == {"losses", "describe"}
    assert (meta["run_id"], meta["dtype"], meta["platforms"]) == (model.record.run_id, precision, ["cpu", "cuda"])
    assert meta["functions"]["describe"]["gives"]["means"] == f"{precision}[samples, 4, 3]"
    assert meta["functions"]["losses"]["samples"] == f"{precision}[samples, 8, 8, 8]"


@pytest.mark.parametrize(
    ("name", "samples", "message"),
    [
        ("encode", np.zeros((1, 8, 8, 8)), r"the function must be one of losses, describe; got 'encode'"),
        (
            "losses",
            np.zeros((0, 8, 8, 8)),
            r"losses takes .* \[samples, 8, 8, 8\], with one sample or more; got \[0, 8, 8, 8\]",
        ),
        ("losses", np.float32(1), r"got \[\]$"),
        ("describe", {"volumes": np.zeros((1, 8, 8, 8))}, r"got \{'volumes': '\[1, 8, 8, 8\]'\}$"),
    ],
)
def test_the_loader_refuses_samples_of_another_form(mixture_run, tmp_path, name, samples, message):
    with pytest.raises(ValueError, match=message):
        Model(export(mixture_run.folder, tmp_path))(name, samples)


def test_a_workload_of_ones_own_is_exported_with_its_metrics(own_run, tmp_path, monkeypatch):
    _, meta = exported(own_run.folder, tmp_path, monkeypatch)
    assert list(meta["functions"]) == ["losses", "metrics"]
    assert meta["functions"]["metrics"]["samples"] == {"image": "float32[samples, 8, 8]", "label": "int32[samples]"}
    model, image = Model(tmp_path / "model.zip"), np.ones((1, 8, 8))
    for label in (np.array([2**40]), np.array([0.5])):
        with pytest.raises(ValueError, match="metrics takes int32 here; got"):
            model("metrics", {"image": image, "label": label})
    label = np.array([1])
    assert model("losses", {"image": image.astype(int), "label": label}) == model("losses", {"image": image, "label": label})


def test_a_run_that_validates_on_a_source_is_exported(tmp_path):
    finish(from_source(tmp_path / "volumes.py", small(stop__max_epochs=1, **CHEAP)), tmp_path / "run")
    assert Model(export(tmp_path / "run", tmp_path)).functions


def test_a_program_that_jax_cannot_read_leaves_parameters_and_settings_from_which_gmmae_builds_the_model(own_run, tmp_path):
    export(own_run.folder, tmp_path)
    file = export(own_run.folder, tmp_path)  # an earlier export is replaced
    with zipfile.ZipFile(file) as whole, zipfile.ZipFile(tmp_path / "later.zip", "w") as later:
        for name in whole.namelist():
            content = whole.read(name)
            later.writestr(name, content[: len(content) // 2] if name.endswith("stablehlo") else content)
    model, of_run = gmmae.load(tmp_path / "later.zip"), gmmae.load(own_run.folder)
    samples = of_run.workload.load().validation
    alone = Model(tmp_path / "later.zip")
    with pytest.raises(ValueError, match=r"^JAX must be able to read the program of losses.*gmmae.load") as caught:
        alone("losses", samples)
    assert "\n" not in str(caught.value)
    assert alone.settings["workload"] == of_run.config.workload
    np.testing.assert_equal(alone.params, named(of_run.params))
    assert (model.config, model.record) == (of_run.config, of_run.record)
    np.testing.assert_array_equal(model.losses(samples), of_run.losses(samples))
    np.testing.assert_equal(model.metrics(samples), of_run.metrics(samples))


def test_a_workload_that_has_moved_is_given_to_load_and_parameters_of_bfloat16_are_exported(own_run, tmp_path):
    config = gmmae.load(own_run.folder).config
    here = tmp_path / "mine.py"
    here.write_text(Path(config.workload).read_text().replace("nn.Dense(", "nn.Dense(param_dtype=jnp.bfloat16, features="))
    finish(replace(config, workload=str(here)), tmp_path / "run")
    file = export(tmp_path / "run", tmp_path)
    moved = str(here.rename(tmp_path / "moved.py"))
    registry.load.cache_clear()
    with pytest.raises(InputError, match=r"workload file not found: .*mine.py.*gmmae.load"):
        gmmae.load(file)
    model = gmmae.load(file, workload=moved)
    assert model.config.workload == moved
    samples = model.workload.load().validation
    np.testing.assert_allclose(Model(file)("losses", samples), model.losses(samples), rtol=1e-2)


def test_files_that_are_no_export_and_places_that_are_none_are_refused_in_a_line(mixture_run, tmp_path, capsys):
    mine = tmp_path / "mine.npz"
    np.savez(mine, volumes=np.zeros(3))
    before = mine.read_bytes()
    assert "which holds something else" in refusal(capsys, "export", mixture_run.folder, "--out", mine)
    assert mine.read_bytes() == before
    with pytest.raises(InputError, match=r"got .*mine.npz.*, which has no config.toml"):
        gmmae.load(mine)
    with pytest.raises(ValueError, match=r"the file must be one of gmmae export; got .*mine.npz"):
        Model(mine)

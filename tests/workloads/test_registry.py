"""A workload that cannot be used is refused in one line."""

import sys
from functools import partial
from typing import Any

import numpy as np
import pytest

from gmmae.cli.arguments import parse_train
from gmmae.config.schema import changed
from gmmae.system.errors import InputError
from gmmae.training import compilation, programs
from gmmae.workloads import registry
from gmmae.workloads.interface import Splits, Workload
from gmmae.workloads.registry import load
from gmmae.workloads.sources import count
from tests.commands import refusal

HEAD = "from dataclasses import dataclass\nimport numpy as np\nfrom gmmae.workloads.interface import Splits, Workload\n"
CONFIG = "@dataclass(frozen=True)\nclass Config:\n    size: int = 4  # of a sample\n"
BUILD = """
def build(config):
    import jax.numpy as jnp
    data = np.ones((6, config.size), np.float32)
    return Workload(lambda: Splits(data, data), lambda key: jnp.ones(2), lambda p, s, k: {})
"""


@pytest.fixture
def file(tmp_path):
    """Writes a file and returns its path."""

    def write(text):
        path = tmp_path / "mine.py"
        path.write_text(HEAD + text)
        return str(path)

    return write


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CONFIG, "which has no build"),
        ("def build(config):\n    pass\n", "which has no Config"),
        ("Config = dict\ndef build(config):\n    pass\n", "got <class 'dict'>"),
        (CONFIG.replace("size", "seed") + BUILD, "got seed in "),
    ],
)
def test_a_file_that_is_no_workload(file, text, message):
    with pytest.raises(InputError) as caught:
        load(file(text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cells", "one of nodules, segmentation, .*'cells'"),
        ("no.such.module", "'no.such.module'"),
        ("nowhere/mine.py", "file .*nowhere/mine.py"),
    ],
)
def test_a_name_that_is_no_workload(name, message):
    with pytest.raises(InputError, match=message):
        load(name)


def test_a_module_of_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "thing.py").write_text(HEAD + CONFIG + BUILD.format("jnp.ones(6)"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    config, workdir = parse_train(["--workload", "own_package.thing", "--size", "3"], "train.py")
    assert (config.workload, config.settings.size, str(workdir)) == ("own_package.thing", 3, "runs/own_package")


def test_a_file_is_known_by_its_whole_path(file, monkeypatch, tmp_path):
    path = file(CONFIG + BUILD.format("jnp.ones(6)"))
    monkeypatch.chdir(tmp_path)
    config, _ = parse_train(["--workload", "mine.py"], "train.py")
    assert config.workload == path


@pytest.mark.parametrize(
    ("samples", "shapes"),
    [
        ({"a": np.ones((3, 2)), "b": np.ones(4)}, r"\(3, 2\), \(4,\)"),
        (np.ones((0, 2)), r"\(0, 2\)"),
        (np.float32(1), r"\(\)"),
        ({}, "none"),
    ],
)
def test_samples_that_cannot_be_counted(samples, shapes):
    with pytest.raises(InputError, match=f"got shapes {shapes}$"):
        count(samples)


def test_build_must_return_a_workload(file):
    with pytest.raises(InputError, match="must return a Workload; got int from"):
        registry.build(registry.configuration(file(CONFIG + "def build(config):\n    return 3\n")))


@pytest.mark.parametrize("function", ["load", "build"])
def test_a_file_that_is_not_there_is_one_line(file, function, capsys, tmp_path):
    body = "np.load('absent.npz')" if function == "build" else "return Workload(lambda: np.load('absent.npz'), None, None)"
    path = file(CONFIG + f"def build(config):\n    {body}\n")
    error = refusal(capsys, "train", "--workload", path, "--workdir", tmp_path / "run")
    assert f"{function} of a workload must find the files that it reads; got absent.npz in {path}" in error


def test_load_must_return_splits_and_build_loads_nothing(monkeypatch):
    loaded: list[int] = []
    no_splits: Any = partial(loaded.append, 1)
    workload = Workload(no_splits, lambda key: key, lambda p, s, k: s)
    config = registry.configuration()
    monkeypatch.setattr(load(config.workload), "build", lambda _: workload)
    built = registry.build(config)
    assert not loaded
    with pytest.raises(InputError, match="must return Splits; got NoneType from"):
        built.load()
    assert loaded == [1]


def compiled(setup):
    state = setup.devices.replicate(compilation.initial_state(setup))
    return programs.training(setup, state), programs.validation(setup, state.params)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"losses": lambda p, s, k: s.sum()}, r"losses of a workload .* \(\d,\).*; got float32 of shape \(\)"),
        ({"metrics": lambda p, s: {"x": s}}, r"metrics, 'x' of a workload .* got float32 of shape \(\d, 4\)"),
        ({"metrics": lambda p, s: {"loss": s[:, 0]}}, "metrics of a workload .*'loss'"),
    ],
)
def test_functions_that_do_not_give_one_number_a_sample(monkeypatch, changes, message):
    data = np.ones((6, 4), np.float32)
    plain = Workload(lambda: Splits(data, data), lambda key: np.ones(2, np.float32), lambda p, s, k: s[:, 0] * p[0])
    monkeypatch.setattr(registry, "build", lambda config: plain._replace(**changes))
    setup = compilation.prepare(changed(registry.configuration(), optim__batch_size=2, parallel__devices=1))
    with pytest.raises(InputError, match=message):
        compiled(setup)


@pytest.mark.parametrize("what", ["names", "groups"])
def test_names_and_groups_must_be_as_many_as_the_samples(monkeypatch, what):
    data = np.ones((6, 4), np.float32)
    words: Any = {what: {"train": ["a"] * 6, "validation": ["a"] * 3}}
    workload = Workload(lambda: Splits(data, data[:2], **words), lambda key: data, lambda p, s, k: s[:, 0])
    config = registry.configuration()
    monkeypatch.setattr(load(config.workload), "build", lambda _: workload)
    with pytest.raises(InputError, match=f"{what} of a workload .*; got 3 for 2 validation samples"):
        registry.build(config).load()


def test_a_file_that_has_changed_is_imported_again_for_a_new_configuration(tmp_path):
    """Also within a second and with an equal size, as in two cells of a notebook: Python's own cache would not notice."""
    path, values = tmp_path / "mine.py", []
    for value in ("1", "2"):
        fields = f"@dataclass(frozen=True)\nclass Config:\n    width: int = {value}\n"
        path.write_text(f"from dataclasses import dataclass\n\n\n{fields}\n\ndef build(config): ...\n")
        values.append((registry.configuration(str(path)).settings.width, registry.file_hash(str(path))))
    assert [width for width, _ in values] == [1, 2]
    assert values[0][1] != values[1][1]

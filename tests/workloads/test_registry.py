"""Workloads by name: built-in ones, files and modules. What a file must hold is in test_contract.py."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gmmae import configure
from gmmae.cli.arguments import parse_train
from gmmae.system.errors import InputError
from gmmae.workloads import registry
from tests.commands import refusal

TEXT = """
from dataclasses import dataclass
from gmmae.workloads.interface import Workload

@dataclass(frozen=True)
class Config:
    size: int = 4  # of a sample

def build(config):
    return Workload(lambda: 1 / 0, None, None)
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A workload's file in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "own" / "mine.py"
    path.parent.mkdir()
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cells", "one of nodules, segmentation, .*'cells'"),
        ("no.module", "'no.module'"),
        ("nowhere/mine.py", "nowhere/mine.py"),
    ],
)
def test_a_name_that_is_no_workload(name, message):
    with pytest.raises(InputError, match=message):
        registry.load(name)


@pytest.mark.parametrize("change", [("@dataclass(", "exit(0)\n@dataclass("), ("1 / 0", "exit(0)")])
def test_a_workload_that_exits_is_refused(path, capsys, change):
    path.write_text(TEXT.replace(*change))
    assert "got SystemExit(0) in" in refusal(capsys, "train", "--workload", "own/mine.py", "--workdir", "out")


def test_a_workload_is_a_module_of_the_current_folder_or_a_file_by_its_whole_path(path):
    config, workdir = parse_train(["--workload", "own.mine", "--size", "3"], "train.py")
    assert (config.workload, config.settings.size, str(workdir)) == ("own.mine", 3, "runs/own.mine")
    path.with_name("other.py").write_text(f"{TEXT}\n")
    assert registry.file_hash("own.mine") != registry.file_hash("own.other")
    config, _ = parse_train(["--workload", "own/mine.py"], "train.py")
    assert config.workload == str(path)
    registry.build(config)  # loads nothing


def test_settings_have_the_types_of_their_annotations_in_training_as_in_evaluation(path):
    path.write_text(TEXT.replace("size: int = 4", "size: tuple[float, ...] = (4, 5)"))
    config, _ = parse_train(["--workload", "own/mine.py"], "train.py")
    assert repr(config.settings.size) == "(4.0, 5.0)"
    assert configure("", workload=str(path), seed=np.int64(3), size=np.array([6.0])).settings.size == (6.0,)


def test_a_file_imports_a_module_beside_it(path):
    path.with_name("beside_mine.py").write_text("SIZE = 7")
    path.write_text(TEXT.replace("4", "SIZE").replace("\n@", "from beside_mine import SIZE\n@", 1))
    assert registry.configuration(str(path)).settings.size == 7
    # In the same process that module's name is taken for a file of another folder, also by way of a third module.
    other = path.parent.parent / "other" / "mine.py"
    other.parent.mkdir()
    other.write_text(path.read_text().replace("beside_mine", "between"))
    other.with_name("between.py").write_text("from beside_mine import SIZE")
    assert registry.configuration(str(other)).settings.size == 7
    other.with_name("beside_mine.py").write_text("SIZE = 8")
    other.write_text(other.read_text() + "\n")
    with pytest.raises(InputError, match=rf"got {other.parent}/beside_mine.py, but .* gives {path.parent}/beside_mine.py"):
        registry.configuration(str(other))


def require_other_hashes(path, changed, text):
    """A workload's size and hash follow a file whose text has another size."""
    hashes = set()
    for size in (5, 6):
        changed.write_text(text.replace("4", str(size)))
        assert registry.configuration(str(path)).settings.size == size
        hashes.add(registry.file_hash(str(path)))
    assert len(hashes) == 2


@pytest.mark.parametrize("init", [True, False])
def test_a_module_beside_a_file_is_a_part_of_it(path, init):
    """Also a module of a package, or of a folder without `__init__.py`, that the file imports by way of another one."""
    package, helper = path.with_name(f"package_{init}"), f"helper_{init}"
    package.mkdir()
    if init:
        (package / "__init__.py").touch()
    path.with_name(f"{helper}.py").write_text(f"from {package.name} import inner")
    path.write_text(TEXT.replace("4", "inner.SIZE").replace("\n@", f"from {helper} import inner\n@", 1))
    require_other_hashes(path, package / "inner.py", "SIZE = 4")


@pytest.mark.parametrize("name", ["mine_alone", "own_package.mine"])
def test_a_helper_is_a_part_of_a_workload_given_as_a_module(path, name):
    place = Path(name.replace(".", "/")).with_suffix(".py").absolute()
    place.parent.mkdir(exist_ok=True)
    helper = place.with_name("helper_of_it.py")
    place.write_text(TEXT if "." in name else TEXT.replace("\n@", "import helper_of_it\n@", 1))
    hashes = set()
    for size in (1, 2):
        helper.write_text(f"SIZE = {size}")
        registry.file_hash.cache_clear()
        hashes.add(registry.file_hash(name))
    assert len(hashes) == 2


def test_a_file_that_has_changed_is_imported_again_for_a_new_configuration(path):
    """Also within a second and with an equal size, as in two cells of a notebook: Python's own cache would not notice."""
    require_other_hashes(path, path, TEXT)


def test_a_strategy_of_a_file_is_not_replaced_by_another_file(path, monkeypatch):
    monkeypatch.setattr(registry, "STRATEGIES", dict(registry.STRATEGIES))
    monkeypatch.setattr(registry, "OWNERS", {})
    entry = "from gmmae.workloads.registry import STRATEGIES\nSTRATEGIES['{}'] = STRATEGIES['sqrt']._replace(label='{}')\n"
    path.write_text(entry.format("own", "one") + TEXT)
    registry.configuration(str(path))
    path.write_text(entry.format("own", "the same, edited") + TEXT)
    registry.configuration(str(path))
    assert registry.STRATEGIES["own"].label == "the same, edited"
    for i, taken in enumerate(("own", "weak")):
        other = path.with_name(f"other_{i}.py")
        other.write_text(entry.format(taken, "two") + TEXT)
        with pytest.raises(InputError, match=f"{taken} in {other}"):
            registry.configuration(str(other))
        assert registry.STRATEGIES[taken].label != "two"


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_build_and_load_compute_in_the_precision_of_the_run(path, precision):
    body = "third = jnp.ones(2) / 3\n    return Workload(lambda: Splits(third, Thirds()), None, None)"
    imports = """import jax.numpy as jnp
from gmmae.workloads.interface import Splits
class Thirds:
    def __len__(self): return 2
    def __getitem__(self, index): return jnp.ones(()) / 3
"""
    path.write_text(imports + TEXT.replace("return Workload(lambda: 1 / 0, None, None)", body))
    data = registry.build(registry.configuration(str(path), precision=precision)).load()
    third = np.ones(2, precision) / 3
    with ThreadPoolExecutor() as threads:  # as in a run
        read = np.stack([threads.submit(data.validation.leaves, index).result()[0] for index in range(2)])
    for part in (data.train, read):
        np.testing.assert_array_equal(part, third, strict=True)

"""A program imports no large package that it does not use, and compiles nothing but its programs.

Most of the time of a short run is imports, and a cache of programs does not keep those that compile in a moment.
"""

from pathlib import Path

import pytest

from tests.launched import ROOT, python

FIGURES, STATISTICS = {"matplotlib", "PIL"}, {"scipy.stats", "scipy.optimize", "sklearn"}
FILES, COMMANDS, CLUSTER = {"SimpleITK", "scipy.ndimage"}, {"tyro", "markdown_it"}, {"submitit"}
ARRAYS, TRAINING = {"numpy", "jaxtyping"}, {"jax", "flax", "optax", "orbax.checkpoint", "tensorboardX"}
ALL = FIGURES | STATISTICS | FILES | COMMANDS | CLUSTER | ARRAYS | TRAINING

RUN = """
from pathlib import Path
from gmmae.training import loop
from tests.small import Recorder, small
loop.run(small(stop__max_epochs=1, log__figure_epochs=()), Path("run"), Recorder())
"""

COMPILED = """
import jax, logging
jax.config.update("jax_log_compiles", True)
def keep(record):
    if record.getMessage().startswith("Compiling "):
        print(record.getMessage().split()[1])
logging.getLogger("jax._src.interpreters.pxla").addFilter(keep)
"""


def printed(program: str, folder: Path):
    """Returns the words that a program prints in a folder."""
    return python("-c", f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{program}", cwd=folder).stdout.split()


def imported(program: str, folder: Path):
    """Returns those of `ALL` that a program has imported at its end."""
    found = set(printed(f"{program}\nprint(*sys.modules)", folder))
    assert found
    return ALL & found


@pytest.mark.slow
def test_a_run_without_figures_and_tensorboard(tmp_path):
    assert imported(RUN, tmp_path) == ARRAYS | TRAINING - {"tensorboardX"}


@pytest.mark.slow
def test_a_run_compiles_four_programs(tmp_path):
    # Training and validation are functions of JAX's pmap.
    assert printed(f"{COMPILED}\n{RUN}", tmp_path) == ["jit(init)", "jit(_fun)", "jit(_fun)", "jit(describe)"]


@pytest.mark.parametrize(
    ("module", "needed"),
    [
        ("gmmae.cli.options", {"tyro"}),  # and so help and a bad option, of every command
        ("gmmae.cli.main", set()),
        ("gmmae.sweep.report.page", FIGURES | ARRAYS | {"markdown_it", "tensorboardX"}),
        ("gmmae.sweep.engine", ARRAYS),
        ("gmmae; gmmae.configure('quickstart')", set()),
    ],
)
def test_a_module(tmp_path, module, needed):
    assert imported(f"import {module}", tmp_path) == needed

"""Runs that several tests of commands read, each trained once."""

from pathlib import Path
from typing import NamedTuple

import pytest

from gmmae.classification import classifiers
from gmmae.cli.arguments import parse_train
from gmmae.training.records import Record
from tests.small import SMALL_LATTICE, finish, small
from tests.workloads.test_guide import EXAMPLE


class TrainedRun(NamedTuple):
    """A finished run."""

    folder: Path
    record: Record


@pytest.fixture(scope="package", autouse=True)
def few_settings():
    """Classifiers have fewer settings to choose from, which takes a third of the time."""
    with pytest.MonkeyPatch.context() as patch:
        for _, settings in classifiers.METHODS.values():
            for name, values in settings.items():
                patch.setitem(settings, name, values[::4])
        yield


@pytest.fixture(scope="session")
def mixture_run(tmp_path_factory: pytest.TempPathFactory):
    """Two epochs of `small`."""
    folder = tmp_path_factory.mktemp("mixture")
    return TrainedRun(folder, finish(small(stop__max_epochs=2), folder)[0])


@pytest.fixture(scope="session")
def lattice_run(tmp_path_factory: pytest.TempPathFactory):
    """The smallest run that nodules can be generated from. The axes of its volumes differ."""
    folder = tmp_path_factory.mktemp("lattice")
    return TrainedRun(folder, finish(small(**SMALL_LATTICE, data__shape=(6, 8, 10)), folder)[0])


@pytest.fixture(scope="session")
def own_run(tmp_path_factory: pytest.TempPathFactory):
    """An epoch of the guide's workload."""
    root = tmp_path_factory.mktemp("own")
    (root / "mine.py").write_text(EXAMPLE)
    options = ["--workload", str(root / "mine.py"), "--images", "96", "--stop.max-epochs", "1", "--log.no-tensorboard"]
    config = parse_train([*options, "--parallel.devices", "1"], "train.py")[0]
    return TrainedRun(root / "run", finish(config, root / "run")[0])

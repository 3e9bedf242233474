"""Sweeps of a small program in the place of a run."""

import pytest

from tests.sweep.fake_runs import Fake, grid


@pytest.fixture
def fake(tmp_path):
    return Fake(tmp_path)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    fake = Fake(tmp_path_factory.mktemp("undisturbed"))
    code, watch = fake.sweep(grid(), reference_batches=(24,))
    return fake, code, watch

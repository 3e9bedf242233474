"""The sweep of `tests.sweeps.small` with times projected to a cluster. Tests only read it."""

import pytest

from gmmae.sweep.report import cells
from tests import sweeps
from tests.sweeps import FLAT, GRID, PASSES, STEPS


@pytest.fixture(scope="session")
def projected(tmp_path_factory):
    root = tmp_path_factory.mktemp("projected")
    sweeps.small(root)
    sweeps.add_step_times(root, 1, STEPS, PASSES)
    return cells.read(GRID, root, [FLAT])[0]

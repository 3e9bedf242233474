"""The sweep of `tests.sweeps.small` with times projected to a cluster. Tests only read it."""

import pytest

from gmmae.sweep.report import cells
from tests import sweeps
from tests.sweeps import FLAT, GRID, PASSES, STEPS


def add_times(root, **changes):
    """Writes the step times of one device by which the sweep's times are those of `tests.sweeps.small`."""
    return sweeps.add_step_times(root, 1, STEPS, PASSES, **changes)


@pytest.fixture(scope="session")
def projected(tmp_path_factory):
    root = tmp_path_factory.mktemp("projected")
    sweeps.small(root)
    add_times(root)
    return cells.read(GRID, root, [FLAT])[0]

"""The network finds what differs, nothing where nothing differs, and needs groups on both sides of a fold."""

import numpy as np
import pytest

from gmmae.generation.judging import network
from gmmae.system.errors import InputError
from tests.generation.nodules import balls


@pytest.fixture(autouse=True)
def few_epochs(monkeypatch):
    """Uses few epochs, so that the tests are quick."""
    monkeypatch.setattr(network, "EPOCHS", 4)


def judged(one, two):
    volumes = (np.concatenate([one.values, two.values]).astype(float) + 1000) / 1400
    return network.c2st(volumes, np.repeat([0, 1], [len(one.names), len(two.names)]), np.array([*one.groups, *two.groups]), 0)


def test_the_same_population_is_not_told_apart_and_a_grid_of_voxels_is():
    real = balls(0, 60)
    # The standard error of an AUC of 60 against 60 is .053 (Mann and Whitney 1947).
    assert judged(real, balls(1, 60, "same")).value == pytest.approx(0.5, abs=0.16)
    grid = (np.indices((8, 8, 8)).sum(0) % 2 * 300 - 150).astype(np.int16)  # of mean 0, so no mean of voxels shows it
    other = balls(2, 60, "other")
    found = judged(real, other._replace(values=other.values + grid))
    assert found.value > 0.85
    assert found.low > 0.75


def test_volumes_of_odd_sizes_are_padded():
    assert network._padded(np.zeros((2, 5, 8, 10))).shape == (2, 8, 8, 12)


def test_groups_that_allow_no_fold_are_refused():
    one = balls(0, 30)
    with pytest.raises(InputError, match="must both have nodules of both sets"):
        judged(one._replace(groups=("one",) * 30), balls(1, 30, "other"))

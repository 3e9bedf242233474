"""The U-Net's workload with fewer training slices."""

import numpy as np
import pytest

from experiments import slices
from gmmae.system.errors import InputError
from gmmae.workloads import registry
from gmmae.workloads.configuration import configure

SMALL = {"data__samples": 12, "data__shape": 16, "data__jitter": 2, "data__validation": 3, "model__features": (4,)}


def load(count):
    """The data, and the names and groups of its training slices."""
    data = registry.build(configure("", workload=slices.__file__, slices=count, **SMALL)).load()
    assert data.names is not None
    assert data.groups is not None
    return data, data.names["train"], data.groups["train"]


def nodules(names):
    return [name.rpartition(" slice ")[0] for name in names]


def test_whole_nodules_are_taken_with_their_samples_and_groups_and_the_last_as_far_as_it_is_needed():
    (everything, names, groups), (some, some_names, some_groups) = load(0), load(30)
    all_of, taken = nodules(names), nodules(some_names)
    cut = [name for name in set(taken) if taken.count(name) < all_of.count(name)]
    assert len(taken) == 30 < len(all_of)
    assert len(cut) <= 1
    at = [names.index(name) for name in some_names]
    np.testing.assert_array_equal(some.train["values"], everything.train["values"][at])
    np.testing.assert_array_equal(some.validation["values"], everything.validation["values"])
    assert list(some_groups) == [groups[i] for i in at]


def test_more_slices_than_there_are():
    with pytest.raises(InputError, match=r"slices must be at most \d+, the training slices there are; got 9999"):
        load(9999)

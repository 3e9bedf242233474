"""The fit of links finds the numbers behind made-up times, and refuses times that leave them open."""

import itertools
import math

import pytest

from gmmae.scaling import cost
from gmmae.scaling.cost import Cluster
from gmmae.scaling.link_fit import AllReduceTime, Link, fit_links
from gmmae.system.errors import InputError

INSIDE, BETWEEN = Link(2e-6, 1e10), Link(3e-5, 1e9)
SIZES = (1024, 65536, 4194304)


def cluster(collective, devices_per_node=4, inside=INSIDE):
    return Cluster("c", "d", devices_per_node, *inside, *BETWEEN, collective=collective)


def times(of, counts, sizes=SIZES):
    return [AllReduceTime(n, size, cost.all_reduce_s(of, n, size)) for n, size in itertools.product(counts, sizes)]


@pytest.mark.parametrize("collective", ["ring", "tree"])
def test_known_links_are_found_inside_and_between_nodes(collective):
    fit = fit_links(times(cluster(collective), (2, 4, 8, 16)), 4)
    assert fit.collective == collective
    assert fit.inside == pytest.approx(INSIDE, rel=1e-9)
    assert fit.between == pytest.approx(BETWEEN, rel=1e-9)
    assert abs(fit.worst_residual) < 1e-9


def test_links_of_one_node_leave_that_between_nodes_open():
    fit = fit_links(times(cluster("ring"), (2, 4)), 4)
    assert fit.inside == pytest.approx(INSIDE, rel=1e-9)
    assert fit.between is None


def test_nodes_of_one_device_have_the_link_between_nodes_only():
    of = cluster("ring", 1, BETWEEN)
    fit = fit_links(times(of, (2, 4, 8)), 1)
    assert fit.between == pytest.approx(BETWEEN, rel=1e-9)
    assert cost.all_reduce_s(fit.cluster(of), 8, 2e6) == pytest.approx(cost.all_reduce_s(of, 8, 2e6), rel=1e-9)


def test_a_link_without_latency_is_found():
    fit = fit_links(times(cluster("ring", inside=Link(0.0, 1e10)), (2, 4)), 4)
    assert fit.inside.alpha_s < 1e-12
    assert fit.inside.beta_bytes_per_s == pytest.approx(1e10, rel=1e-6)


def test_the_largest_error_is_told_with_its_sign():
    noisy = [AllReduceTime(2, size, 1e-5 + size / 1e9) for size in (1000, 10_000, 100_000)]
    noisy[1] = noisy[1]._replace(seconds=2 * noisy[1].seconds)
    fit = fit_links(noisy, 2)
    model = fit.cluster(cluster("ring", 2))
    errors = [cost.all_reduce_s(model, 2, time.size_bytes) / time.seconds - 1 for time in noisy]
    assert fit.worst_residual == max(errors, key=abs)
    # The logarithms 0, log 2 and 0 leave a mean square of log(2)² / 9 · 2 with one free parameter.
    assert math.log1p(errors[1]) == pytest.approx(-2 / 3 * math.log(2), abs=0.2)


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ([], "all-reduces must be timed on two or more devices; got one device"),
        ([AllReduceTime(2, 8, 1.0)], "all-reduces must have at least two different sizes; got 1 times of one"),
        (
            [AllReduceTime(2, 8, 2.0), AllReduceTime(2, 800, 1.0)],
            "all-reduces must take longer the larger they are; got sizes of 8",
        ),
        (
            [AllReduceTime(2, 8, 0.0), AllReduceTime(2, 80, 1.0)],
            "seconds of an all-reduce must be positive; got 0: measure again",
        ),
        ([AllReduceTime(8, 8, 1.0), AllReduceTime(8, 80, 2.0)], "also be timed on 2 to 4 devices of a node; got none"),
    ],
)
def test_times_that_leave_the_links_open_are_refused(measured, message):
    with pytest.raises(InputError, match=message):
        fit_links(measured, 4)

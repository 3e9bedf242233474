import dataclasses
import math
from pathlib import Path

import pytest

from gmmae.scaling import cost
from gmmae.scaling.cost import Cluster, StepTimes
from gmmae.system.errors import InputError
from tests.bad_values import require_refused

FILES = sorted((Path(__file__).parent.parent.parent / "configs" / "clusters").glob("*.toml"))
# 4 devices a node: 1 s and 100 bytes/s inside, 3 s and 10 bytes/s between nodes.
CLUSTER = Cluster("c", "d", 4, 1.0, 100.0, 3.0, 10.0)
TIMES = StepTimes((1, 4, 8), (0.5, 2.0, 2.4))
TOML = """
name = "c"
device = "d"
devices_per_node = 4
alpha_intra_s = 1
beta_intra_bytes_per_s = 100
alpha_inter_s = 3.0
beta_inter_bytes_per_s = 10.0
"""


@pytest.mark.parametrize(
    ("devices", "ring", "tree"),  # 80 bytes: 0.8 s whole inside a node, 8 s between nodes
    [
        (1, 0, 0),
        (4, 6 + 1.2, 4 * 1.8),  # one node: 6 steps of 1 s + 20 bytes; 2 levels of 1.8 s up and down
        (8, 14 * 3 + 14, 4 * 1.8 + 2 * 11),  # 14 steps of 3 s + 10 bytes at 10 bytes/s; one level more, of 11 s
        (9, 16 * 3 + 128 / 9, 4 * 1.8 + 4 * 11),  # 16 steps of 80 / 9 bytes; a third node is a second level
    ],
)
def test_two_levels_against_values_worked_by_hand(devices, ring, tree):
    for collective, expected in (("ring", ring), ("tree", tree), ("fastest", min(ring, tree))):
        cluster = dataclasses.replace(CLUSTER, collective=collective)
        assert cost.all_reduce_s(cluster, devices, 80) == pytest.approx(expected)
    # A ring waits for the slowest link even where that is inside the nodes: 6 steps of 2 bytes at 1 byte/s.
    slow_inside = Cluster("c", "d", 2, 5.0, 1.0, 3.0, 10.0, collective="ring")
    assert cost.all_reduce_s(slow_inside, 4, 8) == pytest.approx(6 * (5 + 2))


def test_a_cluster_may_leave_the_link_between_nodes_open_but_not_half_of_it():
    node = Cluster("node", "d", 4, 1.0, 100.0)
    assert cost.all_reduce_s(node, 4, 80) == cost.all_reduce_s(CLUSTER, 4, 80)
    with pytest.raises(InputError, match=r"at most the 4 of a node of node, .* got 5"):
        cost.all_reduce_s(node, 5, 80)
    with pytest.raises(InputError, match="alpha_inter_s must be given"):
        dataclasses.replace(node, beta_inter_bytes_per_s=1.0)
    for devices in (0, -1, 1.5):
        with pytest.raises(InputError, match=f"devices must be .*; got {devices}"):
            cost.all_reduce_s(CLUSTER, devices, 1)  # pyright: ignore[reportArgumentType]


def test_step_times_are_linear_between_measured_batches_and_never_extrapolated():
    # Between 1 and 4: 0.5 s a sample; between 4 and 8: 0.1 s a sample.
    assert [TIMES.at(batch) for batch in (1, 2, 4, 5, 8)] == pytest.approx([0.5, 1.0, 2.0, 2.1, 2.4])
    for batch in (0, 9):
        with pytest.raises(InputError, match=f"from 1 to 8; got {batch}"):
            TIMES.at(batch)


@pytest.mark.parametrize(
    "times",
    [
        ((), ()),
        ((4, 1), (1.0, 1.0)),
        ((1, 1), (1.0, 1.0)),
        ((1, 4), (1.0,)),
        ((1, 4), (1.0, 0.0)),
        ((1, 4), (1.0, float("nan"))),
    ],
    ids=str,
)
def test_step_times_must_be_measurements(times):
    with pytest.raises(InputError, match="step times must be a positive time for each of increasing batches"):
        StepTimes(*times).at(1)


def test_a_device_that_takes_6_s_where_2_s_were_measured_takes_3_times_as_long():
    for cluster, scale in ((CLUSTER, 1), (dataclasses.replace(CLUSTER, reference_step_s=6.0, reference_batch=4), 3)):
        assert cost.scale(cluster, TIMES) == pytest.approx(scale)
    with pytest.raises(InputError, match="from 1 to 8; got 32"):
        cost.scale(dataclasses.replace(CLUSTER, reference_step_s=1.0), TIMES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_shipped_file_is_read_and_says_where_it_is_from(path):
    cluster = cost.read_cluster(path)
    assert cluster.sources
    assert path.read_text().startswith("# ")
    assert (cluster.beta_inter_bytes_per_s or math.inf) < cluster.beta_intra_bytes_per_s
    assert cluster.alpha_intra_s < (cluster.alpha_inter_s or 0)
    assert cluster.price_per_device_hour is None, "prices go stale"
    assert 0 < cost.all_reduce_s(cluster, 2, 2e6) < cost.all_reduce_s(cluster, 32, 2e6)


def test_a_file_is_found_by_its_earlier_name():
    assert cost.read_cluster("ethernet_100g") == cost.read_cluster("a100")


def test_the_papers_cluster_against_a_value_worked_by_hand():
    cluster = cost.read_cluster("k80_1gbe")
    # Ring of 32: 62 · (50 µs + 62500 bytes at 117.7 MB/s) = 62 · (50 + 531.0) µs = 36.02 ms, and the tree
    # 2 · (20 + 606.1) µs + 8 · (50 + 16992) µs = 137.6 ms.
    assert cost.all_reduce_s(cluster, 32, 2e6) == pytest.approx(0.03602, rel=1e-3)
    assert cost.all_reduce_s(dataclasses.replace(cluster, collective="tree"), 32, 2e6) == pytest.approx(0.1376, rel=1e-3)


def test_the_h200s_ring_is_near_the_published_times_of_eight():
    """The times are microseconds by KiB, of MSCCL++ in CUDA graphs (sglang pull request 22734). The file tells the errors."""
    published = {2: 5.86, 4: 5.98, 8: 6.0, 16: 6.37, 32: 7.21, 64: 8.2, 128: 8.8, 256: 10.56, 512: 11.96, 1024: 14.01}
    cluster = cost.read_cluster("h200_nvlink")
    ring = dataclasses.replace(cluster, collective="ring")
    errors = [1e6 * cost.all_reduce_s(ring, 8, 1024 * kib) / us - 1 for kib, us in published.items()]
    assert (min(errors), max(errors)) == (pytest.approx(-0.24, abs=0.01), pytest.approx(0.17, abs=0.01))
    assert cost.all_reduce_s(cluster, 8, 2e6) == pytest.approx(16.3e-6, rel=0.01)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", 3),
        ("devices_per_node", 0),
        ("reference_batch", True),
        ("alpha_intra_s", -1e-6),
        ("alpha_inter_s", "1"),
        ("reference_step_s", float("nan")),
        ("beta_intra_bytes_per_s", 0),
        ("beta_inter_bytes_per_s", float("inf")),
        ("collective", "butterfly"),
        ("price_per_device_hour", 2.5),
        ("price_per_device_hour", "2.50 USD"),
        ("price_per_device_hour", "EUR 2,50"),
        ("price_per_device_hour", "USD -1"),
        ("watts_per_device", 0),
    ],
)
def test_a_bad_value_names_its_key(key, value):
    require_refused(lambda: dataclasses.replace(CLUSTER, **{key: value}), key, value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TOML + "alpha = 1\n", "got .*alpha"),
        ("name = \n", "must be TOML: "),
    ],
)
def test_a_bad_file_is_one_line_with_its_name_and_the_key(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(TOML)
    assert cost.read_cluster(path) == CLUSTER
    path.write_text(text)
    with pytest.raises(InputError, match=rf"^{path}.*{message}"):
        cost.read_cluster(path)

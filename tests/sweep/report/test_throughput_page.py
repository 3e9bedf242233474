from dataclasses import replace
from typing import TypeVar

import pytest

from gmmae.plotting.document import Bullets, Figure, Folded, Paragraph, unfolded
from gmmae.plotting.tables import Table
from gmmae.sweep.grid import SweepConfig, TimingConfig
from gmmae.sweep.report import results, throughput_page
from tests import sweeps

T = TypeVar("T")

CONFIG = SweepConfig(mode="throughput", devices=(1, 2, 4, 8), timing=TimingConfig(device_batches=(16,), global_batches=(32,)))


def measured(root, counts=(1, 2, 4, 8), **changes):
    """Strong: 4 + 32 / n + 2 log2 n ms; weak: 20 + n ms."""
    for n in counts:
        strong = 1e-3 * (4 + 32 / n + 2 * (n.bit_length() - 1))
        sweeps.add_step_times(root, n, {16 * n: 1e-3 * (20 + n)} | {32: strong}, **changes)
    return results.read(CONFIG, root, None)


def of(kind: type[T], blocks) -> list[T]:
    return [block for block in unfolded(blocks) if isinstance(block, kind)]


def test_families_keep_the_global_or_the_device_batch(tmp_path):
    strong, weak = throughput_page.families(measured(tmp_path, (1, 4)))
    assert (strong.label, weak.label) == ("strong, batch 32", "weak, 16 a device")
    assert [row.samples for row in strong.rows.values()] == [32, 32]
    assert [row.samples for row in weak.rows.values()] == [16, 64]
    # 36 ms on one device and 4 + 8 + 4 = 16 ms on four; 21 and 24 ms.
    assert strong.percent(4) == pytest.approx(100 * 36 / (4 * 16))
    assert weak.percent(4) == pytest.approx(100 * 21 / 24)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("whole")
    return throughput_page.blocks(measured(root), root)


def test_the_rates_come_first_and_the_tables_are_folded(whole):
    assert [type(block) for block in whole] == [Bullets, Figure, *[Folded] * 3]


def test_tables_give_medians_quartiles_rates_and_efficiencies(whole):
    by_name = {table.name: table for table in of(Table, whole)}
    assert by_name["strong_throughput"].rows[2] == ("8", "4", "32", "16", "14.4 to 17.6", "2000", "56.25")
    assert by_name["weak_throughput"].rows[2] == ("16", "4", "64", "24", "21.6 to 26.4", "2667", "87.50")


def test_figures_are_drawn(whole):
    throughput, step_time = of(Figure, whole)
    for figure in (throughput, step_time):
        assert figure.png.stat().st_size > 10_000
        assert figure.svg.exists()
    assert "bars quartiles" in throughput.caption


def test_missing_numbers_of_devices_are_named(tmp_path):
    blocks = throughput_page.blocks(measured(tmp_path, (1, 2, 4)), tmp_path)
    assert of(Paragraph, blocks)[0].text == "Not measured yet on these numbers of devices: 8."


def test_without_one_device_there_are_times_and_no_efficiency(tmp_path):
    blocks = throughput_page.blocks(measured(tmp_path, (2, 4)), tmp_path)
    assert {row[-1] for table in of(Table, blocks) for row in table.rows} == {"–"}
    assert "An efficiency needs one device and more" in of(Bullets, blocks)[0].items[0]


def test_oversubscribed_devices_and_failures_are_told(tmp_path):
    found = measured(tmp_path, (1, 2), oversubscribed=True, failed={"training of 64": "out of memory"})
    blocks = throughput_page.blocks(found, tmp_path)
    titles = [table.title for table in of(Table, blocks)] + [figure.caption for figure in of(Figure, blocks)]
    assert len(titles) > len(of(Table, blocks)) > 0
    assert all("does not measure scaling" in title for title in titles)
    assert "2 devices, training of 64: out of memory" in of(Bullets, blocks)[0].items


def test_nothing_measured_is_told(tmp_path):
    texts = [block.text for block in of(Paragraph, throughput_page.blocks(results.read(CONFIG, tmp_path, None), tmp_path))]
    assert texts[-1] == "No step time is measured yet."


def test_more_lines_than_styles_are_thinned_out_evenly(tmp_path):
    many = replace(CONFIG, timing=TimingConfig(device_batches=tuple(range(1, 14)), global_batches=(32,)))
    sweeps.add_step_times(tmp_path, 1, {batch: 0.01 for batch in (*range(1, 14), 32)})
    found = throughput_page.families(results.read(many, tmp_path, None))
    assert len(found) == 14
    few = throughput_page._few(found)
    assert (len(few), few[0], few[-1]) == (7, found[0], found[-1])

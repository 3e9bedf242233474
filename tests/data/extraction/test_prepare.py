import re

import numpy as np

from gmmae.data.extraction.annotations import Fault
from gmmae.data.extraction.progress import progress
from gmmae.data.extraction.summary import lines, summarise
from gmmae.data.extraction.tasks import Plan
from gmmae.data.groups import Groups
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import make_table


def test_the_summary_of_known_cubes():
    values = np.full((4, 4, 4, 4), -800, np.int16)
    values[0] = 40
    masks = np.zeros((4, 4, 4, 4), np.uint8)
    masks[:2] = 1
    facts = {"masked": [True, True, True, False], "filled": [0, 0.5, 0, 0.1], "diameter_mm": [4, np.nan, 6, 20]}
    facts |= {"values": values, "mask": masks, "edge_mm": [8] * 4, "group": [*"ppqr"], "category": ["a", "", "a", "b"]}
    table = make_table([*"0123"], **facts)
    faults = [Fault("missing", f"gone{i}.mhd", "there is\nno such scan", 2) for i in range(30)]
    faults.append(Fault("duplicate", "x.csv line 5", "repeats line 4, which is kept", 0))
    groups = Groups({}, "patient", ["no patient"])
    summary = summarise(Plan((), [], 65), faults, table, DataConfig(source="cubes"), groups)
    assert summary["diameter_mm"] == {"min": 4, "median": 6, "mean": 10, "max": 20}
    assert (summary["border_padded"], summary["masks"], summary["empty_masks"]) == (2, 3, 1)
    assert (summary["offset"], summary["values"]["p50"]) == (["0"], -800)
    text = lines(summary, (-1000.0, 400.0))
    assert text[0] == "4 nodules in 3 groups: 1 without category, 2 a, 1 b"
    for line, numbers in ((1, [65, 1, 60, 0, 30, 0, 0]), (2, [2, 15, 50])):
        assert [float(number) for number in re.findall(r"[\d.]+", text[line])] == numbers
    assert text[3] == "no patient"
    assert text[-21] == "gone0.mhd: there is no such scan"
    assert text[-1] == "and 11 more, in summary.json"
    summary["diameter_mm"]["median"] = 1.4
    doubts = set(lines(summary, (0.0, 1.0))) | set(lines(summary, (-1350.0, -900.0)))
    assert any("1.4 mm or less: are they in mm?" in line for line in doubts - {*text})
    assert sum("are they in its unit?" in line for line in doubts) == 1
    assert "90% of the cubes lie outside of their scans: are axes, places and diameters right?" in lines(
        summary | {"filled_share": {"mean": 0.9, "max": 1.0}}, (-1000.0, 400.0)
    )
    assert any("data.window begins at 0: are they" in line for line in lines(summary | {"unit": ""}, (0.0, 255.0)))


def test_long_work_says_a_line_now_and_then(monkeypatch):
    now, messages = iter([0.0, *range(4, 400, 4)]), []
    monkeypatch.setattr("gmmae.data.extraction.progress.time.monotonic", lambda: next(now))
    assert list(progress(range(10), 10, "scans", messages.append)) == list(range(10))
    assert messages == [f"{n} of 10 scans read in {4 * n} s" for n in (3, 6, 9, 10)]

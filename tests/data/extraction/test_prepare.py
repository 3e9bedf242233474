import json
import re
from pathlib import Path

import numpy as np
import pytest

from gmmae.data.extraction.annotations import Fault
from gmmae.data.extraction.prepare import prepare
from gmmae.data.extraction.progress import progress
from gmmae.data.extraction.summary import lines, summarise
from gmmae.data.extraction.tasks import Plan
from gmmae.data.groups import Groups
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError


def test_the_summary_of_known_cubes():
    hu = np.full((4, 4, 4, 4), -800, np.int16)
    hu[0] = 40
    faults = [Fault("missing", "gone.mhd", "there is\nno such scan", 2), Fault("row", "x.csv line 3", "no number", 1)]
    faults.append(Fault("duplicate", "x.csv line 5", "repeats line 4, which is kept", 0))
    plan = Plan((), (), 8, (), "")
    masks = np.ones((4, 4, 4, 4), np.uint8)
    masks[2:] = 0
    table = {
        "values": hu,
        "masks": masks,
        "masked": np.array([True, True, True, False]),
        "filled": np.array([0, 0.5, 0, 0.1]),
        "diameter_mm": np.array([4, np.nan, 6, 20]),
        **{
            name: np.array(cells)
            for name, cells in (("group", [*"ppqr"]), ("category", ["a", "", "a", "b"]), ("split", [""] * 4))
        },
        "place": np.array([*"0123"]),
    }
    summary = summarise(plan, faults, table, True, Groups({}, "patient", ["no patient"])) | {"repeated": ["c.mhd: too late"]}
    assert summary["annotations"] == summary["nodules"] + summary["duplicates"] + summary["lost"] == 8
    assert summary["diameter_mm"] == {"min": 4, "median": 6, "mean": 10, "max": 20}
    assert (summary["border_padded"], summary["masks"], summary["empty_masks"]) == (2, 3, 1)
    assert (summary["offset"], summary["values"]["p50"]) == (["0"], -800)
    text = lines(summary)
    assert text[0] == "4 nodules in 3 groups: 1 without category, 2 a, 1 b"
    for line, numbers in ((1, [8, 1, 3, 1, 1, 0, 0]), (2, [2, 15, 50])):
        assert [float(number) for number in re.findall(r"[\d.]+", text[line])] == numbers
    assert text[3] == "no patient"
    assert "c.mhd: too late" in text[-4]
    assert text[-3:] == [
        "gone.mhd: there is no such scan",
        "x.csv line 3: no number",
        "x.csv line 5: repeats line 4, which is kept",
    ]


def test_many_faults_are_cut_short_in_print_only(luna_folder):
    config = luna_folder("a", [("a", 10, -20, 30, 8), *((f"gone{i}", 1, 2, 3, 8) for i in range(30))])
    summary = prepare(config).summary
    assert len(summary["faults"]) == 30
    assert lines(summary)[-1] == "and 10 more, in summary.json"
    assert len(lines(summary)) < 30


def test_the_summary_says_where_groups_are_only_scans(luna_folder, write_csv):
    config = luna_folder("ab")
    prepared = prepare(config)
    assert json.loads((prepared.folder / "summary.json").read_text()) == prepared.summary
    assert any("no patient is known" in line for line in lines(prepared.summary))
    rows = [(uid, 10, -20, 30, 8, "P1") for uid in "ab"]
    columns = ("seriesuid", "coordX", "coordY", "coordZ", "diameter_mm", "patient")
    write_csv(Path(config.root) / "annotations.csv", rows, columns)
    known = prepare(config).summary
    assert (known["groups"], known["split_by"]) == (1, "patient")
    assert not any("no patient" in line for line in lines(known))


def test_the_synthetic_source_has_nothing_to_prepare():
    with pytest.raises(DataError, match=r"data.source must be one of luna16, cubes, medmnist .*; got synthetic"):
        prepare(DataConfig())


def test_long_work_says_a_line_now_and_then(monkeypatch):
    now = iter([0.0, *range(4, 400, 4)])
    monkeypatch.setattr("gmmae.data.extraction.progress.time.monotonic", lambda: next(now))
    messages: list[str] = []
    assert list(progress(range(10), 10, "scans", messages.append)) == list(range(10))
    assert messages == [f"{n} of 10 scans read in {4 * n} s" for n in (3, 6, 9, 10)]


def test_on_a_terminal_there_is_a_bar(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    messages: list[str] = []
    assert list(progress("ab", 2, "scans", messages.append)) == ["a", "b"]
    assert messages == []
    assert "100%" in capsys.readouterr().err

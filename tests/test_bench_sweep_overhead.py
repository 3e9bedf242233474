"""The benchmark of a sweep's overhead: its figures against numbers worked out manually, and a small sweep in earnest."""

import json
import sys

import pytest

from benchmarks import sweep_overhead
from benchmarks.child import ROOT
from benchmarks.options import guarded
from benchmarks.sweep_overhead import SweepTimes, sweep_table
from tests.markdown import rows_of

ABOUT = {"machine": "m", "versions": {"jax": "1"}, "commit": None}


def times(wall_s=40.0):
    return SweepTimes(4, 2, wall_s=wall_s, workers_s=30.0, start_s=4.0, end_s=wall_s - 34, trained_s=20.0, about=ABOUT)


def test_a_sweep_is_a_row_with_its_wall_time_over_its_training():
    once, often = rows_of(sweep_table({"tiny": [times()], "large": [times(), times(80.0), times(120.0)]}, jobs=2))
    assert once == ("tiny", "2 for 4", "20", "40", "4", "30", "6", "2", "1.5")
    assert often[3] == "80 (60 to 100)"
    assert often[-2] == "4 (3 to 5)"


@pytest.mark.slow
def test_a_small_sweep(monkeypatch, capsys, tmp_path):
    """Two runs of two epochs."""
    out = tmp_path / "deep" / "found.json"
    few = "--scaling weak --devices 1 2 --seeds 0 --run.stop.max-epochs 2"
    words = ["--only", "tiny", "--tree", str(ROOT), "--out", str(out), f"--sweep-options={few}"]
    monkeypatch.setattr(sys, "argv", ["sweep_overhead", *words])
    guarded(sweep_overhead.main)
    printed = capsys.readouterr().out
    assert "| tiny | 2 for 2 |" in printed
    [tiny] = json.loads(out.read_text())["tiny"]
    assert tiny["runs"] == tiny["computed"] == 2
    assert tiny["start_s"] + tiny["workers_s"] + tiny["end_s"] == pytest.approx(tiny["wall_s"])
    assert 0 < tiny["trained_s"] < tiny["workers_s"]
    assert tiny["about"]["versions"]["jax"]

"""The benchmark of a sweep's overhead: a small sweep in earnest."""

import json
import sys

import pytest

from benchmarks import sweep_overhead
from benchmarks.child import ROOT
from benchmarks.options import guarded


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

"""The report that a person with a GPU sends back, as far as it goes without one."""

import sys

import jax
import pytest

from benchmarks import gpu_links, gpu_report
from benchmarks.gpu_report import SECTIONS, Section, left_out, outcome, report
from gmmae.system.nvidia import Gpu
from tests.markdown import rows_of

H100 = Gpu("NVIDIA H100", "580.65", 9.0)
OLD = Gpu("Tesla K80", "470.1", 3.7)


def program(source: str):
    return Section("A title", (sys.executable, "-c", source), 60.0, on_gpu=False)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("print('so far'); raise SystemExit('error: no GPU')", "error: no GPU (exit code 1)"),
        ("print('so far', flush=True); 1 / 0", "ZeroDivisionError: division by zero (exit code 1)"),
        ("print('so far', flush=True); import os; os._exit(3)", "so far (exit code 3)"),
    ],
)
def test_a_section_that_fails_says_why_in_a_line(source, reason):
    result = outcome(program(source))
    assert (result.printed, result.reason) == ("so far\n", reason)


def test_what_needs_a_gpu_is_left_out_without_one_that_jax_can_use():
    for section in SECTIONS.values():
        assert left_out(section, H100) == ""
    assert "needs an NVIDIA GPU" in left_out(SECTIONS["limits"], None)
    assert "Tesla K80: update its driver" in left_out(SECTIONS["limits"], OLD)
    assert left_out(SECTIONS["environment"], None) == ""


def test_the_report_goes_on_behind_what_fails(monkeypatch, capsys):
    sections = {"bad": program("raise SystemExit('error: nothing here')"), "good": program("print('good')")}
    monkeypatch.setattr(gpu_report, "SECTIONS", sections | {"needs": Section("On a GPU", ("false",))})
    written = "".join(report(("bad", "needs", "good"), None))
    assert "error: nothing here (exit code 1)\n" in written
    assert "it needs an NVIDIA GPU" in written
    assert written.endswith("good\n\n")
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["bad", "needs", "good"]


def test_pairs_are_all_pairs_and_all_together(monkeypatch):
    """Uses virtual devices."""
    monkeypatch.setattr(gpu_links, "REDUCTIONS", 2)
    rows = rows_of(gpu_links.pairs_table(jax.devices()[:3], sizes=(64, 128)))
    assert [row[0] for row in rows] == ["0 and 1", "0 and 2", "1 and 2", "0 and 1 and 2"]
    assert all(int(cell) > 0 for row in rows for cell in row[1:])

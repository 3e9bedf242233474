"""Every command ends on a damaged folder with the right result, or with one line that names the place.

The slow test takes two commands of each case. With GMMAE_TEST_FUZZ_ALL=1 it takes all of them.
"""

import os
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest

from tests.fuzz import nifti
from tests.fuzz.bench import Bench, all_cases, thinned
from tests.fuzz.calls import Outcome, in_process, subprocess_of
from tests.fuzz.cases import STORAGE_FAILED, Case, left_out, on, reads, reads_or_leaves_out, refused, unchanged
from tests.fuzz.changes import gone
from tests.fuzz.commands import COMMANDS, Result
from tests.fuzz.folders import CSV, GRID, write_image
from tests.fuzz.scan_cases import NEW_IMAGE, NEW_MASK
from tests.fuzz.verdict import compare, judge

CLEAN: Result = {"names": ["a", "b"], "loss": [1.0, 2.0], "split": ["train", "validation"]}
REST: Result = {"names": ["a"], "loss": [1.0], "split": ["train"]}
REFUSED = refused("a.csv")
LEFT_OUT = left_out(gone(), "b.nii")
EITHER = reads_or_leaves_out(gone(), "b.nii")


def verdict(outcome, expect, result=CLEAN):
    return judge(outcome, expect, lambda: result, lambda change: CLEAN if change is unchanged else REST, renamed=False).kind


def ended(code: int | None = 0, out="", err="", crash=""):
    return Outcome(code, out, err, crash)


@pytest.mark.parametrize(
    ("outcome", "expect", "result", "kind"),
    [
        (ended(), reads(), CLEAN, "read"),
        (ended(), reads(), CLEAN | {"loss": [1.0, 2.1]}, "SILENT"),
        (ended(), reads(), CLEAN | {"more": [1]}, "SILENT"),
        (ended(), REFUSED, CLEAN, "SILENT"),
        (ended(2, err="error: a.csv: no\n"), REFUSED, CLEAN, "refused"),
        (ended(2, err="1 of 2 scans read\nerror: a.csv: no\n"), REFUSED, CLEAN, "refused"),
        (ended(2, err="error: b.csv: no\n"), REFUSED, CLEAN, "UNNAMED"),
        (ended(75, err="error: a.csv: no\n"), REFUSED, CLEAN, "UNNAMED"),
        (ended(74, err="error: a.csv: no\n"), replace(REFUSED, code=STORAGE_FAILED), CLEAN, "refused"),
        (ended(2, err="error: a.csv\nb: no\n"), REFUSED, CLEAN, "UNNAMED"),
        (ended(2), REFUSED, CLEAN, "UNNAMED"),
        (ended(2, err="WARNING: In itk.cxx\nerror: a.csv: no\n"), REFUSED, CLEAN, "NOISY"),
        (ended(2, err="error: a.csv: no\n"), reads(), CLEAN, "REFUSED"),
        (ended(None, crash="ValueError: x"), REFUSED, CLEAN, "TRACEBACK"),
        (ended(None, crash="not done within 60 s"), reads(), CLEAN, "TOO LATE"),
        (ended(out="b.nii: left out\n"), LEFT_OUT, REST, "left out"),
        (ended(), LEFT_OUT, REST, "SILENT"),
        (ended(out="b.nii: left out\n"), LEFT_OUT, CLEAN, "SILENT"),
        (ended(2, err="error: b.nii: no\n"), LEFT_OUT, REST, "refused"),
        (ended(), EITHER, CLEAN, "read"),
        (ended(out="b.nii\n"), EITHER, REST, "left out"),
    ],
)
def test_a_call_is_judged_by_its_result_its_output_and_its_error(outcome, expect, result, kind):
    assert verdict(outcome, expect, result) == kind


def test_results_are_compared_number_by_number():
    values = np.arange(8.0).reshape(2, 2, 2)
    assert not compare({"values": values}, {"values": values + 1e-7})
    assert compare({"values": values}, {"values": values + 1})
    assert not compare({"values": values}, {"values": values + 1}, near=True)
    assert compare({"values": values}, {"values": values + 9}, near=True)
    assert compare({"loss": [1.1]}, {"loss": [1.0]}, near=True)
    assert not compare({"loss": [1.1], "dice": [0.4]}, {"loss": [1.0], "dice": [0.5]}, near=True)
    assert compare({"loss": [1.3], "dice": [0.5]}, {"loss": [1.0], "dice": [0.5]}, near=True)
    assert compare({"loss": [np.nan]}, {"loss": [1.0]})
    assert compare({"loss": [1.0]}, {"loss": [np.nan]})
    assert not compare({"loss": [np.nan, np.inf]}, {"loss": [np.nan, np.inf]})
    assert compare(CLEAN, CLEAN | {"names": ["a", "c"]})
    turned: Result = {"names": ["c", "d"], "loss": [2.0, 1.0], "split": ["validation", "train"]}
    assert compare(CLEAN, turned)
    assert not compare(CLEAN, turned, renamed=True)
    assert compare(CLEAN, turned | {"split": ["train", "validation"]}, renamed=True)


def entry(work, files):
    """The result of a call of `prepare` that has cut these files."""
    (work / "cache" / "0").mkdir(parents=True)
    np.savez(work / "cache" / "0" / "nodules.npz", names=["n0", "n1"], files=files, diameter_mm=[4.0, 5.0])
    return COMMANDS["prepare"].result(work, ended())


def test_files_in_another_format_or_folder_are_the_same(tmp_path):
    clean = entry(tmp_path / "clean", ["images/n0.nii.gz", "images/n1.nii.gz"])
    assert not compare(entry(tmp_path / "other", ["images/n0.npy", "deep/n1.MHD"]), clean)
    assert compare(entry(tmp_path / "wrong", ["images/n1.nii.gz", "images/n1.nii.gz"]), clean)


def test_a_volume_with_nan_holds_nan_where_its_mask_lies(tmp_path):
    write_image(tmp_path / NEW_IMAGE, np.full(GRID.shape, -300, np.int16), GRID)
    write_image(tmp_path / NEW_MASK, np.ones(GRID.shape, np.uint8), GRID._replace(origin=(1.0, 2.0, 3.0)))
    (case,) = (case for case in all_cases() if case.name == "generated: a volume with NaN")
    case.change(tmp_path)
    header, rest = nifti.contents(tmp_path / NEW_IMAGE)
    mask, _ = nifti.contents(tmp_path / NEW_MASK)
    assert np.isnan(np.frombuffer(rest[4:], "<f4")).all()
    assert (header["srow"] == mask["srow"]).all()


def test_a_call_keeps_what_is_written_and_takes_exceptions_for_crashes(tmp_path, monkeypatch):
    from gmmae.cli import main

    def printing(*_):
        print("out")
        raise ValueError("a bug")

    monkeypatch.setitem(main.COMMANDS, "judge", printing)
    crashed = in_process(["judge"], tmp_path)
    assert (crashed.code, crashed.out) == (None, "out\n")
    assert crashed.crash.startswith("ValueError: a bug")
    monkeypatch.setitem(main.COMMANDS, "judge", lambda *_: time.sleep(60))
    assert in_process(["judge"], tmp_path, limit_s=0.05).crash.startswith("not done within")
    for call in (in_process, subprocess_of):
        wrong = call(["data", "prepare", "--data.source", "cubes", "--data.root", "nowhere"], tmp_path)
        assert (wrong.code, wrong.crash) == (2, "")
        (error,) = wrong.errors
        assert "got nowhere" in error


def test_there_are_enough_cases_and_each_is_itself():
    calls = Counter((case.base, case.name, command) for case in all_cases() for command in case.expect)
    assert max(calls.values()) == 1
    assert len(calls) >= 1600
    assert {command for *_, command in calls} == set(COMMANDS)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("fuzz") / "cases")


def tried(bench, case, command):
    trial = bench.trial(case, command)
    assert not trial.verdict.failed, f"{trial.verdict.kind}: {trial.verdict.text}\n{trial.line}"


def params(cases, commands: Collection[str] = tuple(COMMANDS)):
    pairs = [(case, command) for case in cases for command in case.expect if command in commands]
    return [pytest.param(case, command, id=f"{case.name} × {command}") for case, command in pairs]


SAMPLED = frozenset({"prepare", "segment", "sweep"})
"""Commands of the quick sample. They take half a second or less, and one trained run."""


@pytest.mark.parametrize(("case", "command"), params(thinned(), SAMPLED)[::31])
def test_a_sample_of_the_table(bench, case, command):
    tried(bench, case, command)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "command"), params(all_cases() if os.environ.get("GMMAE_TEST_FUZZ_ALL") else thinned()))
def test_the_table(bench, case, command):
    tried(bench, case, command)


@pytest.mark.slow
@pytest.mark.parametrize(("change", "expect"), [(unchanged, reads()), (gone(CSV), refused(CSV))])
@pytest.mark.parametrize("command", ["prepare", "train", "segment", "describe"])
def test_a_process_of_its_own_ends_alike(bench, command, change, expect):
    tried(bench, Case("apart", "cubes", change, on(command, expect), apart=True), command)

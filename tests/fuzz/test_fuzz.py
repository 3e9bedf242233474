"""Every command ends on a damaged folder with the right result, or with one line that names the place."""

import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.fuzz import generated_cases, nifti
from tests.fuzz.bench import Bench
from tests.fuzz.calls import Outcome, in_process, subprocess_of
from tests.fuzz.cases import STORAGE_FAILED, Case, left_out, on, reads, reads_or_leaves_out, refused, unchanged
from tests.fuzz.commands import COMMANDS, Result
from tests.fuzz.folders import GRID, write_image
from tests.fuzz.processes import Asked, trials
from tests.fuzz.table import all_cases, sample, thinned
from tests.fuzz.verdict import compare, judge

CLEAN: Result = {"names": ["a", "b"], "loss": [1.0, 2.0], "split": ["train", "validation"]}
REST: Result = {"names": ["a"], "loss": [1.0], "split": ["train"]}


def verdict(outcome, expect, result=CLEAN, renamed=False):
    return judge(outcome, expect, lambda: result, lambda change: CLEAN if change is unchanged else REST, renamed).kind


def gone(folder):
    (folder / "nodules.csv").unlink()


def ended(code: int | None = 0, out="", err="", crash=""):
    return Outcome(code, out, err, crash)


@pytest.mark.parametrize(
    ("outcome", "expect", "result", "kind"),
    [
        (ended(), reads(), CLEAN, "read"),
        (ended(), reads(), CLEAN | {"loss": [1.0, 2.1]}, "SILENT"),
        (ended(), reads(), CLEAN | {"more": [1]}, "SILENT"),
        (ended(), refused("a.csv"), CLEAN, "SILENT"),
        (ended(2, err="error: a.csv: no\n"), refused("a.csv"), CLEAN, "refused"),
        (ended(2, err="1 of 2 scans read\nerror: a.csv: no\n"), refused("a.csv"), CLEAN, "refused"),
        (ended(2, err="error: b.csv: no\n"), refused("a.csv"), CLEAN, "UNNAMED"),
        (ended(75, err="error: a.csv: no\n"), refused("a.csv"), CLEAN, "UNNAMED"),
        (ended(74, err="error: a.csv: no\n"), replace(refused("a.csv"), code=STORAGE_FAILED), CLEAN, "refused"),
        (ended(2, err="error: a.csv\nb: no\n"), refused("a.csv"), CLEAN, "UNNAMED"),
        (ended(2), refused("a.csv"), CLEAN, "UNNAMED"),
        (ended(2, err="WARNING: In itk.cxx\nerror: a.csv: no\n"), refused("a.csv"), CLEAN, "NOISY"),
        (ended(2, err="error: a.csv: no\n"), reads(), CLEAN, "REFUSED"),
        (ended(None, crash="ValueError: x"), refused("a.csv"), CLEAN, "TRACEBACK"),
        (ended(None, crash="not done within 60 s"), reads(), CLEAN, "TOO LATE"),
        (ended(out="b.nii: left out\n"), left_out(gone, "b.nii"), REST, "left out"),
        (ended(), left_out(gone, "b.nii"), REST, "SILENT"),
        (ended(out="b.nii: left out\n"), left_out(gone, "b.nii"), CLEAN, "SILENT"),
        (ended(2, err="error: b.nii: no\n"), left_out(gone, "b.nii"), REST, "refused"),
        (ended(), reads_or_leaves_out(gone, "b.nii"), CLEAN, "read"),
        (ended(out="b.nii\n"), reads_or_leaves_out(gone, "b.nii"), REST, "left out"),
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


def entry(work, files, names=("n0", "n1")):
    """The result of a call of `prepare` that has cut these files."""
    (work / "cache" / "0").mkdir(parents=True)
    np.savez(work / "cache" / "0" / "nodules.npz", names=names, files=files, diameter_mm=[4.0, 5.0])
    return COMMANDS["prepare"].result(work, ended())


def test_files_in_another_format_or_folder_are_the_same_and_renamed_ones_are_not_compared(tmp_path):
    clean = entry(tmp_path / "clean", ["images/n0.nii.gz", "images/n1.nii.gz"])
    other = entry(tmp_path / "other", ["images/n0.npy", "deep/n1.MHD"])
    assert not compare(other, clean)
    wrong = entry(tmp_path / "wrong", ["images/n1.nii.gz", "images/n1.nii.gz"])
    assert compare(wrong, clean)
    renamed = entry(tmp_path / "renamed", ["images/a b.nii.gz", "images/n1.nii.gz"], ("a b", "n1"))
    assert compare(renamed, clean)
    assert not compare(renamed, clean, renamed=True)


def test_the_folder_of_a_call_is_no_part_of_its_description(tmp_path):
    (tmp_path / "out").mkdir()
    np.savez(tmp_path / "out" / "mixtures.npz", weights=[1.0], paths=["/here/n0.nii.gz"])
    (tmp_path / "out" / "nodules.csv").write_text("described,category,diameter_mm\n1,solid,4\n")
    assert set(COMMANDS["describe"].result(tmp_path, ended())) == {"weights", "category", "diameter_mm", "reconstructions"}


def test_a_volume_with_nan_holds_nan_where_its_mask_lies(tmp_path):
    write_image(tmp_path / generated_cases.IMAGE, np.full(GRID.shape, -300, np.int16), GRID)
    write_image(tmp_path / generated_cases.MASK, np.ones(GRID.shape, np.uint8), GRID._replace(origin=(1.0, 2.0, 3.0)))
    (case,) = (case for case in generated_cases.cases() if case.name == "generated: a volume with NaN")
    case.change(tmp_path)
    header, rest = nifti.contents(tmp_path / generated_cases.IMAGE)
    mask, _ = nifti.contents(tmp_path / generated_cases.MASK)
    assert np.isnan(np.frombuffer(rest[4:], "<f4")).all()
    assert (header["srow"] == mask["srow"]).all()


def test_processes_share_the_calls_and_what_is_prepared(tmp_path):
    lines = list(trials(Asked("^beside: (a pipe|another CSV) × prepare"), tmp_path, 2))
    assert [(line.case, line.command, line.kind) for line in lines] == [
        ("beside: another CSV", "prepare", "read"),
        ("beside: a pipe", "prepare", "read"),
    ]
    assert [path.name for path in (tmp_path / "shared").iterdir() if not path.name.startswith(".")] == ["cubes"]


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
    late = in_process(["judge"], tmp_path, limit_s=0.05)
    assert late.crash.startswith("not done within")
    for call in (in_process, subprocess_of):
        wrong = call(["data", "prepare", "--data.source", "cubes", "--data.root", "nowhere"], tmp_path)
        assert (wrong.code, wrong.crash) == (2, "")
        assert len(wrong.errors) == 1
        assert "'nowhere'" in wrong.errors[0]


def test_there_are_enough_cases_and_each_is_itself():
    cases = list(all_cases())
    calls = [(case.base, case.name, command) for case in cases for command in case.expect]
    assert [call for call, count in Counter(calls).items() if count > 1] == []
    assert len(calls) >= 1000
    assert {command for *_, command in calls} == set(COMMANDS)
    names = {case.name.partition(":")[0] for case in cases}
    assert {"CSV", "volume", "geometry", "mask", "name", "folder's name", "beside", ".npz", "generated", "host", "run"} <= names
    assert len([call for case in thinned() for call in case.expect]) >= len(cases) * 3 // 2


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("fuzz") / "cases")


def named(case, command):
    return f"{case.name} × {command}"


def tried(bench, case, command, apart=False):
    trial = bench.trial(case, command, apart)
    assert not trial.verdict.failed, f"{trial.verdict.kind}: {trial.verdict.text}\n{trial.line}"


@pytest.mark.parametrize(("case", "command"), [pytest.param(*each, id=named(*each)) for each in sample()])
def test_a_sample_of_the_table(bench, case, command):
    tried(bench, case, command)


WHOLE = [(case, command) for case in thinned() for command in case.expect]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "command"), [pytest.param(*each, id=named(*each)) for each in WHOLE])
def test_the_table(bench, case, command):
    tried(bench, case, command)


@pytest.mark.slow
@pytest.mark.parametrize(("change", "expect"), [(unchanged, reads()), (gone, refused("nodules.csv"))])
@pytest.mark.parametrize("command", ["prepare", "train", "segment", "describe"])
def test_a_process_of_its_own_ends_alike(bench, command, change, expect):
    tried(bench, Case("apart", "cubes", change, on(command, expect)), command, apart=True)

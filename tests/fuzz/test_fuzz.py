"""Every command ends on a damaged folder with the right result, or with one line that names the place."""

import time
from collections import Counter

import numpy as np
import pytest

from tests.fuzz.bench import Bench
from tests.fuzz.calls import Outcome, in_process, subprocess_of
from tests.fuzz.cases import Case, left_out, on, reads, reads_or_leaves_out, refused, unchanged
from tests.fuzz.commands import COMMANDS, Result
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
    assert compare({"loss": [np.nan]}, {"loss": [1.0]})
    assert compare(CLEAN, CLEAN | {"names": ["a", "c"]})
    turned: Result = {"names": ["c", "d"], "loss": [2.0, 1.0], "split": ["validation", "train"]}
    assert compare(CLEAN, turned)
    assert not compare(CLEAN, turned, renamed=True)
    assert compare(CLEAN, turned | {"split": ["train", "validation"]}, renamed=True)


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

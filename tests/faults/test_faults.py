"""What judges the faults, on made-up runs: the real ones take `python -m tests.faults`."""

import re
import subprocess
import sys

import pytest

from tests.faults.faults import BESIDE, STOPPED, asked, lost, matrix, quick, unmet
from tests.faults.moments import MOMENTS
from tests.faults.runs import ROOT, Run
from tests.faults.table import summary, table
from tests.faults.trials import Trial, fits, look_back

LINE = (
    "error: process 1 (host, pid 12) has been silent for 4 s: it was killed or stopped, or its host cannot be reached; to "
    "resume, start all processes again: python train.py --distributed.process-id 0"
)


def test_there_are_enough_faults_and_every_moment_is_known():
    faults = list(matrix())
    assert len(faults) >= 44
    assert {fault.moment for fault in faults} == {*MOMENTS, STOPPED, BESIDE}
    signals = {f"{name} of process {rank}" for name in ("SIGKILL", "SIGSTOP", "SIGTERM") for rank in (0, 1)}
    for moment in ("before the other process is there", "JAX's start and compilation", "an epoch", "a checkpoint"):
        assert signals <= {fault.kind for fault in faults if fault.moment == moment}


GROUPS = {
    "SIGKILL|SIGSTOP": "lost",
    "SIGTERM|SIGINT|SIGHUP": "asked to end",
    "disk full|read-only|work directory": "unwritten",
    "checkpoint damaged": "damaged",
    "second run": "beside",
}
"""How the names of faults begin, and what a run has to do to go on."""


def group_of(name: str) -> str:
    [group] = [group for start, group in GROUPS.items() if re.match(start, name)]
    return group


def test_the_quick_part_has_every_group_of_faults_once_and_all_damages():
    groups = {group_of(fault.name) for fault in matrix()}
    assert groups == set(GROUPS.values())
    assert sorted(group_of(fault.name) for fault in quick()) == sorted(groups)
    assert any("many, each in another way" in fault.name for fault in quick())


@pytest.mark.parametrize(
    ("out", "spoilt", "complaints"),
    [
        ("resumed after epoch 4", set(), []),
        ("resumed after epoch 2", set(), ["the run went on after epoch 2, not after 4"]),
        ("", set(), ["the run went on after epoch 0, not after 4"]),
        ("w holds a finished run: max_epochs after 4 epochs", set(), []),
        ("w/6 cannot be read (x): moved to 6.corrupt; going on from epoch 4\nresumed after epoch 4", {6}, []),
        ("resumed after epoch 4", {6}, ["damaged: [6], set aside: {6}, said to be: []"]),
    ],
)
def test_where_a_run_goes_on_is_looked_at(tmp_path, out, spoilt, complaints):
    run = Run(tmp_path / "run", tmp_path / "compiled")
    (run.workdir / "checkpoints" / "6.corrupt").mkdir(parents=True)
    run.spoilt, run.logs = spoilt, {0: tmp_path / "log"}
    (tmp_path / "log.out").write_text(out)
    trial = Trial("any", "any", checkpoint=4)
    look_back(run, trial)
    assert trial.complaints == complaints
    assert run.spoilt == set()


def test_a_run_that_still_reads_its_checkpoints_has_not_begun(tmp_path):
    run = Run(tmp_path / "run", tmp_path / "compiled")
    run.logs = {0: tmp_path / "log"}
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        run.processes = {0: process}
        (tmp_path / "log.out").write_text("w/6 cannot be read (x): moved to 6.corrupt; going on from epoch 4\n")
        assert not run.has_begun()
        (tmp_path / "log.out").write_text("run         x in w, resumed after epoch 4\nstops at    30 epochs\n")
        assert run.has_begun()
        (tmp_path / "log.out").write_text("")
        process.kill()
        process.wait()
        assert run.has_begun()


PROMISED = {
    "SIGTERM, ": "SIGTERM|SIGINT|SIGHUP",
    "a process is killed": "SIGKILL of process",
    "a process is stopped": "SIGSTOP of process",
    "full disk, ": "disk full|read-only work directory|work directory moved away",
}
"""How a row of the table in `docs/faults.md` begins, and the faults that it speaks of."""


@pytest.mark.parametrize("row", PROMISED)
def test_the_exit_codes_are_those_that_the_documents_promise(row):
    [line] = [line for line in (ROOT / "docs" / "faults.md").read_text().splitlines() if line.startswith(f"| {row}")]
    promised = {int(code) for code in re.findall(r"\d+", line.split("|")[-2])}
    faults = [
        fault for fault in matrix() if re.match(PROMISED[row], fault.kind) and fault.moment in ("an epoch", "a checkpoint")
    ]
    firsts = {next(code for _, (code, _) in sorted(ending.items()) if code > 0) for fault in faults for ending in fault.endings}
    assert firsts
    assert firsts <= promised


@pytest.mark.parametrize(
    ("ending", "codes", "words", "fitting"),
    [
        (lost(1, -9), [75, -9], [[LINE], []], True),
        (lost(1, -9), [75, -9], [[LINE.replace("12", "13")], []], False),  # another process
        (lost(1, -9), [75, -9], [[LINE.partition(";")[0]], []], False),  # no word of how to resume
        (lost(1, -9), [75, -9], [[LINE, LINE], []], False),
        (lost(1, -9), [75, None], [[LINE], []], False),
        (unmet(0, -9), [-9, 2], [[], ["error: within distributed.start_timeout_s, 20 s; got nothing"]], True),
        (asked(143), [143, 143], [[], []], False),
    ],
)
def test_an_ending_is_codes_and_words(ending, codes, words, fitting):
    assert fits(ending, codes, words, [11, 12]) is fitting


def test_the_table_counts_what_was_survived():
    trials = [
        Trial("SIGKILL of process 1", "an epoch", True, 4, 8.0, 0.2, [75, -9], resumed_after=4),
        Trial("SIGKILL of process 1", "an epoch", False, 4, 8.0, 9.1, [75, -9], resumed_after=2, complaints=["late"]),
        Trial("disk full", "an epoch", skipped="no right to mount"),
        Trial("checkpoint damaged", "between two runs", True, resumed_after=4, set_aside=[5, 6]),
    ]
    assert table(trials).splitlines()[2:] == [
        "| SIGKILL of process 1 | an epoch | 2 | 1 | 1 | 9.1 | 8 | 75, -9 | 4; 2 |",
        "| checkpoint damaged | between two runs | 1 | 1 | 1 | – | – | – | 4 (6, 5 set aside) |",
    ]
    assert summary(trials, 60.0).startswith(
        "2 of 3 faults survived, 1 missed its moment, 1 skipped (no right to mount); 1.0 min; "
    )

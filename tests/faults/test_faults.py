"""What judges the faults, on made-up runs: the real ones take `python -m tests.faults`."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.faults.faults import BESIDE, STOPPED, asked, lost, matrix, unmet
from tests.faults.moments import MOMENTS
from tests.faults.runs import digest, history_faults, processes_of
from tests.faults.table import summary, table
from tests.faults.trials import Trial, fits

LINE = (
    "error: process 1 (host, pid 12) has been silent for 4 s: it is stopped, or its host cannot be reached; to resume, start "
    "all processes again: python train.py --distributed.process-id 0"
)


def test_there_are_enough_faults_and_every_moment_is_known():
    faults = list(matrix())
    assert len(faults) >= 44
    assert {fault.moment for fault in faults} == {*MOMENTS, STOPPED, BESIDE}
    signals = {f"{name} of process {rank}" for name in ("SIGKILL", "SIGSTOP", "SIGTERM") for rank in (0, 1)}
    for moment in ("before the other process is there", "JAX's start and compilation", "an epoch", "a checkpoint"):
        assert signals <= {fault.kind for fault in faults if fault.moment == moment}


@pytest.mark.parametrize(("name", "values", "kind"), [("a", [1, 3], "f4"), ("a", [1, 2], "f8"), ("b", [1, 2], "f4")])
def test_a_digest_sees_values_types_and_places(name, values, kind):
    tree = {"a": np.array([1, 2], "f4")}
    assert digest(tree) == digest({"a": np.array([1, 2], "f4")})
    assert digest(tree) != digest({name: np.array(values, kind)})


def test_a_history_without_gap_or_repetition_is_sound():
    assert history_faults([1, 2, 3], 3) == []
    assert history_faults([1, 3, 2], 3) == ["history.csv is out of order"]
    assert history_faults([1, 2, 3, 4], 3) == ["history.csv has unknown epochs 4"]


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


def test_the_processes_of_a_work_directory_are_found(tmp_path):
    waits = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", waits, tmp_path / "run"], stdin=subprocess.PIPE) as process:
        while not processes_of(tmp_path / "run"):  # the copy of this process has not become the other program yet
            assert process.poll() is None
        assert processes_of(tmp_path / "run") == [process.pid]
        assert processes_of(tmp_path / "other") == []
        os.kill(process.pid, signal.SIGKILL)


def test_the_table_counts_what_was_survived():
    trials = [
        Trial("SIGKILL of process 1", "an epoch", True, 4, 8.0, 0.2, [75, -9]),
        Trial("SIGKILL of process 1", "an epoch", True, 4, 8.0, 9.1, [75, -9], complaints=["late"]),
        Trial("disk full", "an epoch", skipped="no right to mount"),
    ]
    assert table(trials).splitlines()[2:] == ["| SIGKILL of process 1 | an epoch | 2 | 2 | 1 | 9.1 | 8 | 75, -9 |"]
    assert summary(trials, 60.0).startswith("1 of 2 faults survived, 1 skipped (no right to mount); 1 min; ")

"""Readings that fail for transient reasons are repeated, and scans that fail each time are named."""

import errno
import os
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from gmmae.data.extraction import arrays, extract, luna16, prepare, processes, readings, scan, scan_cache
from gmmae.data.extraction.prepare import PARTS, load
from gmmae.data.extraction.tasks import Extracted, Transient
from gmmae.data.volumes import DataError, TransientError

KILLED_OVER_B = "os.kill(os.getpid(), signal.SIGKILL) if t.label.endswith('b.mhd'){} else real(t, o)"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(readings, "PAUSES_S", (0.0, 0.0))


def once(path):
    """An expression for a worker that is true the first time only."""
    return f" and not os.path.exists({str(path)!r}) and not open({str(path)!r}, 'x').close()"


def read_by(monkeypatch, expression):
    """The scans that are read from now on in this process; the expression is a function of the task, and may fail."""
    read: list[str] = []
    real = extract.extract

    def spied(task, config):
        read.append(task.file.stem)
        return expression(task) or real(task, config)

    monkeypatch.setattr(processes, "extract", spied)
    return read


def entries(config):
    return [path for path in Path(config.cache).iterdir() if path.is_dir() and not path.name.startswith(".")]


def test_a_scan_whose_worker_was_killed_is_read_again(luna_folder, patch_worker, tmp_path):
    config = luna_folder("ab", workers=2)
    patch_worker(KILLED_OVER_B.format(once(tmp_path / "killed")))
    messages: list[str] = []
    prepared = prepare.prepare(config, messages.append)
    assert (prepared.summary["nodules"], prepared.summary["faults"]) == (2, [])
    (line,) = prepared.summary["repeated"]
    assert re.match(r"subset1/b.mhd: .*\(status -9\)", line)
    assert any("again" in line and "subset1/b.mhd: " in line for line in messages)


def test_one_that_is_always_killed_is_named_and_read_by_the_same_command_later(luna_folder, monkeypatch, patch_worker):
    config = luna_folder("ab", workers=2)
    sound = processes.WORKER_PROGRAM
    patch_worker(KILLED_OVER_B.format(""))
    messages: list[str] = []
    with pytest.raises(TransientError, match=r"\b1 failed .*subset1/b.mhd: the process .*same command"):
        load(config, messages.append)
    assert sum(line.startswith("not read: subset1/b.mhd: ") for line in messages) == 1
    assert entries(config) == []
    monkeypatch.setattr(processes, "WORKER_PROGRAM", sound)
    messages.clear()
    assert load(config, messages.append).names == ("a_0", "b_0")
    assert messages[0].startswith("1 of 2 scans")
    assert not (Path(config.cache) / PARTS).exists()


def test_an_error_of_the_disk_is_no_fault_of_the_scan(luna_folder, monkeypatch):
    config = luna_folder("abc", compressed=True)
    failing = [1]

    def inflated(data, promised, begin):
        if data.name == "b.zraw" and failing:
            failing.pop()
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(data))
        return arrays.inflated(data, promised, begin)

    monkeypatch.setattr(scan, "inflated", inflated)
    prepared = prepare.prepare(config)
    assert (prepared.summary["nodules"], prepared.summary["faults"]) == (3, [])
    assert "Input/output error" in prepared.summary["repeated"][0]
    failing += [1] * 3
    with pytest.raises(TransientError, match=r"b.mhd: \[Errno 5\] Input/output error"):
        prepare.prepare(config, refresh=True)
    assert entries(config) == []


@pytest.mark.parametrize(("kind", "error"), [(OSError, errno.EIO), (DataError, None), (DataError, errno.EINVAL)])
def test_an_array_that_cannot_be_read_is_broken_only_if_the_system_did_not_fail(tmp_path, monkeypatch, kind, error):
    def fails(file):
        raise OSError(*([error, os.strerror(error)] if error else ["Invalid data stream"]))  # as bz2 says it

    np.save(tmp_path / "a.npy", np.zeros((4, 4, 4)))
    monkeypatch.setattr(arrays, "_header", fails)
    with pytest.raises(kind):
        arrays.open_array(tmp_path / "a.npy")


def test_a_scan_that_is_away_for_a_moment_is_not_missing(luna_folder, monkeypatch):
    config = luna_folder("ab")
    scan = Path(config.root) / "subset1/b.raw"
    shutil.copy2(scan, scan.with_suffix(".away"))
    attempts: list[str] = []

    def away_then_back(task):
        if task.file.stem == "b":
            attempts.append("b")
            if len(attempts) == 1:
                scan.unlink()
            else:
                scan.with_suffix(".away").rename(scan)

    read_by(monkeypatch, away_then_back)
    assert load(config).names == ("a_0", "b_0")
    assert attempts == ["b", "b"]


def test_when_nothing_can_be_read_any_more_it_does_not_go_on_trying(luna_folder, monkeypatch):
    config = luna_folder("abcdefghijkl")
    read = read_by(monkeypatch, lambda task: Transient("Input/output error"))
    with pytest.raises(TransientError, match=r"\b8 failed .*\b4 more .*; and 3 more; "):
        load(config)
    assert len(read) == readings.MAX_FAILURES_IN_A_ROW


def test_refusing_does_not_mistake_what_passes_for_a_fault(luna_folder, monkeypatch):
    config = luna_folder("ab", on_error="refuse")
    failures = [Transient("Input/output error")]
    read_by(monkeypatch, lambda task: failures.pop() if failures else None)
    assert len(load(config).values) == 2


def test_an_interrupted_extraction_goes_on_where_it_was(luna_folder, monkeypatch):
    config = luna_folder("abcd", rows=[(uid, 10, -20, 30, 8) for uid in "aabbccdd"[::2]] + [("b", 500, 0, 0, 8)])

    def interrupted(task):
        if task.file.stem == "d":
            raise KeyboardInterrupt

    read = read_by(monkeypatch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        load(config)
    assert read == ["a", "b", "c", "d"]
    assert entries(config) == []
    read = read_by(monkeypatch, lambda task: None)
    messages: list[str] = []
    nodules = load(config, messages.append)
    assert messages[0].startswith("2 of 4 scans")
    assert read == ["b", "d"]  # b has a place outside the scan: what is broken is read again
    assert nodules.names == ("a_0", "b_0", "c_0", "d_0")
    monkeypatch.undo()
    whole = load(luna_folder("abcd", cache=str(Path(config.cache).parent / "other")))
    np.testing.assert_array_equal(nodules.values, whole.values)


def test_refreshing_also_forgets_what_an_interrupted_extraction_read(luna_folder, monkeypatch):
    config = luna_folder("ab")
    read = read_by(monkeypatch, lambda task: Transient("Input/output error") if task.file.stem == "b" else None)
    with pytest.raises(TransientError):
        load(config)
    read = read_by(monkeypatch, lambda task: None)
    prepare.prepare(config, refresh=True)
    assert read == ["a", "b"]


def test_parts_keep_masks_and_places_and_are_those_of_their_files_only(luna_folder, tmp_path):
    config = luna_folder("a", [("a", 10, -20, 30, 8), ("a", 12, -20, 30, 8)])
    (task,) = luna16.plan(config).tasks
    result = extract.extract(task, config)
    assert isinstance(result, Extracted)
    first = result.cubes[0]._replace(mask=np.ones((16, 16, 16), np.uint8))
    result = result._replace(cubes=(first, result.cubes[1]))
    place = tmp_path / "parts" / "one.npz"
    scan_cache.save(place, task, result)
    kept = scan_cache.load(place, task)
    assert kept is not None
    for cube, known in zip(kept.cubes, result.cubes, strict=True):
        np.testing.assert_array_equal(cube.values, known.values)
        assert cube._replace(values=known.values, mask=known.mask) == known
        assert (cube.mask is None) == (known.mask is None)
    np.testing.assert_array_equal(kept.cubes[0].mask, first.mask)
    os.truncate(place, place.stat().st_size // 2)
    assert scan_cache.load(place, task) is None
    os.utime(task.file, (1, 1))
    (later,) = luna16.plan(config).tasks
    paths = [scan_cache.part_path(tmp_path, *key, config) for key in ((1, task), (2, task), (1, later), (1, task))]
    assert len(set(paths)) == 3


def test_old_parts_are_removed_with_those_of_a_finished_plan(luna_folder, tmp_path):
    config, parts = luna_folder("a"), tmp_path / "parts"
    plan = luna16.plan(config)
    readings.read(config, plan, 1, parts, print)
    for name in ("others.npz", "forgotten.npz"):
        (parts / name).touch()
    long_ago = time.time() - scan_cache.STALE_AFTER_S - 60
    os.utime(parts / "forgotten.npz", (long_ago, long_ago))
    assert len(list(parts.iterdir())) == 3
    scan_cache.forget(config, plan, 1, parts)
    assert [path.name for path in parts.iterdir()] == ["others.npz"]

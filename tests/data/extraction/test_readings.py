"""Readings that fail for transient reasons are repeated, and scans that fail each time are named."""

import errno
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gmmae.data.extraction import arrays, extract, readings
from gmmae.data.extraction.prepare import PARTS, SUMMARY, load, prepare
from gmmae.data.volumes import DataError, TransientError
from tests.data.extraction import failing
from tests.interrupting import moments
from tests.launched import python
from tests.waiting import wait_until

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(readings, "PAUSES_S", (0.0,))


@pytest.fixture
def fails(monkeypatch):
    """Lets workers fail over the scan of a path."""
    monkeypatch.setattr(readings, "extract", failing.extract_or_fail)
    return lambda config, scan, fault, how="": (Path(config.root) / f"{scan}.{fault}").write_text(how)


def read_by(monkeypatch, answer):
    """The scans that are read from now on, in this process. The function `answer` may give another answer, or raise."""
    read = []

    def spied(task, config):
        read.append(task.file.stem)
        return answer(task) or extract.extract(task, config)

    monkeypatch.setattr(readings, "extract", spied)
    return read


def parts(config):
    return list((Path(config.cache) / PARTS).glob("[!.]*"))


def test_a_scan_whose_worker_was_killed_is_read_again(luna_folder, fails, capfd):
    config = luna_folder("ab", workers=2)
    fails(config, "subset1/b", "killed", "once")
    messages = []
    summary = prepare(config, messages.append).summary
    assert (summary["nodules"], summary["faults"]) == (2, [])
    [said] = [line for line in messages if "not read: subset1/b.mhd: " in line]
    assert f"status {-signal.SIGKILL}" in said
    assert capfd.readouterr() == ("", "")


def test_what_fails_each_time_is_named_and_read_by_the_same_command_later(luna_folder, fails):
    config = luna_folder("abc", workers=2, scan_time_limit_s=0.5)
    fails(config, "subset1/b", "killed")
    fails(config, "subset0/c", "hangs")
    messages = []
    with pytest.raises(TransientError, match=r"\b2 failed .*same command") as error:
        load(config, messages.append)
    assert error.value.exit_code == 75
    assert "scan_time_limit_s" in next(line for line in messages if line.startswith("not read: subset0/c.mhd"))
    assert not list(Path(config.cache).glob(f"*/{SUMMARY}"))
    for mark in Path(config.root).glob("*/?.[kh]*"):
        mark.unlink()
    messages.clear()
    assert load(replace(config, scan_time_limit_s=60.0), messages.append).names == ("a_0", "b_0", "c_0")
    assert messages[0].startswith("1 of 3 scans")
    assert not parts(config)


def test_a_bug_in_a_worker_is_raised(luna_folder, fails):
    config = luna_folder("a", workers=2)
    fails(config, "subset0/a", "bug")
    with pytest.raises(ZeroDivisionError):
        load(config)


def test_workers_that_cannot_start_end_the_extraction(luna_folder, monkeypatch):
    monkeypatch.setattr(readings, "_begin", failing.die)
    with pytest.raises(TransientError, match=r"processes must start"):
        load(luna_folder("ab", workers=2))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_end_in_the_middle_leaves_no_process_and_loses_no_scan(luna_folder, fails, number):
    config = luna_folder("abc", workers=2)
    fails(config, "subset0/c", "hangs")
    program = f"from tests.data.extraction import failing; failing.run({config.root!r}, {config.cache!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True
    )
    wait_until(lambda: len(parts(config)) == 2)
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)  # Ctrl-C reaches the workers too
    assert process.communicate()[1].count("Traceback") == (number == signal.SIGINT)

    def gone():
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 0)
            return False
        return True

    wait_until(gone)
    Path(config.root, "subset0/c.hangs").unlink()
    messages = []
    assert load(config, messages.append).names == ("a_0", "b_0", "c_0")
    assert messages[0].startswith("2 of 3 scans")


def test_when_nothing_can_be_read_any_more_it_does_not_go_on_trying(luna_folder, monkeypatch):
    read = read_by(monkeypatch, lambda task: "[Errno 5] Input/output error")
    with pytest.raises(TransientError, match=r"\b8 failed "):
        load(luna_folder("abcdefghijkl"))
    assert len(read) == readings.MAX_FAILURES_IN_A_ROW


def test_a_scan_that_changes_while_it_is_read_is_no_fault(luna_folder, monkeypatch):
    read_by(monkeypatch, lambda task: os.utime(task.file, (1, 1)))
    with pytest.raises(TransientError, match="changed"):
        load(luna_folder("a", on_error="refuse"))


def test_an_interrupted_extraction_goes_on_where_it_was(luna_folder, monkeypatch):
    config = luna_folder("abc", rows=[(uid, 10, -20, 30, 8) for uid in "abc"] + [("b", 500, 0, 0, 8)])

    def interrupted(task):
        if task.file.stem == "c":
            raise KeyboardInterrupt

    for refresh in (False, True):  # a refreshed one goes on without the option
        read = read_by(monkeypatch, interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare(config, refresh=refresh)
        assert read == ["a", "b", "c"]
        read = read_by(monkeypatch, lambda task: None)
        assert not prepare(config).from_cache
        assert read == ["b", "c"]  # b has a place outside the scan: what is broken is read again


def test_a_script_without_a_main_guard_loads_data_without_jax_and_from_the_cache_without_simpleitk(luna_folder, tmp_path):
    config = luna_folder("ab")
    script = tmp_path / "plain_script.py"
    script.write_text(
        "import sys\nfrom gmmae.data.settings import DataConfig\nfrom gmmae.data.extraction.prepare import load\n"
        f"nodules = load(DataConfig('luna16', {config.root!r}, cache={config.cache!r}, workers=2))\n"
        "print(len(nodules.values), *sorted({'SimpleITK', 'jax', 'pebble'} & {*sys.modules}))\n"
    )
    for said in ("2 SimpleITK pebble\n", "2\n"):
        done = python(script, env=ENVIRONMENT, cwd=tmp_path)
        assert done.stdout == said, done.stderr


@pytest.mark.parametrize(("kind", "error"), [(OSError, errno.EIO), (DataError, None), (DataError, errno.EINVAL)])
def test_an_array_that_cannot_be_read_is_broken_only_if_the_system_did_not_fail(tmp_path, monkeypatch, kind, error):
    def fails(file):
        raise OSError(*([error, os.strerror(error)] if error else ["Invalid data stream"]))  # as bz2 says it

    np.save(tmp_path / "a.npy", np.zeros((4, 4, 4)))
    monkeypatch.setattr(arrays, "_header", fails)
    with pytest.raises(kind):
        arrays.open_array(tmp_path / "a.npy")


def disk_error():
    return OSError(errno.EIO, os.strerror(errno.EIO))


def test_an_error_of_the_disk_at_any_moment_is_no_fault_of_the_scan(luna_folder):
    config = luna_folder("ab", compressed=True)
    with moments(Path(config.root)) as undisturbed:
        load(config)
    for moment in range(1, undisturbed.count + 1):
        with suppress(TransientError), moments(Path(config.root), moment, disk_error):
            summary = prepare(config, refresh=True).summary
            assert (summary["nodules"], summary["faults"]) == (2, [])

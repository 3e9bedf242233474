"""An entry of the cache is whole or not there, whatever ends or damages what, and serves several processes at once."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gmmae.data.extraction.prepare import ARRAYS, PARTS, STALE_AFTER_S, SUMMARY, load, prepare
from gmmae.data.settings import DataConfig
from gmmae.system.errors import InputError
from tests.interrupting import Killed, killed, moments, tree
from tests.volume_folders import write


def volumes(tmp_path, **options):
    """Two volumes, one of them with a mask."""
    (write(tmp_path / "volumes", 2) / "masks/n1.mha").unlink()
    options = {"shape": 8, "cache": str(tmp_path / "cache"), "workers": 1, "scan_time_limit_s": None, **options}
    return DataConfig("cubes", str(tmp_path / "volumes"), **options)


def test_killed_at_any_moment_it_goes_on_and_leaves_nothing(tmp_path):
    config = volumes(tmp_path)
    with moments(Path(config.cache)) as undisturbed:
        whole = load(config)
    names = {*tree(Path(config.cache))}
    assert np.count_nonzero(whole.masks.any((1, 2, 3))) == 1
    for moment in range(1, undisturbed.count + 1):
        config = replace(config, cache=str(tmp_path / f"cache{moment}"))
        with pytest.raises(Killed), moments(Path(config.cache), moment, killed, for_good=True):
            load(config)
        for path in Path(config.cache).rglob("*"):
            os.utime(path, (0, 0))  # a month later
        again = load(config)
        np.testing.assert_array_equal(again.values, whole.values)
        np.testing.assert_array_equal(again.masks, whole.masks)
        if {*tree(Path(config.cache))} != names:  # the entry was whole: the next extraction removes the rest
            prepare(config, refresh=True)
        assert {*tree(Path(config.cache))} == names, moment


def test_a_damaged_entry_is_made_again_and_a_sound_one_only_where_it_is_refreshed(tmp_path):
    config = volumes(tmp_path)
    first = prepare(config)
    assert not first.from_cache
    assert prepare(config).from_cache
    content = bytearray((first.folder / ARRAYS).read_bytes())
    content[2000] ^= 1
    (first.folder / ARRAYS).write_bytes(content)
    assert not prepare(config).from_cache
    (first.folder / SUMMARY).unlink()
    assert not prepare(config).from_cache
    (first.folder / "contact_sheet.png").touch()
    assert prepare(config).from_cache
    assert not prepare(config, refresh=True).from_cache
    assert not (first.folder / "contact_sheet.png").exists()


def test_what_is_read_while_it_is_refreshed_is_whole(tmp_path):
    config = volumes(tmp_path)
    whole, over, read = load(config), threading.Event(), 0
    refreshing = threading.Thread(target=lambda: [prepare(config, print, refresh=True) for _ in range(8)] and over.set())
    refreshing.start()
    while not over.is_set():
        np.testing.assert_array_equal(load(config).values, whole.values)
        read += 1
    refreshing.join()
    assert read > 8


def test_what_determines_the_cubes_names_the_entry(luna_folder, tmp_path):
    config = luna_folder("ab")
    first = prepare(config)
    for option in ({"crop": "2x"}, {"padding": "replicate"}, {"shape": 8}, {"group_column": "seriesuid"}):
        assert prepare(replace(config, **option)).folder != first.folder
    others = {"workers": 2, "scan_time_limit_s": 9.0, "window": (-1200.0, 600.0), "validation": 1, "on_error": "refuse"}
    for option in (others, {"ndim": 2}):
        assert prepare(replace(config, **option)) == first._replace(from_cache=True)
    os.rename(config.root, tmp_path / "moved")
    config = replace(config, root=str(tmp_path / "moved"))
    assert prepare(config) == first._replace(from_cache=True)
    csv, raw = Path(config.root) / "annotations.csv", Path(config.root) / "subset0/a.raw"
    os.utime(csv, (1, 1))  # its content counts, not its time
    assert prepare(config).from_cache
    os.utime(raw, (1, 1))
    assert not prepare(config).from_cache
    stat, content = raw.stat(), raw.read_bytes()
    raw.write_bytes(content[:5000] + bytes(5000) + content[10000:])
    os.utime(raw, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as rsync -t replaces it
    assert not prepare(config).from_cache
    csv.write_text(csv.read_text().replace("8\n", "9\n").replace("8\r", "9\r"))
    assert not prepare(config).from_cache


def test_a_scan_that_arrives_later_is_extracted(luna_folder, blob_scan, write_scan):
    config = luna_folder("a", [("a", 10, -20, 30, 8), ("late", 10, -20, 30, 8)])
    assert len(load(config).values) == 1
    write_scan(Path(config.root) / "late.mhd", blob_scan((10, -20, 30), np.eye(3), (1, 1, 1)))
    assert len(load(config).values) == 2


def test_several_processes_at_once_make_one_entry(luna_folder):
    config = luna_folder("abcd")
    program = (
        "from gmmae.data.extraction.prepare import DataConfig, prepare\n"
        f"prepare(DataConfig('luna16', {config.root!r}, cache={config.cache!r}, workers=1, scan_time_limit_s=None))\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sum("4 of 4 scans read" in text for text in outputs) == 1


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"data.cache .* got .*file \("):
        prepare(volumes(tmp_path, cache=str(tmp_path / "file")))


def test_what_killed_processes_left_of_other_entries_is_removed_when_it_is_old(tmp_path):
    config = volumes(tmp_path)
    (parts := Path(config.cache) / PARTS).mkdir(parents=True)
    for name in ("dead.npz", ".dead.npz.0.part", "alive.npz"):
        (parts / name).touch()
        if "dead" in name:
            os.utime(parts / name, (old := time.time() - STALE_AFTER_S - 60, old))
    prepare(config)
    assert [path.name for path in parts.iterdir()] == ["alive.npz"]

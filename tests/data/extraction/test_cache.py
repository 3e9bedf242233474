"""An entry of the cache is whole or not there, whatever ends or damages what, and serves several processes at once."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gmmae.data.extraction.prepare import ARRAYS, PARTS, SUMMARY, load, load_prepared, prepare
from gmmae.data.settings import DataConfig
from gmmae.system.errors import InputError
from tests.interrupting import Killed, killed, moments, tree
from tests.volume_folders import write


def volumes(tmp_path, **options):
    """Two volumes, one of them with a mask."""
    (write(tmp_path / "volumes", 2) / "masks/n1.mha").unlink()
    options = {"shape": 8, "cache": str(tmp_path / "cache"), "workers": 1, "scan_time_limit_s": None} | options
    return DataConfig("cubes", str(tmp_path / "volumes"), **options)


def test_killed_at_any_moment_it_goes_on_and_leaves_nothing(tmp_path):
    config = volumes(tmp_path)
    with moments(Path(config.cache)) as undisturbed:
        whole = load(config)
    names = {*tree(Path(config.cache))}
    assert whole.masks is not None
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
    folder = prepare(config).folder
    assert prepare(config).from_cache
    units = (prepare(replace(config, padding="replicate", window=window)).folder for window in (config.window, (0.0, 1.0)))
    assert len({*units}) == 2
    content = bytearray((folder / ARRAYS).read_bytes())
    content[2000] ^= 1
    (folder / ARRAYS).write_bytes(content)
    assert not prepare(config).from_cache
    (folder / SUMMARY).unlink()
    assert not prepare(config).from_cache
    (folder / "contact_sheet.png").touch()
    of_others = folder.with_name(PARTS) / "others.npz"
    of_others.touch()
    assert prepare(config).from_cache
    assert not prepare(config, refresh=True).from_cache
    assert [path.exists() for path in (folder / "contact_sheet.png", of_others)] == [False, True]


def test_what_is_read_while_it_is_refreshed_is_whole(tmp_path):
    config = volumes(tmp_path)
    prepared, over = prepare(config), threading.Event()
    whole = load_prepared(prepared)
    refreshing = threading.Thread(target=lambda: [prepare(config, refresh=True) for _ in range(4)] and over.set())
    refreshing.start()
    while not over.is_set():
        np.testing.assert_array_equal(load_prepared(prepared).values, whole.values)
    refreshing.join()


def test_what_determines_the_cubes_names_the_entry(luna_folder, blob_scan, tmp_path):
    config = luna_folder("ab", [(uid, 10, -20, 30, 8) for uid in ("a", "b", "late")])
    first = prepare(config)
    for option in ({"crop": "2x"}, {"padding": "replicate"}, {"shape": 8}, {"group_column": "seriesuid"}):
        assert prepare(replace(config, **option)).folder != first.folder
    os.rename(config.root, tmp_path / "moved")
    config = replace(config, root=str(tmp_path / "moved"))
    csv, raw = Path(config.root) / "annotations.csv", Path(config.root) / "subset0/a.raw"
    os.utime(csv, (1, 1))  # its content counts, not its time
    others = {"workers": 2, "scan_time_limit_s": 9.0, "window": (-1200.0, 600.0), "validation": 1}
    for option in (others, {"ndim": 2}):
        assert prepare(replace(config, **option)) == first._replace(from_cache=True)
    os.utime(raw, (1, 1))
    assert not prepare(config).from_cache
    content = raw.read_bytes()
    raw.write_bytes(content[:5000] + bytes(5000) + content[10000:])
    os.utime(raw, (1, 1))  # as rsync -t replaces it
    assert not prepare(config).from_cache
    csv.write_text(csv.read_text().replace("8\n", "9\n").replace("8\r", "9\r"))
    assert not prepare(config).from_cache
    blob_scan((10, -20, 30), np.eye(3), (1, 1, 1)).write(Path(config.root) / "late.mhd")
    assert prepare(config).summary["nodules"] == 3


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

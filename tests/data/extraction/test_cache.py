import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gmmae.data.extraction import scan_cache
from gmmae.data.extraction.prepare import ARRAYS, PARTS, SUMMARY, load, prepare
from gmmae.system.errors import InputError

PREPARE = """
import sys
from gmmae.data.settings import DataConfig
from gmmae.data.extraction.prepare import prepare
prepare(DataConfig(source="luna16", root=sys.argv[1], cache=sys.argv[2], workers=int(sys.argv[3])))
"""


@pytest.mark.slow
def test_kills_at_random_moments_of_prepare(luna_folder, tmp_path):
    config = luna_folder("abcdefgh", compressed=True)
    reference = load(config)
    place = tmp_path / "killed"

    def start(workers):
        command = [sys.executable, "-c", PREPARE, config.root, str(place), str(workers)]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)

    begun = time.monotonic()
    assert start(2).wait() == 0
    took = time.monotonic() - begun
    moments = np.random.default_rng(0).uniform(0.2, 1.0, 6) * took
    groups: list[int] = []
    for i, moment in enumerate(moments):
        for entry in place.iterdir():
            if entry.is_dir():
                entry.rename(tmp_path / f"old-{time.monotonic_ns()}")
        process = start(1 + i % 2)
        time.sleep(moment)
        process.kill()
        process.wait()
        entries = [entry for entry in place.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
        assert all((entry / SUMMARY).is_file() and (entry / ARRAYS).is_file() for entry in entries)
        groups.append(process.pid)
        again = load(dataclasses.replace(config, cache=str(place)))
        np.testing.assert_array_equal(again.values, reference.values)
        assert not [entry for entry in place.iterdir() if entry.name.startswith(".")]
    for group in groups:
        wait_until_gone(group)


def test_parts_that_a_killed_process_left_beside_a_whole_entry_are_removed(luna_folder, tmp_path, monkeypatch):
    config = dataclasses.replace(luna_folder("ab"), cache=str(tmp_path / "place"))
    with monkeypatch.context() as patch:
        patch.setattr(scan_cache, "forget", lambda *_: None)
        prepare(config)
    left = tmp_path / "place" / PARTS
    kept = list(left.iterdir())
    assert len(kept) == 2
    (left / f".{kept[0].name}.0123abcd.part").touch()  # it was killed while it wrote
    assert prepare(config).from_cache
    assert not left.exists()


def wait_until_gone(group):
    """Workers end with their parent, however it ended."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError(f"processes of group {group} have outlived their parent")


def test_a_damaged_entry_is_made_again_and_a_sound_one_only_where_it_is_refreshed(luna_folder):
    config = luna_folder("ab")
    first = prepare(config)
    assert not first.from_cache
    assert prepare(config).from_cache
    arrays = first.folder / "nodules.npz"
    content = bytearray(arrays.read_bytes())
    content[2000] ^= 1
    arrays.write_bytes(content)
    assert not prepare(config).from_cache
    os.remove(first.folder / SUMMARY)
    assert not prepare(config).from_cache
    (first.folder / "mark").touch()
    assert prepare(config).from_cache
    assert not prepare(config, refresh=True).from_cache
    assert not (first.folder / "mark").exists()
    assert prepare(config).from_cache


def test_what_determines_the_cubes_names_the_entry(luna_folder, tmp_path):
    config = luna_folder("ab")
    first = prepare(config)
    for option in ({"crop": "2x"}, {"padding": "replicate"}, {"shape": 8}, {"group_column": "seriesuid"}):
        assert prepare(dataclasses.replace(config, **option)).folder != first.folder
    others = {"workers": 2, "scan_time_limit_s": 9.0, "window": (-1200.0, 600.0), "validation": 1, "on_error": "refuse"}
    for option in (others, {"ndim": 2}):
        assert prepare(dataclasses.replace(config, **option)) == first._replace(from_cache=True)
    os.rename(config.root, tmp_path / "moved")
    config = dataclasses.replace(config, root=str(tmp_path / "moved"))
    assert prepare(config) == first._replace(from_cache=True)
    csv, raw = Path(config.root) / "annotations.csv", Path(config.root) / "subset0/a.raw"
    os.utime(csv, (1, 1))  # its content counts, not its time
    assert prepare(config).from_cache
    os.utime(raw, (1, 1))
    assert not prepare(config).from_cache
    stat, content = raw.stat(), raw.read_bytes()
    assert prepare(config).from_cache
    raw.write_bytes(content[:5000] + bytes(5000) + content[10000:])
    os.utime(raw, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as rsync -t replaces it
    assert not prepare(config).from_cache
    csv.write_text(csv.read_text().replace("8\n", "9\n").replace("8\r", "9\r"))
    assert not prepare(config).from_cache


def test_a_scan_that_arrives_later_is_extracted(luna_folder, blob_scan, write_scan):
    rows = [("a", 10, -20, 30, 8), ("late", 10, -20, 30, 8)]
    config = luna_folder("a", rows)
    assert len(load(config).values) == 1
    write_scan(Path(config.root) / "late.mhd", blob_scan((10, -20, 30), np.eye(3), (1, 1, 1)))
    assert len(load(config).values) == 2


def test_several_processes_at_once_make_one_entry(luna_folder, tmp_path):
    config = luna_folder("abcd")
    place = tmp_path / "together"
    command = [sys.executable, "-c", PREPARE, config.root, str(place), "1"]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sum("4 of 4 scans read" in text for text in outputs) == 1


def test_a_place_that_cannot_be_written(luna_folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"data.cache must be a folder that can be written; got .*file \(.*\)"):
        prepare(luna_folder("a", cache=str(tmp_path / "file")))


def test_what_killed_processes_left_of_other_entries_is_removed_when_it_is_old(luna_folder, tmp_path):
    place = tmp_path / "cache"
    for name in ("dead", "alive"):
        (place / f".{name}.partial").mkdir(parents=True)
    long_ago = time.time() - scan_cache.STALE_AFTER_S - 60
    os.utime(place / ".dead.partial", (long_ago, long_ago))
    entry = prepare(luna_folder("a")).folder
    assert sorted(path.name for path in place.iterdir()) == sorted([".alive.partial", entry.name, f"{entry.name}.lock"])

import dataclasses
import os
import re
from pathlib import Path

import numpy as np
import pytest

from gmmae.data.extraction import luna16
from gmmae.data.extraction.prepare import load, load_prepared, prepare
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError


def faults(config):
    summary = prepare(config).summary
    assert summary["annotations"] == summary["nodules"] + summary["duplicates"] + summary["lost"]
    return summary, [(fault["kind"], fault["place"], fault["text"]) for fault in summary["faults"]]


def test_subsets_and_flat_folders_are_found(luna_folder):
    config = luna_folder("abc")
    root = config.root
    for suffix in ("mhd", "raw"):
        os.rename(f"{root}/subset1/b.{suffix}", f"{root}/b.{suffix}")
    nodules = load(config)
    assert nodules.names == ("a_0", "b_0", "c_0")
    assert nodules.groups == ("a", "b", "c")
    assert nodules.values.shape == (3, 16, 16, 16)
    assert nodules.masks is None
    # Every blob peaks at 300 HU in the middle; the nearest voxel centres are 0.54 mm away.
    middle = nodules.values[:, 7:9, 7:9, 7:9]
    assert ((middle > 240) & (middle < 300)).all()


def test_patients_group_scans_where_they_are_known(luna_folder, write_csv):
    config = luna_folder("abc")
    columns = ("seriesuid", "coordX", "coordY", "coordZ", "diameter_mm", "patient", "kind")
    rows = [(uid, 10, -20, 30, 8, patient, kind) for uid, patient, kind in (("a", "P1", "x"), ("b", "P1", ""), ("c", "", "y"))]
    csv = write_csv(Path(config.root) / "mine.csv", rows, columns)
    config = dataclasses.replace(config, csv=csv.name, category_column="kind")
    nodules = load(config)
    assert nodules.groups == ("P1", "P1", "c")
    assert nodules.categories == ("x", "", "y")
    by_kind = load(dataclasses.replace(config, group_column="kind"))
    assert by_kind.groups == ("b", "b", "y")  # "x" and "b" are of one patient


def test_one_scan_with_an_offset_is_found_among_others(luna_folder, blob_scan, write_scan, capsys):
    config = luna_folder("abc")
    scan = blob_scan((10, -20, 30), np.eye(3), (0.7, 0.7, 1.25))
    write_scan(Path(config.root) / "subset1/b.mhd", scan._replace(voxels=scan.voxels + 1024))
    load(config)
    assert "1 nodules are not, such as annotations.csv line 3" in capsys.readouterr().err


def test_every_bad_row_is_a_fault_and_the_rest_goes_on(luna_folder):
    rows = [
        ("a", 10, -20, 30, 8),
        ("a", 10, -20, 30, 8),  # duplicate
        ("a", 10.0, -20.0, 30.0, "8.0"),  # the same numbers, written otherwise
        ("a", 10, -20, 30, 9),  # the same place, another diameter
        ("a", "nan", -20, 30, 8),
        ("a", 10, "", 30, 8),
        ("a", 10, -20, "left", 8),
        ("a", 10, -20, 31, -8),
        ("a", 10, -20, 32, "inf"),
        ("a", 510, -20, 30, 8),
        ("gone", 1, 2, 3, 8),
        ("gone", 4, 5, 6, 8),
        ("../a", 10, -20, 30, 8),
        ("/etc/passwd", 10, -20, 30, 8),
        ("", 10, -20, 30, 8),
        ("b", 11, -20, 30, 8),
    ]
    summary, listed = faults(luna_folder("ab", rows))
    assert {name: summary[name] for name in ("annotations", "nodules", "duplicates", "lost", "bad_rows", "missing_scans")} == {
        "annotations": 16,
        "nodules": 2,
        "duplicates": 2,
        "lost": 12,
        "bad_rows": 9,
        "missing_scans": 1,
    }
    assert summary["bad_nodules"] == 1
    expected = {
        3: "repeats line 2",
        5: "the place of line 2 again",
        6: "coordX must be a finite number; got nan",
        7: "coordY must not be empty",
        8: "coordZ must be a finite number; got left",
        9: "diameter_mm must be positive; got -8",
        10: "diameter_mm must be a finite number; got inf",
        11: r"\(510, -20, 30\) mm lies .* mm outside the scan",
        14: r"seriesuid .* inside data.root; got '../a'",
        15: "seriesuid .* inside data.root; got '/etc/passwd'",
        16: "seriesuid must not be empty",
    }
    for line, text in expected.items():
        (fault,) = [fault for _, place, fault in listed if re.search(rf"annotations.csv line {line}\b", place)]
        assert re.search(text, fault), line
    assert [place for kind, place, _ in listed if kind == "missing"] == ["gone.mhd"]
    assert [place.partition(" ")[0] for kind, place, _ in listed if kind == "nodule"] == [os.path.join("subset0", "a.mhd")]


def test_every_broken_scan_is_a_fault_and_the_rest_goes_on(luna_folder, blob_scan, write_scan):
    config = luna_folder("abcdef", compressed=True, workers=2)
    root = Path(config.root)
    data = root / "subset0/a.zraw"
    os.truncate(data, data.stat().st_size // 2)
    scan = blob_scan((10, -20, 30), np.eye(3), (0.7, 0.7, 1.25))
    os.remove(root / "subset1/b.zraw")
    raw = write_scan(root / "subset1/b.mhd", scan).with_suffix(".raw")
    os.truncate(raw, raw.stat().st_size - 100)
    os.remove(root / "subset0/c.zraw")
    write_scan(root / "subset1/d.mhd", scan._replace(voxels=np.full(scan.voxels.shape, np.nan)))
    (root / "subset0/e.mhd").write_text("not a header")
    summary, listed = faults(config)
    assert (summary["nodules"], summary["lost"], summary["unreadable_scans"], summary["bad_nodules"]) == (1, 5, 4, 1)
    texts = {os.path.basename(place.split(" ")[0]): text for _, place, text in listed}
    expected = {
        "a.mhd": "truncated .zraw",
        "b.mhd": f"truncated .raw: .* {scan.voxels.nbytes} bytes, b.raw has {scan.voxels.nbytes - 100}",
        "c.mhd": "no data: c.zraw",
        "d.mhd": "finite numbers",
        "e.mhd": "no ElementDataFile",
    }
    for name, text in expected.items():
        assert re.search(text, texts[name]), name


def test_refusing_stops_at_the_first_fault_before_reading_where_it_can(luna_folder):
    with pytest.raises(DataError, match=r"gone.mhd: there is no such scan.*data.on_error = skip"):
        prepare(luna_folder("a", [("a", 10, -20, 30, 8), ("gone", 1, 2, 3, 8)], on_error="refuse"))


def test_a_row_that_repeats_another_is_told_from_a_lost_one(luna_folder):
    messages = []
    assert len(load(luna_folder("a", [("a", 10, -20, 30, 8)] * 2), messages.append).values) == 1
    assert any("0 of 2 annotated nodules are left out; duplicates: 1; " in line for line in messages)


def test_refusing_a_broken_scan_also_when_skipping_it_filled_the_cache(luna_folder):
    rows = [("a", 10, -20, 30, 8), ("a", 510, -20, 30, 8)]
    config = luna_folder("a", rows, on_error="refuse")
    with pytest.raises(DataError, match="mm outside the scan"):
        prepare(config)
    messages = []
    assert len(load(luna_folder("a", rows), messages.append).values) == 1
    assert any("1 of 2 annotated nodules" in line and "1 fault, " in line for line in messages)
    with pytest.raises(DataError, match="mm outside the scan"):
        prepare(config)


def test_a_scan_that_is_there_twice_is_reported(luna_folder, write_scan, blob_scan):
    config = luna_folder("ab")
    write_scan(Path(config.root) / "subset7/a.mhd", blob_scan((10, -20, 30), np.eye(3), (1, 1, 1)))
    summary, listed = faults(config)
    assert summary["nodules"] == 2
    assert summary["lost"] == 0
    ((kind, place, fault),) = listed
    assert (kind, place) == ("ambiguous", os.path.join("subset7", "a.mhd"))
    assert "subset0" in fault


def test_nodules_at_the_border_are_padded_with_air_and_counted(luna_folder):
    config = luna_folder("ab", [("a", 10, -20, 30, 8), ("b", 10, -20, 45, 8)], crop="30mm")
    prepared = prepare(config)
    nodules = load_prepared(prepared)
    # In z the blob lies at slice 24.71 of 40, 1.25 mm each, so the scan ends 18.49 mm above it: 3.49 mm above the second
    # nodule, whose voxels lie 0.94, 2.81, 4.69, ... mm above its centre. Six of the sixteen layers are outside.
    assert nodules.filled.tolist() == [0, 6 / 16]
    assert prepared.summary["border_padded"] == 1
    assert (nodules.values[1, 10:] == -1000).all()
    assert (nodules.values[1, :10] > -1000).any((1, 2)).all()


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"seriesuid,x,coordY,coordZ,d\n", {}, "column coordX, diameter_mm; it has seriesuid, x, coordY, coordZ, d"),
        (None, {"category_column": "kind"}, "column kind; it has seriesuid, "),
        (None, {"group_column": "patient"}, "column patient; it has seriesuid, "),
        (b"", {}, "it has none"),
        (b"\xff\xfe\x00s\x00", {}, "CSV in UTF-8"),
        (None, {"csv": "gone.csv"}, "data.csv .*gone.csv is not there"),
        (None, {"root": None}, "data.root must be the folder of the .mhd scans.*; got none"),
        (None, {"root": "EMPTY"}, r"must hold .mhd scans, in subset\*/ .* has none"),
    ],
)
def test_folders_and_csvs_that_cannot_be_used(luna_folder, tmp_path, content, options, message):
    config = luna_folder("a")
    if options.get("root"):
        (tmp_path / "empty").mkdir()
        options = {"root": str(tmp_path / "empty")}
    if content is not None:
        (Path(config.root) / "annotations.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        luna16.plan(dataclasses.replace(config, **options))


def test_nothing_readable_is_an_error_even_when_skipping(luna_folder):
    config = luna_folder("a", [("gone", 1, 2, 3, 8)])
    with pytest.raises(DataError, match=r"must hold a nodule that can be read; .* 1, .* 1 faults: gone.mhd"):
        prepare(config)
    with pytest.raises(DataError, match=r"annotations\.csv: must list a nodule"):
        prepare(luna_folder("a", []))


def test_the_cropped_real_scan(shared_data, tmp_path):
    config = DataConfig(
        source="luna16", root=str(shared_data / "mini_luna16"), cache=str(tmp_path), workers=1, scan_time_limit_s=None
    )
    prepared = prepare(config)
    nodules = load_prepared(prepared)
    assert len(nodules.values) == 2
    assert prepared.summary["faults"] == []
    assert (nodules.filled == 0).all()
    # Tissue within half a diameter of the centre, lung beyond: the second is solid, the first a ring around a cavity.
    steps = (np.arange(16) + 0.5) / 16 - 0.5
    radius = 1.25 * np.sqrt((np.stack(np.meshgrid(steps, steps, steps)) ** 2).sum(0))
    for cube in nodules.values:
        assert cube[(radius > 0.25) & (radius < 0.5)].mean() > cube[radius > 0.65].mean() + 150
        weights = np.clip(cube + 600.0, 0, None) * (radius < 0.65)
        centroid = [(weights * s).sum() / weights.sum() for s in np.meshgrid(steps, steps, steps, indexing="ij")]
        assert np.abs(centroid).max() < 0.06  # of the edge: 0.6 mm

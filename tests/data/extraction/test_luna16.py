import os
from pathlib import Path

import numpy as np
import pytest

from gmmae.data.extraction import luna16
from gmmae.data.extraction.prepare import load, load_prepared, prepare
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError

QUIET: list[str] = []


def faults(config):
    summary = prepare(config, QUIET.append).summary
    assert summary["annotations"] == summary["nodules"] + summary["duplicates"] + summary["lost"]
    return summary, [(fault["kind"], fault["place"], fault["text"]) for fault in summary["faults"]]


def test_subsets_and_flat_folders_are_found(luna_folder):
    config = luna_folder("abc")
    root = config.root
    for suffix in ("mhd", "raw"):
        os.rename(f"{root}/subset1/b.{suffix}", f"{root}/b.{suffix}")
    nodules = load(config, QUIET.append)
    assert nodules.names == ("a_0", "b_0", "c_0")
    assert nodules.groups == ("a", "b", "c")
    assert nodules.values.shape == (3, 16, 16, 16)
    assert nodules.masks is None
    # Every blob peaks at 300 HU in the middle; the nearest voxel centres are 0.54 mm away.
    assert (nodules.values[:, 7:9, 7:9, 7:9] > 240).all()
    assert (nodules.values[:, 7:9, 7:9, 7:9] < 300).all()


def test_patients_group_scans_where_they_are_known(luna_folder, write_csv):
    config = luna_folder("abc")
    columns = ("seriesuid", "coordX", "coordY", "coordZ", "diameter_mm", "patient", "kind")
    rows = [(uid, 10, -20, 30, 8, patient, kind) for uid, patient, kind in (("a", "P1", "x"), ("b", "P1", ""), ("c", "", "y"))]
    csv = write_csv(Path(config.root) / "mine.csv", rows, columns)
    config = DataConfig(**{**vars(config), "csv": csv.name, "category_column": "kind"})
    nodules = load(config, QUIET.append)
    assert nodules.groups == ("P1", "P1", "c")
    assert nodules.categories == ("x", "", "y")
    by_kind = load(DataConfig(**{**vars(config), "group_column": "kind"}), QUIET.append)
    assert by_kind.groups == ("x", "b", "y")


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
    summary, found = faults(luna_folder("ab", rows))
    assert {name: summary[name] for name in ("annotations", "nodules", "duplicates", "lost", "bad_rows", "missing_scans")} == {
        "annotations": 16,
        "nodules": 2,
        "duplicates": 2,
        "lost": 12,
        "bad_rows": 9,
        "missing_scans": 1,
    }
    assert summary["bad_nodules"] == 1
    texts = {f"{kind} {place}": text for kind, place, text in found}
    assert texts["duplicate annotations.csv line 3"] == "repeats line 2, which is kept"
    assert texts["row annotations.csv line 5"].startswith("names the place of line 2 again")
    assert texts["row annotations.csv line 6"] == "coordX must be a finite number; got nan"
    assert texts["row annotations.csv line 7"] == "coordY must not be empty"
    assert texts["row annotations.csv line 8"] == "coordZ must be a finite number; got left"
    assert texts["row annotations.csv line 9"] == "diameter_mm must be positive; got -8"
    assert texts["row annotations.csv line 10"] == "diameter_mm must be a finite number; got inf"
    assert texts["row annotations.csv line 14"] == "seriesuid must be a name inside data.root; got '../a'"
    assert texts["row annotations.csv line 15"] == "seriesuid must be a name inside data.root; got '/etc/passwd'"
    assert texts["row annotations.csv line 16"] == "seriesuid must not be empty"
    assert texts["missing gone.mhd"] == "there is no such scan; annotations.csv lists 2 of its nodules"
    where = texts[f"nodule {os.path.join('subset0', 'a.mhd')} (annotations.csv line 11)"]
    assert where.startswith("the point (510, -20, 30) mm lies")
    assert where.endswith("mm outside the scan")


@pytest.mark.parametrize("workers", [1, 2])
def test_every_broken_scan_is_a_fault_and_the_rest_goes_on(luna_folder, blob_scan, write_scan, workers):
    config = luna_folder("abcdef", compressed=True, workers=workers)
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
    summary, found = faults(config)
    assert (summary["nodules"], summary["lost"], summary["unreadable_scans"], summary["bad_nodules"]) == (1, 5, 4, 1)
    texts = {os.path.basename(place.split(" ")[0]): text for _, place, text in found}
    assert texts["a.mhd"].startswith("truncated .zraw: the header promises ")
    assert (
        texts["b.mhd"]
        == f"truncated .raw: the header promises {scan.voxels.nbytes} bytes, b.raw has {scan.voxels.nbytes - 100}"
    )
    assert texts["c.mhd"] == "the header has no data: c.zraw, which it names, is not there"
    assert texts["d.mhd"].startswith("voxels must be finite numbers; ")
    assert texts["e.mhd"] == "the header is no MetaImage header: it has no ElementDataFile"


def test_refusing_stops_at_the_first_fault_before_reading_where_it_can(luna_folder):
    with pytest.raises(DataError, match=r"gone.mhd: there is no such scan.*: fix it, or set data.on_error = skip"):
        prepare(luna_folder("a", [("a", 10, -20, 30, 8), ("gone", 1, 2, 3, 8)], on_error="refuse"), QUIET.append)


def test_refusing_a_broken_scan_also_when_skipping_it_filled_the_cache(luna_folder):
    rows = [("a", 10, -20, 30, 8), ("a", 510, -20, 30, 8)]
    config = luna_folder("a", rows, on_error="refuse")
    with pytest.raises(DataError, match=r"mm outside the scan: fix it"):
        prepare(config, QUIET.append)
    said = []
    assert len(load(luna_folder("a", rows), said.append).values) == 1
    assert any(line.startswith("1 of 2 annotated nodules are left out; 1 faults, the first: ") for line in said)
    with pytest.raises(DataError, match=r"mm outside the scan: fix it"):
        prepare(config, QUIET.append)


def test_a_scan_that_is_there_twice_is_reported(luna_folder, write_scan, blob_scan):
    config = luna_folder("ab")
    write_scan(Path(config.root) / "subset7/a.mhd", blob_scan((10, -20, 30), np.eye(3), (1, 1, 1)))
    summary, found = faults(config)
    assert summary["nodules"] == 2
    assert summary["lost"] == 0
    assert found == [
        ("ambiguous", os.path.join("subset7", "a.mhd"), "is also in subset0, which is used: remove one of the two")
    ]


def test_nodules_at_the_border_are_padded_with_air_and_counted(luna_folder):
    config = luna_folder("ab", [("a", 10, -20, 30, 8), ("b", 10, -20, 45, 8)], crop="30mm")
    prepared = prepare(config, QUIET.append)
    nodules, details = load_prepared(prepared)
    # In z the blob lies at slice 24.71 of 40, 1.25 mm each, so the scan ends 18.49 mm above it: 3.49 mm above the second
    # nodule, whose voxels lie 0.94, 2.81, 4.69, ... mm above its centre. Six of the sixteen layers are outside.
    assert details.filled.tolist() == [0, 6 / 16]
    assert prepared.summary["border_padded"] == 1
    assert (nodules.values[1, 10:] == -1000).all()
    assert (nodules.values[1, :10] > -1000).any((1, 2)).all()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("uid", "coordX", "coordY", "coordZ", "diameter_mm"), "column seriesuid; it has uid, coordX"),
        (("seriesuid", "x", "coordY", "coordZ", "d"), "column coordX, diameter_mm; it has seriesuid, x, coordY, coordZ, d"),
    ],
)
def test_a_missing_column_is_named_and_those_there_listed(luna_folder, write_csv, columns, message):
    config = luna_folder("a")
    write_csv(Path(config.root) / "annotations.csv", [("a", 10, -20, 30, 8)], columns)
    with pytest.raises(DataError, match=message):
        luna16.plan(config)


@pytest.mark.parametrize(("option", "name"), [("category_column", "kind"), ("group_column", "patient")])
def test_a_column_that_was_asked_for_must_be_there(luna_folder, option, name):
    with pytest.raises(DataError, match=rf"must have the column {name}; it has seriesuid, "):
        luna16.plan(luna_folder("a", **{option: name}))


def test_folders_without_what_is_needed(tmp_path, luna_folder):
    with pytest.raises(DataError, match=r"data.root must be the folder of the .mhd scans.*; got ''"):
        luna16.plan(DataConfig(source="luna16"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"must hold .mhd scans, in subset\*/ or directly; .*empty has none"):
        luna16.plan(DataConfig(source="luna16", root=str(tmp_path / "empty")))
    config = luna_folder("a")
    (Path(config.root) / "annotations.csv").write_bytes(b"")
    with pytest.raises(DataError, match=r"it has none"):
        luna16.plan(config)
    (Path(config.root) / "annotations.csv").write_bytes(b"\xff\xfe\x00s\x00")
    with pytest.raises(DataError, match=r"must be a CSV in UTF-8"):
        luna16.plan(config)
    os.remove(Path(config.root) / "annotations.csv")
    with pytest.raises(DataError, match=r"data.csv must name the CSV of the nodules; .*annotations.csv is not there"):
        luna16.plan(config)


def test_nothing_readable_is_an_error_even_when_skipping(luna_folder):
    config = luna_folder("a", [("gone", 1, 2, 3, 8)])
    with pytest.raises(
        DataError, match=r"must hold a nodule that can be read; .* lists 1, with 1 faults: gone.mhd: there is no"
    ):
        prepare(config, QUIET.append)
    config = luna_folder("a", [])
    with pytest.raises(DataError, match=r"annotations\.csv: must list a nodule; it has a header alone$"):
        prepare(config, QUIET.append)


def test_the_order_of_the_rows_does_not_matter_for_the_cubes(luna_folder):
    rows = [(uid, 10 + i, -20, 30, 8) for i, uid in enumerate("abab")]
    there = load(luna_folder("ab", rows), QUIET.append)
    back = load(luna_folder("ab", rows, workers=2), QUIET.append)
    np.testing.assert_array_equal(there.values, back.values)
    assert there.names == ("a_0", "a_1", "b_0", "b_1")


def test_the_cropped_real_scan(shared_data, tmp_path):
    config = DataConfig(
        source="luna16", root=str(shared_data / "mini_luna16"), cache=str(tmp_path), workers=1, scan_time_limit_s=0.0
    )
    prepared = prepare(config, QUIET.append)
    nodules, details = load_prepared(prepared)
    assert len(nodules.values) == 2
    assert prepared.summary["faults"] == []
    assert (details.filled == 0).all()
    # Tissue within half a diameter of the centre, lung beyond: the second is solid, the first a ring around a cavity.
    steps = (np.arange(16) + 0.5) / 16 - 0.5
    radius = 1.25 * np.sqrt((np.stack(np.meshgrid(steps, steps, steps)) ** 2).sum(0))
    for cube in nodules.values:
        assert cube[(radius > 0.25) & (radius < 0.5)].mean() > cube[radius > 0.65].mean() + 150
        weights = np.clip(cube + 600.0, 0, None) * (radius < 0.65)
        centroid = [(weights * s).sum() / weights.sum() for s in np.meshgrid(steps, steps, steps, indexing="ij")]
        assert np.abs(centroid).max() < 0.06  # of the edge: 0.6 mm

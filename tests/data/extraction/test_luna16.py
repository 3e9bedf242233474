"""What is read of a folder in LUNA16's shape, and what is said of rows that are left out. The faults are in `tests/fuzz`."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data.extraction.annotations import COLUMNS
from gmmae.data.extraction.prepare import load, prepare
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError
from tests.volume_folders import write_rows


def test_patients_group_scans_where_they_are_known(luna_folder):
    config = luna_folder("abc")
    columns = ("seriesuid", *COLUMNS, "patient", "kind")
    rows = [(uid, 10, -20, 30, 8, patient, kind) for uid, patient, kind in (("a", "P1", "x"), ("b", "P1", ""), ("c", "", "y"))]
    write_rows(Path(config.root) / "mine.csv", rows, columns)
    config = replace(config, csv="mine.csv", category_column="kind")
    nodules = load(config)
    assert nodules.groups == ("P1", "P1", "c")
    assert nodules.categories == ("x", "", "y")
    assert load(replace(config, group_column="kind")).groups == ("b", "b", "y")  # "x" and "b" are of one patient


def test_a_mask_that_the_csv_of_scans_names_lies_in_the_folder(luna_folder):
    config = luna_folder("a", [("a", 10, -20, 30, 8, "ball.nii.gz")], ("seriesuid", *COLUMNS, "mask"))
    sitk.WriteImage(sitk.ReadImage(Path(config.root) / "subset0/a.mhd") > -300, Path(config.root) / "ball.nii.gz")
    nodules = load(config)
    assert nodules.masks is not None
    assert ((nodules.values > -300) != nodules.masks).mean() < 0.03  # a voxel may be at one half


def test_one_scan_with_an_offset_is_found_among_others(luna_folder, blob_scan, capsys):
    config = luna_folder("abc")
    scan = blob_scan((10, -20, 30), np.eye(3), (0.7, 0.7, 1.25))
    scan._replace(voxels=scan.voxels + 1024).write(Path(config.root) / "subset1/b.mhd")
    load(config)
    assert "1 nodules are not, such as annotations.csv line 3" in capsys.readouterr().err


def test_every_row_is_a_nodule_a_duplicate_or_lost(luna_folder):
    places = ["10 -20 30 8", "10 -20 30 8", "10.0 -20.0 30.0 8.0", "10 -20 30 9", "nan -20 30 8", "510 -20 30 8"]
    rows = [("a", *place.split()) for place in places] + [("gone", 1, 2, 3, 8), ("gone", 4, 5, 6, 8), ("b", 11, -20, 30, 8)]
    messages = []
    assert len(load(luna_folder("ab", rows), messages.append).values) == 2
    assert any("5 of 9 annotated nodules are left out; duplicates: 2; " in line for line in messages)


def test_a_repeated_row_names_the_other_columns_that_differ(luna_folder):
    rows, messages = [("a", 10, -20, 30, 8, "x"), ("a", "10.0", -20, 30, 8, "y")], []
    load(luna_folder("a", rows, ("seriesuid", "coordX", "coordY", "coordZ", "diameter_mm", "label")), messages.append)
    assert "line 3: repeats line 2 (but for label), which is kept" in "\n".join(messages)


def test_refusing_stops_at_the_first_fault_also_when_skipping_it_filled_the_cache(luna_folder):
    config = luna_folder("a", [("a", 10, -20, 30, 8), ("a", 510, -20, 30, 8)], on_error="refuse")
    for _ in range(2):
        with pytest.raises(DataError, match=r"annotations.csv line 3.*data.on_error = skip"):
            prepare(config)
        assert len(load(replace(config, on_error="skip"), lambda _: None).values) == 1
    with pytest.raises(DataError, match=r"gone: .*data.on_error = skip"):
        prepare(luna_folder("a", [("a", 10, -20, 30, 8), ("gone", 1, 2, 3, 8)], on_error="refuse"))


def test_nodules_at_the_border_are_padded_with_air_and_counted(luna_folder):
    config = luna_folder("ab", [("a", 10, -20, 30, 8), ("b", 10, -20, 45, 8)], crop="30mm")
    nodules = load(config)
    # In z the blob lies at slice 24.71 of 40, 1.25 mm each, so the scan ends 18.49 mm above it: 3.49 mm above the second
    # nodule, whose voxels lie 0.94, 2.81, 4.69, ... mm above its centre. Six of the sixteen layers are outside.
    assert nodules.filled.tolist() == [0, 6 / 16]
    assert prepare(config).summary["border_padded"] == 1
    assert (nodules.values[1, 10:] == -1000).all()
    assert (nodules.values[1, :10] > -1000).any((1, 2)).all()


def test_the_cropped_real_scan(shared_data, tmp_path):
    root = str(shared_data / "mini_luna16")
    nodules = load(DataConfig("luna16", root, cache=str(tmp_path), workers=1, scan_time_limit_s=None))
    assert nodules.filled.tolist() == [0, 0]
    # Tissue within half a diameter of the centre, lung beyond: the second is solid, the first a ring around a cavity.
    steps = (np.indices((16, 16, 16)) - 7.5) / 16
    radius = 1.25 * np.linalg.norm(steps, axis=0)
    for cube in nodules.values:
        assert cube[(radius > 0.25) & (radius < 0.5)].mean() > cube[radius > 0.65].mean() + 150
        weights = np.clip(cube + 600.0, 0, None) * (radius < 0.65)
        assert np.abs((weights * steps).sum((1, 2, 3)) / weights.sum()).max() < 0.06  # of the edge: 0.6 mm

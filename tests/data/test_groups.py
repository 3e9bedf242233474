"""What belongs together is on one side of the split: patients, scans and equal voxels."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from gmmae.data import sources
from gmmae.data.extraction.prepare import load
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError
from gmmae.workloads.segmentation import load_volumes, split_volumes
from gmmae.workloads.settings import PatchConfig
from tests import volume_folders as folders
from tests.commands import lines_of
from tests.fuzz.changes import both, replaced

COLUMNS = ("seriesuid", "coordX", "coordY", "coordZ", "diameter_mm", "patient")


@pytest.mark.parametrize(
    ("patients", "groups"),
    [
        (("", "P1", "P2", "P2", "P3", "P3"), "P1 P1 P2 P2 P3 P3"),
        (("P1", "p1 ", "P2", " P2", "P3", "p3"), "P1 P1 P2 P2 P3 P3"),
        (("12", "12.0", "13.0", "13", "120", "120"), "12 12 13 13 120 120"),  # a column of numbers
        (("007", "7", "7.0", "07", "P3", "P3"), "007 007 007 007 P3 P3"),
        (("nan", "None", "NA", "n/a", "P3", "P3"), "a a b b P3 P3"),
        (("P1", "P4", "P2", "P5", "P3", "P6"), "P1 P1 P2 P2 P3 P3"),  # two patients of a scan
        (("P1", "P4", "P2", "P5", "P3", "P4"), "P1 P1 P2 P2 P1 P1"),  # a chain
    ],
)
def test_no_scan_is_divided_whatever_its_rows_say_of_the_patient(luna_folder, patients, groups):
    rows = [("aabbcc"[i], 10 + 0.3 * i, -20, 30, 8, patient) for i, patient in enumerate(patients)]
    nodules, split = sources.load(luna_folder("abc", rows, COLUMNS, validation=2))
    assert " ".join(nodules.groups) == groups
    assert not {nodules.names[i][0] for i in split.train} & {nodules.names[i][0] for i in split.validation}


@pytest.mark.parametrize("wrong", ["x", "-1", "9"])
def test_a_row_that_cannot_be_used_still_says_whose_scan_it_is(luna_folder, wrong):
    rows = [(uid, 10, -20, 30, mm, patient) for uid, mm, patient in zip("abca", (8, 8, 8, wrong), "1232", strict=True)]
    assert load(luna_folder("abc", rows, COLUMNS, on_error="skip")).groups == ("1", "1", "3")


def cubes(root, **options):
    options |= {"workers": 1, "scan_time_limit_s": None}
    return DataConfig(source="cubes", root=str(root), cache=str(root.parent / "cache"), **options)


def noise(count):
    return np.random.default_rng(0).integers(-1000, 400, (count, 6, 8, 9)).astype(np.int16)


def arrays(path, volumes, **more):
    np.savez(path, volumes=volumes, **more)
    return cubes(path, crop="whole")


@pytest.mark.parametrize("column", ["PatientID", "patient_id", "Subject", "case", "group"])
def test_a_patient_is_known_by_many_names(tmp_path, column):
    root = folders.write(tmp_path / "cubes", spoil=lambda case, i: case._replace(row=[case.row[0], i // 2, *case.row[2:]]))
    replaced("patient", column, 1)(root)
    nodules = load(cubes(root))
    assert (nodules.groups, nodules.by) == (("0", "0", "1", "1"), "patient")


def test_columns_beside_patients_are_kept_and_not_used(tmp_path):
    config = arrays(tmp_path / "d.npz", noise(4), patient=["P1", "P2", "P3", "P3"], groups=[*"aabb"])
    assert len({*load(config).groups}) == 3
    summary = json.loads(next(Path(config.cache).rglob("summary.json")).read_text())
    assert {*summary["columns"]["used"]} == {"volumes", "patient"}


@pytest.mark.parametrize(("more", "count"), [({}, 2), ({"group_column": "case"}, 4), ({"group_column": "mine"}, 3)])
def test_a_case_and_a_group_both_count_where_nothing_else_names_a_patient(tmp_path, more, count):
    config = arrays(tmp_path / "d.npz", noise(4), case=range(4), groups=[*"aabb"], mine=[*"xyzz"])
    assert len({*load(dataclasses.replace(config, **more)).groups}) == count


@pytest.mark.parametrize("more", [{}, {"patient": ["P", *[""] * 11]}])
@pytest.mark.parametrize("words", [(), ("--data.group-column", "case")])
def test_a_column_of_cases_and_controls_names_no_patients_unless_it_is_named(tmp_path, capsys, words, more):
    config = arrays(tmp_path / "d.npz", noise(12), case=["case"] * 5 + ["Control"] * 7, **more)
    data = ("--data.source", "cubes", "--data.root", config.root, "--data.cache", config.cache, "--data.crop", "whole")
    printed = "\n".join(lines_of(capsys, "data", "prepare", *data, *words))
    assert f"12 nodules in {2 if words else 12} groups" in printed
    assert ("the column case has two values" in printed) == (not words)
    divided = sources.load(dataclasses.replace(config, group_column=words[-1] if words else "auto")).split
    assert len(divided.validation) == (5 if words else 3)


@pytest.mark.parametrize("spacing", [{}, {"spacing_mm": np.full((4, 3), 0.7)}])
def test_arrays_that_are_cut_without_a_spacing_are_named(tmp_path, capsys, spacing):
    load(dataclasses.replace(arrays(tmp_path / "d.npz", noise(4), diameter_mm=np.full(4, 3), **spacing), crop="1.25x"))
    assert ("4 arrays without a spacing are cut as if a voxel were 1 mm" in capsys.readouterr().err) == (not spacing)


@pytest.mark.parametrize(
    ("columns", "said"), [("x y z", True), ("coordX coordY coordZ", False), ("x", False), ("col row slice", True)]
)
def test_columns_that_seem_to_be_places_and_are_not_read_are_named(tmp_path, capsys, columns, said):
    places = dict.fromkeys(columns.split(), np.full(4, 2.0))
    load(dataclasses.replace(arrays(tmp_path / "d.npz", noise(4), spacing_mm=np.ones((4, 3)), **places), crop="3mm"))
    assert (f"nothing reads {', '.join(columns.split())}" in capsys.readouterr().err) == said


@pytest.mark.parametrize(
    ("patients", "column", "others", "groups"),
    [
        (("P0", "P1", "", ""), "subject", ("", "S1", "S1", "S2"), ("P0", "P1", "P1", "S2")),  # each fills the other's gaps
        (("P0", "P1", "P2", "P3"), "subject", ("S0", "S1", "S1", "S2"), ("P0", "P1", "P1", "P3")),  # a number for each image
        (("P0", "P1", "", "P3"), "seriesuid", ("S0", "S1", "S1", "S2"), ("P0", "P1", "P1", "P3")),  # cubes of one series
        (("P0", "P1", "P2", "P3"), "seriesuid", ("NA", "S1", "S2", "NA"), ("P0", "P1", "P2", "P3")),
    ],
)
def test_columns_of_patients_and_series_are_read_together(tmp_path, patients, column, others, groups):
    root = folders.write(tmp_path / "cubes")
    rows = [(f"n{i}.mha", *names) for i, names in enumerate(zip(patients, others, strict=True))]
    folders.write_rows(root / "nodules.csv", rows, ("file", "patient", column))
    assert load(cubes(root, crop="10mm")).groups == groups


def test_few_patients_of_many_nodules_are_named(tmp_path, capsys):
    assert load(arrays(tmp_path / "d.npz", noise(20), groups=np.repeat(["granuloma", "cancer"], 10))).by == "patient"
    assert "20 nodules are of 2 patients by group" in capsys.readouterr().err


def test_copies_of_a_scan_and_names_of_one_are_one_group(luna_folder):
    config = luna_folder("ab", [(uid, x, -20, 30, 8) for uid, x in zip("abcd", (10, 14, 12, 8), strict=True)])
    folder = Path(config.root, "subset0")
    (folder / "c.mhd").write_text((folder / "a.mhd").read_text().replace("a.raw", "c.raw"))
    shutil.copy(folder / "a.raw", folder / "c.raw")
    (folder / "d.mhd").symlink_to(folder / "a.mhd")
    assert load(config).groups == ("a", "b", "a", "a")


@pytest.mark.parametrize("change", [lambda volume: volume, lambda volume: np.rot90(volume, axes=(2, 1))[::-1]])
def test_a_scan_in_two_formats_or_turned_is_one_group(tmp_path, change):
    """Two nodules of it, of two patients: the second file is compressed and holds floating-point numbers."""

    def again(case, i):
        values = change(folders.case(0).values).astype(float)
        return case._replace(values=values, row=["again.nii.gz", *case.row[1:]], mask=change(case.mask)) if i == 1 else case

    assert load(cubes(folders.write(tmp_path / "cubes", 3, spoil=again), crop="8mm")).groups == ("P0", "P0", "P2")


def test_the_split_of_an_npz_follows_its_voxels_and_not_its_name(tmp_path):
    one, renamed = (sources.load(arrays(tmp_path / name, noise(20))) for name in ("one.npz", "another.npz"))
    assert one.split.validation.tolist() == renamed.split.validation.tolist()
    twice = np.concatenate([noise(20)] * 2)
    diameters = np.linspace(5, 9, 40)  # other cubes of equal volumes
    nodules, split = sources.load(arrays(tmp_path / "twice.npz", twice, diameter_mm=diameters))
    assert len(set(nodules.groups)) == 20
    assert not {i % 20 for i in split.train.tolist()} & {i % 20 for i in split.validation.tolist()}
    named = load(arrays(tmp_path / "named.npz", twice[:21], groups=[f"P{i}" for i in range(21)]))
    assert named.groups[0] == named.groups[20] == "P0"


@pytest.mark.parametrize("change", [lambda volumes: np.rot90(volumes[:, ::-1], axes=(1, 3)), lambda volumes: 0.0 + volumes])
def test_copies_of_clipped_volumes_are_one_group_turned_or_with_another_zero(tmp_path, change):
    """Each plane has the largest value."""
    volumes = np.random.default_rng(0).integers(-1, 2, (10, 8, 8, 8)).astype(np.float32) * np.float32(-400)
    assert (volumes.max((2, 3)) == 400).all()
    assert np.signbit(volumes[volumes == 0]).all()
    assert len(set(load(arrays(tmp_path / "twice.npz", np.concatenate([volumes, change(volumes)]))).groups)) == 10


def test_where_no_patient_is_known_every_split_says_so(tmp_path, capsys):
    root = folders.write(tmp_path / "cubes")
    config = cubes(root)
    patches = PatchConfig(source="cubes", root=str(root), ndim=2, shape=16)
    split_volumes(load_volumes(patches), patches)
    assert sources.load(config).nodules.by == "patient"
    assert "patient" not in capsys.readouterr().err
    replaced("patient", "somebody", 1)(root)
    for _ in ("extracted", "from the cache"):
        assert "no patient is known" in sources.load(config).nodules.by
        assert "no patient is known" in capsys.readouterr().err
    split_volumes(load_volumes(patches), patches)
    assert "no patient is known" in capsys.readouterr().err
    both(replaced("P3", "P2"), replaced("somebody", "patient"), replaced("P0", ""))(root)
    assert "by scan for 1 nodules" in sources.load(config).nodules.by
    assert "no patient" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["patient", "voxels", "spelling of a patient", "patient beside a group", "named column"])
def test_further_training_nodules_belong_to_no_validation_nodule(tmp_path, kind):
    """The other folder has the same volumes under other names, and other voxels or other patients."""

    def other(case, i):
        patient = {"voxels": f"new {i}", "spelling of a patient": f" {case.row[1].lower()}"}.get(kind, case.row[1])
        values = case.values if kind == "voxels" else case.values + 1
        return case._replace(row=[f"new_{case.row[0]}", patient, *case.row[2:]], values=values)

    roots = [folders.write(tmp_path / "cubes"), folders.write(tmp_path / "more", spoil=other)]
    if kind == "named column":
        for root in roots:
            replaced("patient", "family", 1)(root)
    column = {"patient beside a group": "file", "named column": "Family"}.get(kind, "auto")
    config = cubes(roots[0], augment_with=str(roots[1]), validation=1, group_column=column)
    with pytest.raises(DataError, match=r"augment_with must belong to no validation nodule; 1 of 4 do"):
        sources.load(config)
    assert len(sources.load(dataclasses.replace(config, allow_seen=True)).split.train) == 7


@pytest.mark.parametrize("column", ["auto", "family"])
def test_a_case_and_a_group_beside_a_patient_do_not_name_him(tmp_path, column):
    """Cases of two hospitals have running numbers, and nobody has a family."""
    for more, name in enumerate(("cubes", "more")):

        def named(case, i, name=name, more=more):
            return case._replace(values=case.values + more, row=[f"{name}{i}.mha"])

        root = folders.write(tmp_path / name, spoil=named)
        rows = [(f"{name}{i}.mha", "" if column == "family" else f"{name} {i}", i, "hospital", "") for i in range(4)]
        folders.write_rows(root / "nodules.csv", rows, ("file", "patient", "case", "group", "family"))
    more = {"augment_with": str(tmp_path / "more"), "group_column": column}
    config = cubes(tmp_path / "cubes", crop="10mm", validation=1, **more)
    assert len(sources.load(config).split.train) == 7

"""Whole folders: what is changed, what is kept, and that what is written is found again."""

import json
import shutil

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data.extraction.prepare import load_prepared, prepare
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError, joined
from gmmae.generation.insertion.insert import insert
from tests.commands import lines_of, refusal, rows
from tests.fuzz.changes import stored
from tests.generation.chests import tissue_balls, write_annotations, write_chest, write_scans
from tests.volume_folders import write_cubes

HEADERS = {"a": "subset0/a.mhd", "turned": "subset1/turned.mhd"}


@pytest.fixture(scope="module", autouse=True)
def small_pictures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gmmae.generation.insertion.insert.SHOWN", 1)
        yield


@pytest.fixture
def scans(tmp_path):
    return write_scans(tmp_path / "scans")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The folder of scans, and the output folder and the records of an insertion of six balls, two of each patient."""
    root = tmp_path_factory.mktemp("done")
    records, _ = insert(of_patients(), write_scans(root / "scans"), root / "out", 3, print, (2, 2))
    return root / "scans", root / "out", records


def of_patients():
    return tissue_balls().with_columns(group=[f"source{i // 2}" for i in range(6)])


def voxels(path):
    return sitk.GetArrayFromImage(sitk.ReadImage(str(path)))


def test_scans_change_around_the_masks_only_and_keep_their_geometry(done):
    scans, out, _ = done
    for uid, header in HEADERS.items():
        old, new, mask = (sitk.ReadImage(str(path)) for path in (scans / header, out / header, out / f"masks/{uid}.nii.gz"))
        before, after, label = map(sitk.GetArrayFromImage, (old, new, mask))
        assert set(np.unique(label)) == {0, 1, 2}
        # The band is 2 mm, a slice's distance, wide; a voxel's corner may be half a voxel nearer than its centre.
        away = sitk.SignedMaurerDistanceMap(mask != 0, squaredDistance=False, useImageSpacing=True)
        far = sitk.GetArrayFromImage(away) > 2.0 + 2.0
        assert after.dtype == before.dtype == np.int16
        assert np.array_equal(after[far], before[far])
        assert (after[label > 0] - before[label > 0]).mean() > 500
        for part in ("GetOrigin", "GetSpacing", "GetDirection"):
            assert getattr(new, part)() == getattr(old, part)()
            assert np.allclose(getattr(mask, part)(), getattr(old, part)(), atol=1e-4)


def test_prepare_finds_each_nodule_where_its_voxels_changed_and_groups_by_its_own_patient_too(done, tmp_path):
    scans, out, records = done
    prepared = prepare(DataConfig(source="luna16", root=str(out), cache=str(tmp_path / "cache"), workers=1), print)
    assert prepared.summary["faults"] == []
    nodules = load_prepared(prepared)
    assert len(nodules.names) == 5
    together = set()
    for record in records:
        header = HEADERS[record.seriesuid]
        new = sitk.ReadImage(str(out / header))
        label = voxels(out / "masks" / f"{record.seriesuid}.nii.gz")
        changed = np.argwhere((voxels(scans / header) != sitk.GetArrayFromImage(new)) & (label == record.label))
        centre = new.TransformContinuousIndexToPhysicalPoint(changed.mean(0)[::-1].tolist())
        distances = np.linalg.norm(nodules.centre_mm - centre, axis=1)
        found = int(np.argmin(distances))
        assert distances[found] < 0.5
        assert nodules.diameter_mm[found] == 8.0
        assert nodules.values[found][6:10, 6:10, 6:10].mean() > -200  # and tissue is there
        together |= {(shared, nodules.groups[found]) for shared in (record.patient, record.seriesuid)}
    assert len(together) == len(dict(together))  # one group for each patient, and for each scan


def test_a_nodule_gets_the_noise_that_it_lacks(scans, tmp_path):
    """The scans have noise of 25 HU. The nodules are faint, because an edge is taken for noise in so small ones."""
    balls = tissue_balls(diameter_mm=12.0)
    assert balls.masks is not None
    faint = np.where(balls.masks > 0, -780, -800)
    added = {}
    for name, own in {"smooth": 0, "noisy": np.random.default_rng(0).normal(0, 90, faint.shape)}.items():
        records, _ = insert(balls._replace(values=(faint + own).astype(np.int16)), scans, tmp_path / name, 3, print, (2, 2))
        assert [record.scan_noise_hu for record in records] == pytest.approx([25] * 4, rel=0.05)
        added[name] = [record.noise_hu for record in records]
    assert added["smooth"] == pytest.approx([25] * 4, rel=0.05)
    assert max(added["noisy"]) < 15


def test_tables_keep_old_rows_and_boxes_and_have_the_nodules_names_and_patients(done):
    _, out, records = done
    annotations = rows(out / "annotations.csv")
    assert [row["inserted"] for row in annotations] == ["", *(record.nodule for record in records)]
    assert [row["patient"] for row in annotations] == ["p1", *(f"source{int(r.nodule[1:]) // 2}" for r in records)]
    assert (annotations[0]["coordX"], annotations[0]["diameter_mm"]) == ("20.0", "6.5")
    assert [row["nodule"] for row in rows(out / "insertions.csv")] == [record.nodule for record in records]
    assert all(record.displaced_hu < -700 for record in records)
    first, second = json.loads((out / "detection.json").read_text())["training"]
    assert (first["image"], second["image"]) == tuple(HEADERS.values())
    assert first["label"] == [0] * 3
    assert first["box"][0] == [20.0, 85.5, -250.125, 6.5, 6.5, 6.5]
    for record, box in zip(records, first["box"][1:] + second["box"], strict=True):
        label = sitk.ReadImage(out / f"masks/{record.seriesuid}.nii.gz")
        inside = np.argwhere(sitk.GetArrayFromImage(label) == record.label)[:, ::-1]
        ends = (inside.min(0) - 0.5, inside.max(0) + 0.5)
        corners = [label.TransformContinuousIndexToPhysicalPoint(end.tolist()) for end in ends]
        assert np.allclose([*np.mean(corners, 0), *np.abs(np.subtract(*corners))], box, atol=1e-4)


def test_a_seed_gives_the_same_bytes_again_and_another_one_others(done, tmp_path):
    scans, first, records = done
    insert(of_patients(), scans, tmp_path / "again", 3, print, (2, 2))
    files = [path.relative_to(first) for path in first.rglob("*") if path.is_file()]
    assert len(files) == 10
    assert all((first / file).read_bytes() == (tmp_path / "again" / file).read_bytes() for file in files)
    assert insert(of_patients(), scans, tmp_path / "other", 4, print, (2, 2))[0] != records


def test_a_nodule_at_the_pleura_is_laid_there_in_its_slices_by_lot(scans, tmp_path):
    """A wall across the slices' edge fits a wall there in two turns, that differ by a reflection along the slices."""
    balls = tissue_balls(wall=True)
    glass = balls._replace(values=np.where(balls.values == 20, -600, balls.values).astype(np.int16))
    made = [insert(glass, scans, tmp_path / str(seed), seed, print, (3, 3))[0] for seed in range(4)]
    records = [record for part in made for record in part]
    assert len(records) >= 8
    assert all(record.pleura_mm < 1.5 for record in records)
    assert {record.turn[1] for record in records} == {"z"}  # pixels are sharper than slices, so none is turned out of them
    assert {record.turn[0] for record in records} == {"+", "-"}
    before, after = (voxels(root / HEADERS["a"]).astype(int) for root in (scans, tmp_path / "0"))
    assert (after - before)[before > -100].min() > -300  # the wall stays, because it is denser


def test_annotated_nodules_tell_how_far_from_the_pleura_new_ones_lie(scans, tmp_path):
    # 8 mm under the surface of the lung's deepest slice, which runs through (x, 85.5 mm).
    write_annotations(scans, [("a", 20.0 + 0.1 * i, 85.5, -236.25, 4.0) for i in range(25)])
    records, lines = insert(tissue_balls(diameter_mm=5.0), scans, tmp_path / "many", 0, print, (3, 3))
    assert "as deep as 25 annotated nodules" in lines[1]
    median = float(lines[1].split("median ")[1].split()[0])
    assert all(abs(record.pleura_mm - median) < 4 for record in records)


def test_what_cannot_be_used_is_named_and_the_rest_is_done(scans, tmp_path):
    write_chest(scans / "wall.mhd", lung=False)
    (scans / "broken.mhd").write_text("no header")
    for path in (scans / "subset0").glob("a.*"):
        shutil.copy(path, scans / "subset1" / path.name)
    with (scans / "annotations.csv").open("a") as file:
        file.write("turned,900,85.5,-250,6,\nturned,20,left,-250,6,\n")
    nodules = joined(tissue_balls(), tissue_balls(1, diameter_mm=90.0).with_columns(name=["large"]))
    records, lines = insert(nodules, scans, tmp_path / "out", 0, print, (4, 4))
    assert {record.seriesuid for record in records} == set(HEADERS)
    images = json.loads((tmp_path / "out/detection.json").read_text())["training"]
    assert len(images[1]["box"]) == sum(record.seriesuid == "turned" for record in records)  # none of the one outside
    assert not (tmp_path / "out/wall.mhd").exists()
    for words in (
        "places: anywhere in the lung",
        "1 scans got no nodule",
        "subset1/a.mhd: is also in subset0",
        "annotations.csv line 4: coordY must be a finite number",
        "annotations.csv line 3: the nodule lies outside the scan turned.mhd",
        "broken.mhd: ",
        "large found no place: no lung ",
    ):
        assert sum(line.startswith(words) for line in lines) == 1, words


def test_where_others_leave_no_place_the_error_is_one_line_and_nothing_is_written(scans, tmp_path):
    write_annotations(scans, [("a", 20.0, 85.5, -250.0, 500.0), ("turned", -40.0, 10.0, -250.0, 500.0)])
    with pytest.raises(DataError, match=r"must find a place in .* are too near to another nodule") as caught:
        insert(tissue_balls(1), scans, tmp_path / "out", 0, print)
    assert "\n" not in str(caught.value)
    assert [*tmp_path.iterdir()] == [scans]


def test_the_command_reads_a_folder_of_cubes_and_names_those_it_leaves_out(scans, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "cubes"
    write_cubes(folder)
    stored("masks/n0.nii.gz", lambda data: data[:60])(folder)
    words = ("insert", folder, scans, "--out", tmp_path / "out", "--per-scan", 1, 1, "--cache", tmp_path / "cache")
    lines = lines_of(capsys, *words)
    assert f"2 nodules in 2 scans: {tmp_path / 'out'}" in lines
    assert sum(line.startswith("n0.nii.gz (nodules.csv line 2): the mask") for line in lines) == 1
    assert (tmp_path / "out/insertions.png").read_bytes().startswith(b"\x89PNG")
    assert "--out must be a folder that is new or empty" in refusal(capsys, *words)
    monkeypatch.setattr("gmmae.cli.insert.prepare", None)  # wrong scans are told before nodules are read
    assert "SCANS must be a folder" in refusal(capsys, "insert", folder, tmp_path / "nowhere", "--out", tmp_path / "new")

"""Whole folders: what is changed, what is kept, and that what is written is found again."""

import csv
import json
import shutil

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data.extraction.prepare import load_prepared, prepare
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError, joined
from gmmae.generation.insertion.insert import insert
from tests.commands import run_gmmae
from tests.generation.chests import tissue_balls, write_annotations, write_chest, write_scans


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
    """The folder of scans, the output folder and the summary of an insertion."""
    root = tmp_path_factory.mktemp("done")
    scans, out = write_scans(root / "scans"), root / "out"
    return scans, out, insert(of_patients(), scans, out, 3, silent, (2, 2))


PATIENTS = {f"n{i}": f"source{i // 2}" for i in range(6)}


def of_patients():
    """Six balls, two of each patient."""
    return tissue_balls().with_columns(group=list(PATIENTS.values()))


def silent(line):
    pass


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def voxels(path):
    return sitk.GetArrayFromImage(sitk.ReadImage(str(path)))


def test_scans_change_around_the_masks_only_and_keep_their_geometry_and_header(done):
    scans, out, summary = done
    assert summary.scans == 2
    assert len(summary.records) == 4
    for header in ("subset0/a.mhd", "subset1/turned.mhd"):
        old, new = voxels(scans / header), voxels(out / header)
        mask = sitk.ReadImage(str(out / "masks" / f"{(out / header).stem}.nii.gz"))
        label = sitk.GetArrayFromImage(mask)
        assert set(np.unique(label)) == {0, 1, 2}
        # The band is 2 mm, a slice's distance, wide; a voxel's corner may be half a voxel nearer than its centre.
        away = sitk.SignedMaurerDistanceMap(mask != 0, squaredDistance=False, useImageSpacing=True)
        far = sitk.GetArrayFromImage(away) > 2.0 + 2.0
        assert new.dtype == old.dtype == np.int16
        assert np.array_equal(new[far], old[far])
        assert (new[label > 0] - old[label > 0]).mean() > 500
        a, b = (sitk.ReadImage(str(root / header)) for root in (scans, out))
        assert (a.GetOrigin(), a.GetSpacing(), a.GetDirection()) == (b.GetOrigin(), b.GetSpacing(), b.GetDirection())
        assert mask.GetDirection() == b.GetDirection()
        assert np.allclose(mask.GetOrigin(), b.GetOrigin(), atol=1e-4)
        storage = ("CompressedData", "ElementDataFile")
        lines, kept = ([s for s in (r / header).read_text().splitlines() if not s.startswith(storage)] for r in (scans, out))
        assert kept == sorted(lines, key=lambda line: "ByteOrder" in line)


def test_prepare_finds_each_nodule_where_its_voxels_changed(done, tmp_path):
    scans, out, summary = done
    config = DataConfig(source="luna16", root=str(out), cache=str(tmp_path / "cache"), workers=1, scan_time_limit_s=None)
    prepared = prepare(config, silent)
    assert prepared.summary["faults"] == []
    nodules = load_prepared(prepared)
    assert len(nodules.names) == 5
    headers = {"a": "subset0/a.mhd", "turned": "subset1/turned.mhd"}
    for row in summary.records:
        new = sitk.ReadImage(str(out / headers[row.seriesuid]))
        label = voxels(out / "masks" / f"{row.seriesuid}.nii.gz")
        changed = (voxels(scans / headers[row.seriesuid]) != sitk.GetArrayFromImage(new)) & (label == row.label)
        places = [
            new.TransformContinuousIndexToPhysicalPoint([float(i) for i in index[::-1]]) for index in np.argwhere(changed)
        ]
        distances = np.linalg.norm(nodules.centre_mm - np.mean(places, axis=0), axis=1)
        found = int(np.argmin(distances))
        assert distances[found] < 0.5
        assert nodules.diameter_mm[found] == 8.0
        assert nodules.values[found][6:10, 6:10, 6:10].mean() > -200  # and tissue is there


def test_a_nodule_gets_the_noise_that_it_lacks(scans, tmp_path):
    """The scans have noise of 25 HU. The nodules are faint, because an edge is taken for noise in so small ones."""
    balls = tissue_balls(diameter_mm=12.0)
    assert balls.masks is not None
    faint = np.where(balls.masks > 0, -780, -800)
    own = np.random.default_rng(0).normal(0, 90, faint.shape)
    added = {}
    for name, values in {"smooth": faint, "noisy": faint + own}.items():
        made = insert(balls._replace(values=values.astype(np.int16)), scans, tmp_path / name, 3, silent, (2, 2))
        assert [row.scan_noise_hu for row in made.records] == pytest.approx([25] * 4, rel=0.05)
        added[name] = [row.noise_hu for row in made.records]
    assert added["smooth"] == pytest.approx([25] * 4, rel=0.05)
    assert max(added["noisy"]) < 15


def test_old_rows_are_kept_and_new_ones_name_their_nodule(done):
    _, out, summary = done
    rows = table(out / "annotations.csv")
    old = [row for row in rows if not row["inserted"]]
    assert [(row["seriesuid"], row["coordX"], row["diameter_mm"]) for row in old] == [("a", "20.0", "6.5")]
    new = [row for row in rows if row["inserted"]]
    assert [row["inserted"] for row in new] == [row.nodule for row in summary.records]
    # The host's patient has the old line, and the nodule's own patient the new one: a division must keep both together.
    assert [row["patient"] for row in rows] == ["p1", *(row.patient for row in summary.records)]
    assert {row.nodule: row.patient for row in summary.records}.items() <= PATIENTS.items()
    record = table(out / "insertions.csv")
    assert [row["nodule"] for row in record] == [row.nodule for row in summary.records]
    assert all(float(row["displaced_hu"]) < -700 for row in record)


def test_monais_boxes_hold_the_masks(done):
    _, out, summary = done
    images = json.loads((out / "detection.json").read_text())["training"]
    assert [image["image"] for image in images] == ["subset0/a.mhd", "subset1/turned.mhd"]
    assert [len(image["box"]) for image in images] == [3, 2]
    assert images[0]["box"][0] == [20.0, 85.5, -250.125, 6.5, 6.5, 6.5]
    for image in images:
        assert image["label"] == [0] * len(image["box"])
        uid = image["image"].split("/")[1].removesuffix(".mhd")
        scan, label = sitk.ReadImage(str(out / image["image"])), voxels(out / "masks" / f"{uid}.nii.gz")
        for row, box in zip((r for r in summary.records if r.seriesuid == uid), image["box"][-2:], strict=True):
            centre, width = np.array(box[:3]), np.array(box[3:])
            corners = [
                scan.TransformContinuousIndexToPhysicalPoint((index[::-1] + side).tolist())
                for index in np.argwhere(label == row.label)
                for side in (-0.5, 0.5)
            ]
            assert np.allclose(np.max(corners, axis=0), centre + width / 2)
            assert np.allclose(np.min(corners, axis=0), centre - width / 2)


def test_a_seed_gives_the_same_folder_again_and_another_one_another(done, tmp_path):
    scans, first, _ = done
    for name, seed in (("again", 3), ("other", 4)):
        insert(of_patients(), scans, tmp_path / name, seed, silent, (2, 2))
    files = [p.relative_to(first) for p in first.rglob("*") if p.is_file()]
    assert len(files) == 10
    for file in files:
        assert (first / file).read_bytes() == (tmp_path / "again" / file).read_bytes(), file
    assert (first / "insertions.csv").read_bytes() != (tmp_path / "other" / "insertions.csv").read_bytes()


def test_a_nodule_at_the_pleura_is_laid_there(scans, tmp_path):
    attached = insert(tissue_balls(wall=True), scans, tmp_path / "out", 0, silent, (2, 2))
    assert len(attached.records) >= 2
    assert all(row.pleura_mm < 1.5 for row in attached.records)
    assert {row.turn for row in attached.records} != {"+z+y+x"}
    assert {row.turn[1] for row in attached.records} == {"z"}  # pixels are sharper than slices, so none is turned out of them


def test_turns_that_fit_as_well_are_drawn_by_lot(scans, tmp_path):
    """A wall across the slices' edge fits a wall there in two turns, that differ by a reflection along the slices."""
    turns = {
        row.turn
        for seed in range(4)
        for row in insert(tissue_balls(wall=True), scans, tmp_path / str(seed), seed, silent, (3, 3)).records
    }
    assert {turn[0] for turn in turns} == {"+", "-"}


def test_a_nodule_that_fits_nowhere_is_named_and_the_others_are_inserted(scans, tmp_path):
    large = tissue_balls(1, diameter_mm=90.0).with_columns(name=["large"])
    summary = insert(joined(tissue_balls(2), large), scans, tmp_path / "out", 0, silent)
    assert len(summary.records) == 2
    assert len(summary.unplaced) == 1
    assert summary.unplaced[0].startswith("large found no place: no lung is as wide as its ")
    assert summary.unplaced[0] in summary.lines()


def test_a_scan_without_a_lung_gets_nothing_and_is_counted(scans, tmp_path):
    write_chest(scans / "wall.mhd", lung=False)
    (scans / "broken.mhd").write_text("no header")
    summary = insert(tissue_balls(20), scans, tmp_path / "out", 0, silent, (1, 1))
    assert (summary.scans, summary.empty) == (2, 1)
    assert summary.faults[0].startswith("broken.mhd: ")
    assert "1 scans got no nodule and are not in the folder" in summary.lines()
    assert not (tmp_path / "out" / "wall.mhd").exists()


def test_scans_that_are_not_in_hu_and_rows_that_lie_outside_are_named(scans, tmp_path):
    whole = voxels(scans / "subset0/a.mhd").astype(np.float32)
    for name, values in (("shares", (whole + 1000) / 1400), ("damaged", np.where(whole > 90, np.nan, whole))):
        sitk.WriteImage(sitk.GetImageFromArray(values), str(scans / f"{name}.mhd"))
    with (scans / "annotations.csv").open("a") as file:
        file.write("turned,900,85.5,-250,6,\nturned,20,left,-250,6,\n")
    summary = insert(tissue_balls(), scans, tmp_path / "out", 0, silent, (1, 1))
    assert {row.seriesuid for row in summary.records} == {"a", "turned"}
    images = json.loads((tmp_path / "out" / "detection.json").read_text())["training"]
    assert [len(image["box"]) for image in images] == [2, 1]  # the annotation outside of its scan has no box
    wanted = [
        "annotations.csv line 4: coordY must be a finite number; got left",
        "annotations.csv line 3: the point (900, 85.5, -250) mm lies outside the scan turned.mhd",
        "damaged.mhd: voxels must be finite numbers; ",
        "shares.mhd: voxels must be HU; got ",
    ]
    assert sorted(summary.faults) == [next(f for f in summary.faults if f.startswith(start)) for start in sorted(wanted)]
    assert set(summary.faults) <= set(summary.lines())


def test_annotated_nodules_tell_how_far_from_the_pleura_new_ones_lie(done, scans, tmp_path):
    assert done[2].pleural_distances.startswith("anywhere in the lung")
    # 8 mm under the surface of the lung's deepest slice, which runs through (x, 85.5 mm).
    write_annotations(scans, [("a", 20.0 + 0.1 * i, 85.5, -236.25, 4.0) for i in range(25)])
    summary = insert(tissue_balls(diameter_mm=5.0), scans, tmp_path / "many", 0, silent, (3, 3))
    assert summary.pleural_distances.startswith("distances to the pleura of the 25 annotated nodules")
    median = float(summary.pleural_distances.split("median ")[1].split()[0])
    assert all(abs(row.pleura_mm - median) < 4 for row in summary.records)


@pytest.mark.parametrize(
    ("nodules", "folder", "message"),
    [
        (tissue_balls(1)._replace(masks=None), "scans", "nodules to insert must have masks"),
        (tissue_balls(1)._replace(masks=np.zeros((1, 16, 16, 16))), "scans", "that of n0 has none"),
        (tissue_balls(1), "missing", r"SCANS must be a folder of \.mhd scans"),
        (tissue_balls(1), "empty", r"SCANS must hold \.mhd scans"),
        (tissue_balls(1, diameter_mm=90.0), "scans", "a nodule must find a place in "),
    ],
)
def test_errors_are_one_line_and_write_nothing(nodules, folder, message, scans, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=message) as caught:
        insert(nodules, tmp_path / folder, tmp_path / "out", 0, silent)
    assert "\n" not in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} == {"scans", "empty"}


def cubes(folder, nodules):
    """Writes nodules as a folder of cubes."""
    for kind, arrays in (("images", nodules.values), ("masks", nodules.masks)):
        (folder / kind).mkdir(parents=True)
        for name, array in zip(nodules.names, arrays, strict=True):
            image = sitk.GetImageFromArray(array)
            image.SetSpacing([float(nodules.edge_mm[0]) / 16] * 3)
            sitk.WriteImage(image, str(folder / kind / f"{name}.nii.gz"))
    lines = ["file,category,diameter_mm", *(f"{name}.nii.gz,solid,8" for name in nodules.names)]
    (folder / "nodules.csv").write_text("\n".join(lines) + "\n")
    return folder


def command(folder, scans, tmp_path):
    """The exit code of `gmmae insert`."""
    return run_gmmae(*("insert", folder, scans, "--out", tmp_path / "out", "--per-scan", 1, 1, "--cache", tmp_path / "cache"))


def test_the_command_tells_wrong_scans_before_it_reads_nodules(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("gmmae.cli.insert.prepare", None)
    assert command(tmp_path / "cubes", tmp_path / "nowhere", tmp_path) == 2
    assert "SCANS must be a folder of .mhd scans; got " in capsys.readouterr().err


def test_the_command_reads_a_folder_of_cubes_and_refuses_a_folder_with_files(scans, tmp_path, capsys):
    folder = cubes(tmp_path / "cubes", tissue_balls(3))
    assert command(folder, scans, tmp_path) == 0
    assert f"2 nodules in 2 scans: {tmp_path / 'out'}" in capsys.readouterr().out
    assert (tmp_path / "out" / "insertions.png").read_bytes().startswith(b"\x89PNG")
    assert command(folder, scans, tmp_path) == 2
    assert "--out must be a folder that is new or empty; got " in capsys.readouterr().err


def test_cubes_that_are_left_out_are_named(scans, tmp_path, capsys):
    folder = cubes(tmp_path / "cubes", tissue_balls(6))
    (folder / "images" / "n0.nii.gz").write_bytes(b"")
    for name in ("images/n1.nii.gz", "masks/n2.nii.gz"):
        (folder / name).write_bytes((folder / name).read_bytes()[:200])
    rows = folder / "nodules.csv"
    rows.write_text(rows.read_text().replace("n3.nii.gz,solid,8", "n3.nii.gz,solid,nan"))
    assert command(folder, scans, tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    for place in ("n0.nii.gz", "n1.nii.gz", "n2.nii.gz (nodules.csv line 4): the mask n2.nii.gz", "nodules.csv line 5"):
        assert sum(line.startswith(place) for line in lines) == 1, place


def test_files_that_a_mac_leaves_are_no_scans(done, scans, tmp_path):
    for path in list(scans.glob("subset*/*")):
        (path.parent / f"._{path.name}").write_bytes(b"\0\5\x16\7Mac OS X")
    (scans / "._b.mhd").write_bytes(b"")
    summary = insert(of_patients(), scans, tmp_path / "out", 3, silent, (2, 2))
    assert summary._replace(out=done[1]) == done[2]


def test_a_scan_that_is_there_twice_is_named(scans, tmp_path):
    for path in (scans / "subset0").glob("a.*"):
        shutil.copy(path, scans / "subset1" / path.name)
    summary = insert(tissue_balls(), scans, tmp_path / "out", 3, silent)
    assert "subset1/a.mhd: is also in subset0, which is used: remove one of the two" in summary.lines()


def test_annotations_may_be_spelled_otherwise_but_must_be_a_file(done, scans, tmp_path):
    path = scans / "annotations.csv"
    head, _, rows = path.read_text().partition("\n")
    path.write_text("\n" + head.upper().replace("COORD", "Coord ").replace(",", " , ") + "\n" + rows.replace(",", " , "))
    summary = insert(of_patients(), scans, tmp_path / "out", 3, silent, (2, 2))
    assert summary._replace(out=done[1]) == done[2]
    assert table(tmp_path / "out" / "annotations.csv") == table(done[1] / "annotations.csv")
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=r"annotations\.csv is no file"):
        insert(tissue_balls(), scans, tmp_path / "none", 3, silent)

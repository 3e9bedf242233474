import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from gmmae.data.config import DataConfig
from gmmae.data.extraction import cubes
from gmmae.data.extraction.prepare import load, load_prepared, prepare
from gmmae.data.volumes import DataError

QUIET: list[str] = []
POINT = (12.3, -45.6, 78.9)


@pytest.fixture
def config(tmp_path):
    (tmp_path / "cubes").mkdir()
    return DataConfig(
        source="cubes",
        root=str(tmp_path / "cubes"),
        cache=str(tmp_path / "cache"),
        edge="20mm",
        workers=1,
        scan_time_limit_s=0.0,
    )


@pytest.fixture
def folder(tmp_path, config):
    return tmp_path / "cubes"


@pytest.mark.parametrize("suffix", [".nii.gz", ".nii", ".mhd", ".mha", ".nrrd"])
def test_the_same_volume_in_every_format_gives_the_same_cube(config, folder, blob_scan, write_scan, write_csv, suffix):
    # NIfTI keeps its affine in single precision: less than 1e-5 mm here, and less than 1 HU.
    scan = blob_scan(POINT, np.diag([-1, -1, 1]), (0.6, 0.6, 2.5))
    write_scan(folder / f"one{suffix}", scan)
    write_csv(folder / "nodules.csv", [(f"one{suffix}", *POINT)], ("file", "coordX", "coordY", "coordZ"))
    nodules = load(config, QUIET.append)
    reference = load(reference_config(config, scan, write_scan, write_csv), QUIET.append)
    assert nodules.names == (f"one{suffix}",)
    assert nodules.groups == (f"one{suffix}",)
    assert np.abs(nodules.hu.astype(int) - reference.hu).max() <= 1
    assert nodules.hu[0, 7:9, 7:9, 7:9].min() > 100


def reference_config(config, scan, write_scan, write_csv):
    root = Path(config.root).parent / "luna"
    write_scan(root / "a.mhd", scan)
    write_csv(root / "annotations.csv", [("a", *POINT, 8)])
    return dataclasses.replace(config, source="luna16", root=str(root))


def test_without_coordinates_the_middle_of_the_volume_is_cut(config, folder, write_csv):
    voxels = np.full((30, 40, 50), -800, np.int16)
    voxels[13:17, 18:22, 23:27] = 100
    np.save(folder / "plain.npy", voxels)
    np.save(folder / "spaced.npy", voxels)
    rows = [("plain.npy", 8, "", "", ""), ("spaced.npy", 8, 0.5, 0.5, 2)]
    write_csv(folder / "nodules.csv", rows, ("file", "diameter_mm", "spacingX", "spacingY", "spacingZ"))
    config = dataclasses.replace(config, edge="2x")
    plain, spaced = load(config, QUIET.append).hu
    # 16 mm in 16 voxels: voxel for voxel. Half the spacing in the plane shows 2 mm of the nodule, twice it in z shows 8.
    np.testing.assert_array_equal(plain, voxels[7:23, 12:28, 17:33])
    assert (spaced > -350).sum((1, 2)).astype(bool).sum() == 8
    assert [(spaced[8] > -350).sum(axis).astype(bool).sum() for axis in (0, 1)] == [2, 2]


def test_arrays_that_are_cubes_already_are_taken_as_they_are(config, folder, write_csv):
    voxels = np.random.default_rng(0).integers(-1000, 400, (3, 16, 16, 16)).astype(np.int16)
    np.save(folder / "a.npy", voxels[0])
    np.savez(folder / "b.npz", volume=voxels[1].astype(np.float32), mask=voxels[1] > 0)
    np.savez_compressed(folder / "c.npz", anything=np.asfortranarray(voxels[2]))
    rows = [("a.npy", "P1", "solid"), ("b.npz", "P1", ""), ("c.npz", "P2", "solid")]
    write_csv(folder / "nodules.csv", rows, ("file", "patient", "category"))
    nodules = load(dataclasses.replace(config, edge="1.25x"), QUIET.append)
    np.testing.assert_array_equal(nodules.hu, voxels)
    assert nodules.groups == ("P1", "P1", "P2")
    assert nodules.categories == ("solid", "", "solid")
    assert nodules.masks is not None
    np.testing.assert_array_equal(nodules.masks, np.stack([0 * voxels[0], voxels[1] > 0, 0 * voxels[2]]))


def test_one_npz_of_arrays(config, folder):
    rng = np.random.default_rng(0)
    volumes = rng.integers(-1000, 400, (4, 16, 16, 16)).astype(np.int16)
    masks = volumes > 0
    path = folder / "all.npz"
    np.savez_compressed(path, volumes=volumes, masks=masks, groups=[3, 3, 4, 5], categories=list("xyxy"), names=list("abcd"))
    nodules = load(dataclasses.replace(config, root=str(path)), QUIET.append)
    np.testing.assert_array_equal(nodules.hu, volumes)
    np.testing.assert_array_equal(nodules.masks, masks)
    assert nodules[1:4] == (tuple("abcd"), ("3", "3", "4", "5"), tuple("xyxy"))


def test_one_npz_of_larger_arrays_is_resampled(config, folder):
    volumes = np.full((3, 30, 40, 50), -800.0, np.float32)
    volumes[:, 13:17, 18:22, 23:27] = 100
    volumes[2, 15, 20, 25] = np.nan
    path = folder / "all.npz"
    np.savez(path, volumes=np.asfortranarray(volumes), diameter_mm=[8.0, -1.0, 8.0], spacing_mm=np.ones((3, 3)))
    prepared = prepare(dataclasses.replace(config, root=str(path), edge="2x"), QUIET.append)
    nodules, details = load_prepared(prepared)
    np.testing.assert_array_equal(nodules.hu[0], volumes[0, 7:23, 12:28, 17:33])
    assert nodules.names == nodules.groups == ("all_00000",)
    assert details.places == ("volumes[0]",)
    assert details.edge_mm.tolist() == [16]
    assert [(f["kind"], f["place"]) for f in prepared.summary["faults"]] == [
        ("nodule", "all.npz (volumes[2])"),
        ("row", "all.npz volumes[1]"),
    ]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros((2, 16, 16, 16))}, "must hold an array volumes; it has images"),
        ({"volumes": np.zeros((16, 16, 16))}, r"must have the axes N, z, y, x; got the shape \(16, 16, 16\)"),
        (
            {"volumes": np.zeros((2, 16, 16, 16)), "groups": ["a"]},
            r"groups must have the shape \(2,\), as volumes has; got \(1,\)",
        ),
        ({"volumes": np.zeros((2, 16, 16, 16)), "masks": np.zeros((2, 4, 4, 4))}, "masks must have the shape of volumes"),
        ({"volumes": np.zeros((2, 16, 16, 16)), "names": ["a", "a"]}, "names must differ from each other; 1 are repeated"),
        ({"volumes": np.array([None, 1])}, "Python objects, which are never unpickled"),
    ],
)
def test_arrays_that_do_not_belong_together(config, folder, arrays, message):
    np.savez(folder / "all.npz", **arrays)
    with pytest.raises(DataError, match=message) as error:
        cubes.plan(dataclasses.replace(config, root=str(folder / "all.npz")))
    assert "\n" not in str(error.value)


def test_masks_are_found_beside_their_volumes(config, folder, blob_scan, write_scan, write_csv):
    scan = blob_scan(POINT, np.diag([-1, -1, 1]), (0.6, 0.6, 2.5))
    bright = scan._replace(voxels=(scan.voxels > -300).astype(np.uint8))
    for name in ("a", "b", "c"):
        write_scan(folder / "images" / f"{name}.nii.gz", scan)
    write_scan(folder / "masks" / "a.nii.gz", bright)
    write_scan(folder / "other" / "b_mask.nrrd", bright)
    rows = [("a.nii.gz", *POINT, ""), ("b.nii.gz", *POINT, "other/b_mask.nrrd"), ("c.nii.gz", *POINT, "")]
    write_csv(folder / "nodules.csv", rows, ("file", "coordX", "coordY", "coordZ", "mask"))
    prepared = prepare(config, QUIET.append)
    nodules, _ = load_prepared(prepared)
    assert prepared.summary["masks"] == 2
    assert nodules.masks is not None
    np.testing.assert_array_equal(nodules.masks[0], nodules.masks[1])
    assert not nodules.masks[2].any()
    # The mask's edge is the half height of the blob, up to a voxel of either grid.
    agreement = (nodules.masks[0] == (nodules.hu[0] > -300)).mean()
    assert agreement > 0.97
    assert nodules.masks[0].sum() > 50


def test_each_broken_volume_is_a_fault_and_the_rest_goes_on(config, folder, blob_scan, write_scan, write_csv):
    sound = np.full((20, 20, 20), -500, np.int16)
    np.save(folder / "sound.npy", sound)
    np.save(folder / "objects.npy", np.array([{}]), allow_pickle=True)
    np.save(folder / "flat.npy", sound[0])
    np.save(folder / "nan.npy", np.full((20, 20, 20), np.nan))
    np.save(folder / "windowed.npy", np.full((20, 20, 20), 0.5))
    np.save(folder / "short.npy", sound)
    os.truncate(folder / "short.npy", 5000)
    np.savez(folder / "two.npz", a=sound, b=sound)
    np.savez(folder / "short.npz", volume=sound)
    os.truncate(folder / "short.npz", 5000)
    (folder / "no.txt").write_text("hello")
    (folder / "fake.npy").write_text("hello")
    write_scan(folder / "short.nii.gz", blob_scan(POINT, np.eye(3), (1, 1, 1)))
    os.truncate(folder / "short.nii.gz", 5000)
    names = sorted(p.name for p in folder.iterdir())
    rows = [(name, "") for name in names] + [("gone.npy", ""), ("../sound.npy", ""), ("sound.npy", "gone_mask.npy")]
    write_csv(folder / "nodules.csv", rows, ("file", "mask"))
    summary = prepare(config, QUIET.append).summary
    assert summary["nodules"] == 1
    assert summary["annotations"] == len(rows) == summary["nodules"] + summary["lost"]
    by_line = f"nodules.csv line {len(rows)}"
    texts = {
        fault["place"] if fault["kind"] == "row" else fault["place"].split(" ")[0]: fault["text"] for fault in summary["faults"]
    }
    expected = {
        "objects.npy": "Python objects, which are never unpickled",
        "flat.npy": "must have 3 axes, z, y, x; this one has the shape (20, 20)",
        "nan.npy": "must be finite HU",
        "windowed.npy": "looks windowed already",
        "short.npy": "truncated .npy: the header promises 16128 bytes, short.npy has 5000",
        "two.npz": "must hold an array volume, or only one; it has a, b",
        "short.npz": "short.npz cannot be read as arrays",
        "no.txt": "must end in .npy, .npz, .mhd",
        "fake.npy": "fake.npy cannot be read as arrays",
        "short.nii.gz": "truncated .nii.gz: the header promises 240352 bytes",
        "gone.npy": "there is no such file",
        by_line: "file must be a name inside data.root; got '../sound.npy'",
    }
    for name, text in expected.items():
        assert text in texts[name], name
    assert texts[f"nodules.csv line {len(rows) + 1}"].startswith("names the place of line")


def test_a_mask_that_is_missing_or_broken_costs_its_nodule_only(config, folder, write_csv):
    for name in ("a", "b", "c", "d"):
        np.save(folder / f"{name}.npy", np.full((20, 20, 20), -500, np.int16))
    np.save(folder / "small.npy", np.ones((4, 4, 4)))
    (folder / "broken.nrrd").write_text("hello")
    rows = [("a.npy", "gone.npy"), ("b.npy", "small.npy"), ("c.npy", "broken.nrrd"), ("d.npy", "")]
    write_csv(folder / "nodules.csv", rows, ("file", "mask"))
    prepared = prepare(config, QUIET.append)
    assert load_prepared(prepared)[0].names == ("d.npy",)
    assert [fault["kind"] for fault in prepared.summary["faults"]] == ["nodule"] * 3
    texts = [fault["text"] for fault in prepared.summary["faults"]]
    assert texts[0] == "the mask must have the shape of its volume, (20, 20, 20); got (4, 4, 4)"
    assert texts[1].startswith("the mask broken.nrrd: the header cannot be read")
    assert texts[2] == "there is no such mask; nodules.csv line 2 names it"


def test_an_unknown_diameter_is_said(config, folder, write_csv):
    np.save(folder / "a.npy", np.zeros((20, 20, 20), np.int16))
    write_csv(folder / "nodules.csv", [("a.npy",)], ("file",))
    with pytest.raises(
        DataError, match=r"data.edge = 2x needs a column diameter_mm; there is none: give data.edge in mm, or whole"
    ):
        prepare(dataclasses.replace(config, edge="2x"), QUIET.append)


def test_folders_without_what_is_needed(config, folder):
    with pytest.raises(DataError, match=r"nodules.csv is not there \(the folder holds nothing\)"):
        cubes.plan(config)
    for root in ("", str(folder / "gone"), str(folder / "gone.npz")):
        with pytest.raises(DataError, match=r"must be a folder of volumes or one .npz when data.source is cubes"):
            cubes.plan(dataclasses.replace(config, root=root))


@pytest.mark.parametrize("name", ["../x.npy", "a/../../x.npy", "/x.npy", "C:\\x.npy", "..\\x.npy", "\\x.npy"])
def test_names_that_lead_out_of_the_folder_are_refused(config, folder, write_csv, name):
    np.save(folder.parent / "x.npy", np.zeros((16, 16, 16)))
    write_csv(folder / "nodules.csv", [(name,)], ("file",))
    plan = cubes.plan(config)
    assert plan.tasks == ()
    assert "must be a name inside data.root" in plan.faults[0].text


def test_the_real_nodules(shared_data, tmp_path):
    # All 770 take six seconds; every twelfth shows whether they are read rightly.
    root = tmp_path / "some"
    root.mkdir()
    for name in ("images", "masks"):
        (root / name).symlink_to(shared_data / "luna16_nodules" / name)
    lines = (shared_data / "luna16_nodules" / "nodules.csv").read_text().splitlines(True)
    (root / "nodules.csv").write_text("".join([lines[0], *lines[1::12]]))
    config = DataConfig(source="cubes", root=str(root), cache=str(tmp_path), fill="replicate", workers=1, scan_time_limit_s=0.0)
    prepared = prepare(config, QUIET.append)
    nodules, _ = load_prepared(prepared)
    assert len(nodules.hu) == len(lines[1::12])
    assert not prepared.summary["faults"]
    assert nodules.masks is not None
    # Readers drew the masks around what LUNA16's coordinates are the middle of.
    steps = (np.arange(16) + 0.5) / 16 - 0.5
    offsets = [
        np.linalg.norm([(mask * s).sum() / mask.sum() for s in np.meshgrid(steps, steps, steps, indexing="ij")])
        for mask in nodules.masks
    ]
    assert np.median(offsets) < 0.05
    inside = [cube[mask > 0].mean() - cube[mask == 0].mean() for cube, mask in zip(nodules.hu, nodules.masks, strict=True)]
    assert np.median(inside) > 150

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data import sources
from gmmae.data.extraction import cubes
from gmmae.data.extraction.prepare import load, load_prepared, prepare
from gmmae.data.extraction.summary import lines
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError, central_section

POINT = (12.3, -45.6, 78.9)
SERIAL: Any = {"source": "cubes", "workers": 1, "scan_time_limit_s": None}


@pytest.fixture
def config(tmp_path):
    (tmp_path / "cubes").mkdir()
    return DataConfig(root=str(tmp_path / "cubes"), cache=str(tmp_path / "cache"), crop="20mm", **SERIAL)


@pytest.fixture
def folder(config):
    return Path(config.root)


@pytest.mark.parametrize("suffix", [".nii.gz", ".nii", ".mhd", ".mha", ".nrrd"])
def test_the_same_volume_in_every_format_gives_the_same_cube(config, folder, blob_scan, write_scan, write_csv, suffix):
    # NIfTI keeps its affine in single precision: less than 1e-5 mm here, and less than 1 HU.
    scan = blob_scan(POINT, np.diag([-1, -1, 1]), (0.6, 0.6, 2.5))
    write_scan(folder / f"one{suffix}", scan)
    write_csv(folder / "nodules.csv", [(f"one{suffix}", *POINT)], ("file", "coordX", "coordY", "coordZ"))
    nodules = load(config)
    root = folder.parent / "luna"
    write_scan(root / "a.mhd", scan)
    write_csv(root / "annotations.csv", [("a", *POINT, 8)])
    reference = load(dataclasses.replace(config, source="luna16", root=str(root)))
    assert nodules.names == nodules.groups == (f"one{suffix}",)
    assert np.abs(nodules.values.astype(int) - reference.values).max() <= 1
    assert nodules.values[0, 7:9, 7:9, 7:9].min() > 100


def test_without_coordinates_the_middle_of_the_volume_is_cut(config, folder, write_csv):
    voxels = np.full((30, 40, 50), -800, np.int16)
    voxels[13:17, 18:22, 23:27] = 100
    np.save(folder / "plain.npy", voxels)
    np.save(folder / "spaced.npy", voxels)
    rows = [("plain.npy", 8, "", "", ""), ("spaced.npy", 8, 0.5, 0.5, 2)]
    write_csv(folder / "nodules.csv", rows, ("file", "diameter_mm", "spacingX", "spacingY", "spacingZ"))
    config = dataclasses.replace(config, crop="2x")
    plain, spaced = load(config).values
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
    nodules = load(dataclasses.replace(config, crop="1.25x"))
    np.testing.assert_array_equal(nodules.values, voxels)
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
    nodules = load(dataclasses.replace(config, root=str(path)))
    np.testing.assert_array_equal(nodules.values, volumes)
    np.testing.assert_array_equal(nodules.masks, masks)
    assert (nodules.names, nodules.groups, nodules.categories) == (tuple("abcd"), ("3", "3", "4", "5"), tuple("xyxy"))


def test_one_npz_of_larger_arrays_is_resampled(config, folder):
    volumes = np.full((3, 30, 40, 50), -800.0, np.float32)
    volumes[:, 13:17, 18:22, 23:27] = 100
    volumes[2, 15, 20, 25] = np.nan
    path = folder / "all.npz"
    np.savez(path, volumes=np.asfortranarray(volumes), diameter_mm=[8.0, -1.0, 8.0], spacing_mm=np.ones((3, 3)))
    prepared = prepare(dataclasses.replace(config, root=str(path), crop="2x"))
    nodules = load_prepared(prepared)
    np.testing.assert_array_equal(nodules.values[0], volumes[0, 7:23, 12:28, 17:33])
    assert nodules.names == ("all_00000",)
    assert nodules.table["place"].tolist() == ["volumes[0]"]
    assert nodules.edge_mm.tolist() == [16]
    assert [(f["kind"], f["place"]) for f in prepared.summary["faults"]] == [
        ("nodule", "all.npz (volumes[2])"),
        ("row", "all.npz volumes[1]"),
    ]


TWO = np.zeros((2, 16, 16, 16))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": TWO}, "array volumes; .* images"),
        ({"volumes": TWO[0]}, r"axes N, z, y, x; got the shape \(16, 16, 16\)"),
        ({"volumes": TWO, "groups": ["a"]}, r"groups must have the shape \(2,\).*; got \(1,\)"),
        ({"volumes": TWO, "masks": np.zeros((2, 4, 4, 4))}, "masks must have the shape"),
        ({"volumes": TWO, "names": ["a", "a"]}, "names must differ .*; 1 "),
        ({"volumes": np.array([None, 1])}, "Python objects"),
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
    prepared = prepare(config)
    nodules = load_prepared(prepared)
    assert prepared.summary["masks"] == 2
    assert nodules.masks is not None
    np.testing.assert_array_equal(nodules.masks[0], nodules.masks[1])
    assert not nodules.masks[2].any()
    # The mask's edge is the half height of the blob, up to a voxel of either grid.
    agreement = (nodules.masks[0] == (nodules.values[0] > -300)).mean()
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
    summary = prepare(config).summary
    assert summary["nodules"] == 1
    assert summary["annotations"] == len(rows) == summary["nodules"] + summary["lost"]
    texts = {
        fault["place"] if fault["kind"] == "row" else fault["place"].split(" ")[0]: fault["text"] for fault in summary["faults"]
    }
    expected = {
        "objects.npy": "Python objects",
        "flat.npy": "data.ndim = 3 axes; .* 2$",
        "nan.npy": "finite numbers",
        "windowed.npy": "windowed already",
        "short.npy": "truncated .npy: .* 16128 bytes .*short.npy has 5000",
        "two.npz": "an array volume, or only one; .* a, b",
        "short.npz": "cannot be read as arrays",
        "no.txt": "must end in .npy, .npz, .mhd",
        "fake.npy": "cannot be read as arrays",
        "short.nii.gz": "truncated .nii.gz: short.nii.gz",
        "gone.npy": "no such file",
        f"nodules.csv line {len(rows)}": "inside data.root; got '../sound.npy'",
        f"nodules.csv line {len(rows) + 1}": r"line \d+",
    }
    for name, text in expected.items():
        assert re.search(text, texts[name]), name


def test_a_mask_that_is_missing_or_broken_costs_its_nodule_only(config, folder, write_csv):
    for name in ("a", "b", "c", "d"):
        np.save(folder / f"{name}.npy", np.full((20, 20, 20), -500, np.int16))
    np.save(folder / "small.npy", np.ones((4, 4, 4)))
    (folder / "broken.nrrd").write_text("hello")
    rows = [("a.npy", "gone.npy"), ("b.npy", "small.npy"), ("c.npy", "broken.nrrd"), ("d.npy", "")]
    write_csv(folder / "nodules.csv", rows, ("file", "mask"))
    prepared = prepare(config)
    assert load_prepared(prepared).names == ("d.npy",)
    assert [fault["kind"] for fault in prepared.summary["faults"]] == ["nodule"] * 3
    texts = [fault["text"] for fault in prepared.summary["faults"]]
    assert re.fullmatch(r"the mask small.npy: .*\(20, 20, 20\); got \(4, 4, 4\)", texts[0])
    assert texts[1].startswith("the mask broken.nrrd: the header cannot be read")
    assert re.search("no such mask; nodules.csv line 2", texts[2])


OWN = {"window": (0.0, 1.0)}
"""A window of the data's own: they are no HU then."""


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_data_of_each_dimension_from_one_npz(config, folder, ndim, axes):
    """Arrays of the grid's shape are taken as they are; of what has more axes than asked for, the central section."""
    shape = {1: (16,), 2: (12, 16), 3: (8, 12, 16)}
    full = {1: (16, 16, 16), 2: (16, 12, 16), 3: (8, 12, 16)}[ndim]
    volumes = np.random.default_rng(0).uniform(0, 1, (5, *full[3 - axes :]))
    np.savez(folder / "all.npz", volumes=volumes.astype(np.float32), masks=volumes > 0.5)
    config = dataclasses.replace(config, root=str(folder / "all.npz"), ndim=ndim, shape=shape[ndim], validation=2, **OWN)
    if axes < ndim:
        with pytest.raises(DataError, match=r"volumes must have the axes N, .*y, x.*; got the shape .*: data.ndim must be"):
            load(config)
        return
    nodules = load(config)
    np.testing.assert_array_equal(nodules.values, volumes.astype(np.float32))
    np.testing.assert_array_equal(nodules.masks, volumes > 0.5)
    divided = sources.load(config)
    np.testing.assert_array_equal(divided.nodules.values, central_section(volumes.astype(np.float32), ndim))
    assert len(divided.split.train) == 3


def test_images_from_arrays(config, folder, write_csv):
    """30 × 40 pixels; a window of 8 × 16 of them around the pixel (x, y) = (21.5, 11.5), each one voxel."""
    pixels = np.random.default_rng(0).integers(0, 255, (30, 40), np.uint8)
    np.save(folder / "image.npy", pixels)
    np.save(folder / "mask.npy", pixels > 99)
    write_csv(folder / "nodules.csv", [("image.npy", 21.5, 11.5, "mask.npy")], ("file", "coordX", "coordY", "mask"))
    config = dataclasses.replace(config, ndim=2, shape=(8, 16), crop="16mm", window=(0.0, 255.0))
    nodules = load_prepared(prepare(config))
    np.testing.assert_array_equal(nodules.values, pixels[None, 8:16, 14:30])
    np.testing.assert_array_equal(nodules.masks, pixels[None, 8:16, 14:30] > 99)
    assert nodules.centre_mm.tolist() == [[21.5, 11.5, 0]]
    assert nodules.filled.tolist() == [0]


def test_signals_from_arrays(config, folder, write_csv):
    signal = np.sin(np.arange(64) / 5)
    np.save(folder / "signal.npy", signal)
    rows = [("signal.npy", 19.75, 0.5), ("signal.npy", 2.75, 0.5)]
    write_csv(folder / "nodules.csv", rows, ("file", "coordX", "spacingX"))
    nodules = load(dataclasses.replace(config, ndim=1, crop="8mm", window=(-1.5, 1.0)))
    np.testing.assert_allclose(nodules.values[0], signal[32:48], rtol=1e-6)  # float32
    np.testing.assert_allclose(nodules.values[1], np.r_[[-1.5] * 2, signal[:14]], rtol=1e-6)  # filled with the window's end


def test_beside_images_of_a_volume_the_central_slice_is_taken(config, folder, write_csv):
    volume = np.random.default_rng(0).uniform(0, 1, (16, 16, 16)).astype(np.float32)
    np.savez(folder / "a.npz", volume=volume, mask=volume > 0.5)
    np.save(folder / "b.npy", volume[3])
    write_csv(folder / "nodules.csv", [("a.npz",), ("b.npy",)], ("file",))
    nodules = load(dataclasses.replace(config, ndim=2, **OWN))
    np.testing.assert_array_equal(nodules.values, volume[[8, 3]])
    np.testing.assert_array_equal(nodules.masks, [volume[8] > 0.5, np.zeros((16, 16))])


def test_what_is_said_of_too_few_axes_is_a_fault(config, folder, write_csv):
    volume = np.zeros((16, 16, 16))
    np.save(folder / "volume.npy", volume)
    np.save(folder / "signal.npy", volume[0, 0])
    np.savez(folder / "masked.npz", volume=volume[0])
    np.save(folder / "mask.npy", volume[0, 0])
    sitk.WriteImage(sitk.GetImageFromArray(volume), str(folder / "mask.mhd"))
    rows = [
        ("volume.npy", 3, 4, "", "", "", ""),
        ("volume.npy", 3, "", "", "", "", ""),
        ("signal.npy", "", "", "", "", "", ""),
        ("masked.npz", "", "", "", "", "", "mask.npy"),
        ("masked.npz", 1, 1, "", "", "", "mask.mhd"),
        ("masked.npz", 2, 1, "", "", "", ""),
    ]
    columns = ("file", "coordX", "coordY", "coordZ", "spacingX", "spacingY", "mask")
    write_csv(folder / "nodules.csv", rows, columns)
    config = dataclasses.replace(config, ndim=2, crop="whole", **OWN)
    texts = {fault["text"] for fault in prepare(config).summary["faults"]}
    assert texts == {
        "coordX, coordY, coordZ must be given for each of the volume's 3 axes; got 2 of them",
        "coordX, coordY must all be given; got 3, -, -",
        "a volume must have at least data.ndim = 2 axes; this one has 1",
        "the mask mask.npy: must have the shape of its volume, (16, 16); got (16,)",
        "the mask mask.mhd: must have the 2 axes of its volume; it has 3",
    }


def test_voxels_are_cubic_where_edges_differ(config, folder, write_csv):
    """A box of 8 × 12 × 16 voxels, 16 mm long, takes as much from a volume with voxels of 1 mm."""
    volume = np.random.default_rng(0).integers(-1000, 400, (20, 30, 40)).astype(np.int16)
    np.save(folder / "a.npy", volume)
    write_csv(folder / "nodules.csv", [("a.npy",)], ("file",))
    boxed = dataclasses.replace(config, shape=(8, 12, 16), crop="16mm")
    np.testing.assert_array_equal(load(boxed).values[0], volume[6:14, 9:21, 12:28])
    flat = dataclasses.replace(boxed, shape=(12, 16), ndim=2)
    np.testing.assert_array_equal(central_section(load(flat).values, 2)[0], volume[10, 9:21, 12:28])


@pytest.mark.parametrize(("size", "edge"), [((10, 15, 20), 40.0), ((10, 10, 20), 60.0), (20, 40.0)], ids=str)
def test_the_whole_volume_fits_into_the_box(config, folder, write_csv, size, edge):
    np.save(folder / "a.npy", np.zeros((20, 30, 40), np.int16))
    write_csv(folder / "nodules.csv", [("a.npy",)], ("file",))
    nodules = load_prepared(prepare(dataclasses.replace(config, shape=size, crop="whole")))
    assert nodules.edge_mm.tolist() == [pytest.approx(edge)]
    assert (nodules.filled[0] == 0) == (size == (10, 15, 20))


def test_values_in_their_own_unit_are_not_rounded_and_nan_is_refused(config, folder):
    volumes = np.random.default_rng(0).uniform(0, 1, (3, 16, 16, 16))
    volumes[2, 0, 0, 0] = np.nan
    np.savez(folder / "all.npz", volumes=volumes)
    config = dataclasses.replace(config, root=str(folder / "all.npz"))
    with pytest.raises(DataError, match=r"windowed already: .*data\.window"):
        prepare(config)
    prepared = prepare(dataclasses.replace(config, **OWN))
    np.testing.assert_array_equal(load_prepared(prepared).values, volumes[:2].astype(np.float32))
    (fault,) = prepared.summary["faults"]
    assert "1 of the 4096" in fault["text"]
    (line,) = [line for line in lines(prepared.summary) if line.startswith("values: 1 % below 0.0")]
    assert ", median 0." in line


def test_the_adrenal_glands(shared_data, tmp_path):
    """32³ voxels of 0 or 255 but for the averaging; at half the resolution each voxel is the mean of eight."""
    path = shared_data / "adrenal_shapes.npz"
    if not path.is_file():
        pytest.skip(f"there is no {path}")
    volumes = np.load(path)["volumes"][:40]
    np.savez(tmp_path / "some.npz", volumes=volumes)
    config = DataConfig(root=str(tmp_path / "some.npz"), cache=str(tmp_path), crop="whole", window=(0.0, 255.0), **SERIAL)
    expected = volumes.reshape(40, 16, 2, 16, 2, 16, 2).mean((2, 4, 6))
    np.testing.assert_allclose(load(config).values, expected, atol=1e-4)  # float32 of up to 255


def test_folders_without_what_is_needed(config, folder):
    with pytest.raises(DataError, match=r"nodules.csv is not there \(the folder holds nothing\)"):
        cubes.plan(config)
    for root in (None, str(folder / "gone"), str(folder / "gone.npz")):
        with pytest.raises(DataError, match=r"must be a folder of volumes or one .npz when data.source is cubes"):
            cubes.plan(dataclasses.replace(config, root=root))


def test_the_real_nodules(shared_data, tmp_path):
    # All 770 take long; every 24th shows whether they are read rightly.
    root = tmp_path / "some"
    root.mkdir()
    for name in ("images", "masks"):
        (root / name).symlink_to(shared_data / "luna16_nodules" / name)
    rows = (shared_data / "luna16_nodules" / "nodules.csv").read_text().splitlines(True)
    (root / "nodules.csv").write_text("".join([rows[0], *rows[1::24]]))
    config = DataConfig(root=str(root), cache=str(tmp_path), padding="replicate", **SERIAL)
    prepared = prepare(config)
    nodules = load_prepared(prepared)
    assert len(nodules.values) == len(rows[1::24])
    assert not prepared.summary["faults"]
    assert nodules.masks is not None
    # Readers drew the masks around what LUNA16's coordinates are the middle of.
    steps = (np.arange(16) + 0.5) / 16 - 0.5
    offsets = [
        np.linalg.norm([(mask * s).sum() / mask.sum() for s in np.meshgrid(steps, steps, steps, indexing="ij")])
        for mask in nodules.masks
    ]
    assert np.median(offsets) < 0.05
    inside = [cube[mask > 0].mean() - cube[mask == 0].mean() for cube, mask in zip(nodules.values, nodules.masks, strict=True)]
    assert np.median(inside) > 150

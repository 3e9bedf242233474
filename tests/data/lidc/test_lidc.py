"""`gmmae data lidc` on folders shaped like LIDC-IDRI, whose balls are known, and on those of strangers."""

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from pydicom.uid import RLELossless

from gmmae.data.extraction.prepare import load
from gmmae.data.settings import DataConfig
from tests.commands import last_refusal, lines_of, rows
from tests.lidc_folders import Scan, message, nodule, outlines, roi, values_of, write_series
from tests.volume_folders import write_rows

CENTRES = ((-10.0, 65.0, -180.0), (10.0, 82.0, -160.0))
DIAMETERS = (14.0, 9.0)
COLUMNS = ("coordX", "coordY", "coordZ", "diameter_mm")
SCAN = Scan()
GAP = round((CENTRES[0][2] - SCAN.origin[2]) / SCAN.spacing[2])
"""The slice in the middle of the first ball."""


@pytest.fixture
def root(tmp_path):
    return tmp_path / "in"


@pytest.fixture
def cut(capsys, root):
    """The command. It returns the rows of the table, why something was left out by what and where, and the counts."""

    def run(*words):
        out = root.with_name("cubes")
        printed = lines_of(capsys, "data", "lidc", root, "--out", out, *words)
        left_out = {(row["what"], Path(row["where"]).name): row["why"] for row in rows(out / "left_out.csv")}
        return rows(out / "nodules.csv"), left_out, dict(line.split(maxsplit=1)[::-1] for line in printed[:-2])

    return run


@pytest.fixture
def refused(capsys, root):
    def run(*words):
        error = last_refusal(capsys, "data", "lidc", root, "--out", root.with_name("none"), *words)
        assert not root.with_name("none").exists()
        return error

    return run


def drawn(scan, centre, diameter):
    """What each of four readers draws of a ball."""
    jitters = (0.5, 0.3, 0.2), (-0.5, -0.3, -0.2), (0.4, -0.4, 0.0), (-0.4, 0.4, 0.0)
    return [scan.ball(np.add(centre, jitter), diameter) for jitter in jitters]


def readings(scan, nodules, uids=True, namespace="http://www.nih.gov"):
    """A file of what is given: for each nodule a mask by reader; None: that reader did not see it."""
    sessions = ["" for _ in nodules[0]]
    for i, masks in enumerate(nodules):
        for reader, mask in enumerate(masks):
            if mask is not None:
                sessions[reader] += nodule(f"N{i}", outlines(scan, mask, uids=uids), texture=5 - i, malignancy=1 + reader)
    return message(scan.series, sessions, namespace)


def write(root, *nodules, scan=SCAN, **series):
    """Writes a series and its readings. Returns the voxels."""
    values = values_of(*(mask for masks in nodules for mask in masks if mask is not None))
    write_series(root, scan, values, **series)
    (root / "069.xml").write_text(readings(scan, nodules))
    return values


@pytest.fixture(scope="module")
def balls():
    return [drawn(SCAN, centre, diameter) for centre, diameter in zip(CENTRES, DIAMETERS, strict=True)]


@pytest.fixture
def known(root, balls):
    return write(root, *balls)


def require_as_constructed(root, row, values, readers, scan=SCAN, votes=2):
    """The voxels are the scan's, and the mask holds what so many of the readers have inside. Returns the mask."""
    image, mask = (sitk.ReadImage(root.with_name("cubes") / folder / row["file"]) for folder in ("images", "masks"))
    np.testing.assert_allclose(image.GetSpacing(), scan.spacing, rtol=1e-5)
    np.testing.assert_allclose(mask.GetOrigin(), image.GetOrigin(), atol=1e-4)
    start = np.rint(scan.axes() @ np.subtract(image.GetOrigin(), scan.origin) / scan.spacing).astype(int)
    box = tuple(slice(a, a + n) for a, n in zip(start[::-1], image.GetSize()[::-1], strict=True))
    inside, agreed = sitk.GetArrayFromImage(mask), np.sum(readers, 0) >= votes
    np.testing.assert_array_equal(sitk.GetArrayFromImage(image), values[box])
    np.testing.assert_array_equal(inside, agreed[box])
    assert inside.sum() == agreed.sum() > 50
    np.testing.assert_allclose(place(row)[:3], scan.positions()[agreed].mean(0), atol=1e-6)
    return inside


def place(row):
    return [float(row[name]) for name in COLUMNS]


@pytest.mark.parametrize(("uids", "namespace"), [(True, "http://www.nih.gov/idri"), (False, "")])
def test_balls_are_found_where_they_are(cut, known, balls, root, uids, namespace):
    (root / "069.xml").unlink()
    (root / "readings.XML").write_text(readings(SCAN, balls, uids, namespace))
    table, left_out, counted = cut()
    assert (left_out, counted["nodules written"], counted["nodules of 4 of 4 readers"]) == ({}, "2", "2")
    for row, centre, diameter, readers in zip(table, CENTRES, DIAMETERS, balls, strict=True):
        *found, size = place(row)
        assert np.linalg.norm(np.subtract(found, centre)) < 0.1
        assert size == pytest.approx(diameter, abs=0.6)
        require_as_constructed(root, row, known, readers)
    same = {"patient": "LIDC-IDRI-0001", "seriesuid": SCAN.series, "readers": "4", "annotated": "no", "malignancy": "2.5"}
    for row, number, category, texture in zip(table, "12", ("solid", "part-solid"), "54", strict=True):
        expected = {"file": f"LIDC-IDRI-0001_{number}.nii.gz", "category": category, "texture": texture, **same}
        assert row.items() >= (expected | {"internal_structure": "1"}).items()
    config = DataConfig(source="cubes", root=str(root.with_name("cubes")), cache=str(root / "cache"), workers=1)
    nodules = load(config, [].append)
    assert nodules.names == tuple(row["file"] for row in table)
    assert set(nodules.groups) == {"LIDC-IDRI-0001"}
    assert nodules.masks is not None
    for values, mask in zip(nodules.values, nodules.masks, strict=True):
        assert values[mask == 0].mean() < -600 < -150 < values[mask == 1].mean()


def test_each_series_gives_its_nodule_as_it_was_drawn(cut, root):
    """Patients lie prone; slices run down, are turned, not axial or compressed; a nodule lies at its scan's edge."""
    x, y, z = np.eye(3)
    axes: dict[str, Any] = {"prone": (-x, -y), "down": (x, -y), "turned": (y, x), "not axial": (x, -z)}
    axes |= dict.fromkeys(("edge", "compressed"), (x, y))
    cases = {}
    for number, patient in enumerate(axes):
        across, down = axes[patient]
        scan = Scan(f"1.2.{number}", patient, (30, 64, 72), (0.8, 0.65, 2.0), rows=across, columns=down)
        readers = drawn(scan, scan.positions()[15, 4 if patient == "edge" else 30, 40], 12.0)
        for mask in readers:
            mask[:, 0] = False  # the outline needs a pixel outside of it
        values = write(root / patient, readers, scan=scan, RescaleSlope=2, RescaleIntercept=-1000)
        cases[patient] = scan, readers, values // 2 * 2
    for path in (root / "compressed").glob("*.dcm"):
        header = pydicom.dcmread(path)
        header.compress(RLELossless)
        header.save_as(path)
    table, *_ = cut()
    for row in table:
        scan, readers, values = cases.pop(row["patient"])
        require_as_constructed(root, row, values, readers, scan)
    assert not cases


def test_readers_who_disagree(cut, root):
    def beside(mm, diameter):
        return SCAN.ball(np.add(CENTRES[0], (mm, 0, 0)), diameter)

    one, other, far = beside(0, 8), beside(10, 8), SCAN.ball(CENTRES[1], 8)
    both = one | other | beside(5, 8)
    # Two readers see two nodules; two see one large nodule, which reaches over both. A fifth mark is of one reader.
    write(root, [one, one, both, both], [other, other, None, None], [None, far, None, None])
    # Each large outline joins one nodule only, so no reader counts twice.
    [row], _, counted = cut()
    alone, few = (counted[name] for name in ("nodules of 1 of 4 readers", "left out: nodules of too few readers"))
    assert (row["readers"], alone, few) == ("4", "1", "2")
    table, *_ = cut("--min-readers", 1)
    assert sorted(row["readers"] for row in table) == ["1", "2", "4"]
    # Three overlap in a chain, and share no voxel.
    write(root, [*(beside(5.6 * step, 5) for step in (-1, 0, 1)), None], [far] * 4)
    [_], left_out, _ = cut()
    assert left_out["nodules that cannot be cut", SCAN.patient].startswith("2 of 3 readers must agree")


@pytest.mark.parametrize(("agreement", "votes"), [(0, 1), (0.6, 3), (1, 4)])
def test_the_mask_holds_what_a_share_of_the_readers_have_inside(cut, known, balls, root, agreement, votes):
    [row, _], *_ = cut("--agreement", agreement, "--margin-mm", 3)
    mask = require_as_constructed(root, row, known, balls[0], votes=votes)
    np.testing.assert_array_equal(np.argwhere(mask).min(0), np.ceil(3 / np.array(SCAN.spacing[::-1])))


@pytest.mark.parametrize("spoil", ["missing", "missing and not outlined", "cut short", "without a position"])
def test_a_slice_that_is_no_use_costs_only_the_nodule_that_it_cuts(cut, root, balls, spoil):
    values = write(root, *balls)
    (path,) = root.rglob(f"*-{GAP}.dcm")
    if spoil == "cut short":
        path.write_bytes(path.read_bytes()[:12_000])
    elif spoil == "without a position":
        header = pydicom.dcmread(path)
        del header.ImagePositionPatient
        header.save_as(path)
    else:
        path.unlink()
    if spoil == "missing and not outlined":
        first = [mask & (np.arange(len(mask)) != GAP)[:, None, None] for mask in balls[0]]
        (root / "069.xml").write_text(readings(SCAN, [first, balls[1]]))
    [row], left_out, counted = cut()
    require_as_constructed(root, row, values, balls[1])
    assert counted["left out: readers' nodules with a fault"] == "4"
    assert "is missing" in left_out["slices", SCAN.patient]
    assert (("DICOM files without a CT slice", path.name) in left_out) == path.exists()


def test_slices_that_are_not_axial_have_no_height_by_which_an_outline_finds_them(refused, root):
    scan = Scan(columns=(0.0, 0.0, -1.0), shape=(30, 64, 72))
    readers = drawn(scan, scan.positions()[15, 30, 40], 12.0)
    write(root, readers, scan=scan)
    (root / "069.xml").write_text(readings(scan, [readers], uids=False))
    assert "must be on one slice" in refused()


def test_slices_that_are_there_twice_or_of_a_tilted_gantry(cut, refused, known, root):
    write_series(root.with_name("elsewhere"), SCAN, known, slices=range(5))
    (root / "again").symlink_to(root.with_name("elsewhere"))
    [_, _], left_out, _ = cut()
    assert left_out["slices", SCAN.patient].startswith("5 slices are there twice")
    write_series(root / "again", SCAN, known + 1, slices=range(5))
    assert "a series must have one slice at each place; " in refused()
    for k in range(SCAN.shape[0]):
        write_series(root, SCAN._replace(origin=(-31.5, 40.25 + 0.1 * k, -212.0)), known, slices=[k])
        (root / "again" / f"1-{k * 7 % 10}-{k}.dcm").unlink(missing_ok=True)
    assert "tilted gantry" in refused()


def test_a_folder_of_strangers(cut, known, balls, root):
    """Two series of one patient in one folder, a localizer, X-rays, a damaged file, text, and XML files of all kinds.

    The second series has a nodule with a hole, and marks of nodules below 3 mm.
    """
    second = Scan(series="1.2.826.0.1.3680043.8.498.2", spacing=(0.6, 0.6, 2.0), origin=(-20.0, -60.0, 30.0))
    ball, hole = (second.ball((0.0, -35.0, 60.0), diameter) for diameter in (16, 7))
    values = write(root, [ball], scan=second)
    session = nodule("1", outlines(second, hole, "FALSE") + outlines(second, ball)) + nodule("2", roi(second, 30, [(9, 9)]))
    write_series(root / "unread", Scan(series="1.2.3.3"), known, slices=range(3))
    write_series(root / "chest", Scan(series="1.2.3.4"), known, slices=[0], Modality="DX")
    write_series(root / "localizer", SCAN._replace(columns=(0.0, 0.0, -1.0)), known, slices=[0])
    (root / "damaged.dcm").write_bytes(b"\0" * 128 + b"DICM" + b"\x07" * 50)
    (root / ".DS_Store").write_bytes(b"\0" * 200)
    xml = readings(SCAN, balls)
    for name, text in {
        "LICENSE": "CC BY 3.0",
        **dict.fromkeys(("069.xml", "copy.xml"), xml),
        "second.xml": message(second.series, [session] * 4),
        "gone.xml": message("1.2.9", [""]),
        "cut short.xml": xml[:500],
        "other.xml": "<a/>",
        "chest.xml": '<IdriReadMessage xmlns="http://www.nih.gov/idri"><CXRreadingSession/></IdriReadMessage>',
    }.items():
        (root / name).write_text(text)
    table, left_out, counted = cut()
    assert [row["seriesuid"] for row in table] == [SCAN.series, SCAN.series, second.series]
    require_as_constructed(root, table[2], values, [ball & ~hole] * 4, second)
    assert left_out.keys() == {
        ("DICOM files without a CT slice", "4-0-0.dcm"),
        ("DICOM files without a CT slice", "damaged.dcm"),
        ("slices", SCAN.patient),
        ("series without readings", "unread"),
        ("readings without a series", "1.2.9"),
        *(("XML files without readings of CT", f"{name}.xml") for name in ("cut short", "other", "chest")),
    }
    assert [counted[name] for name in ("XML files", "CT series", "marks of nodules below 3 mm")] == ["7", "3", "4"]


def test_annotations_are_matched_to_the_nearest_nodule(cut, known, root):
    near, away = [*np.add(CENTRES[1], (0.7, -0.4, 0.3)), 8.25], [*np.add(CENTRES[0], (30, 0, 0)), 6.0]
    lines = [[SCAN.series, *near], [SCAN.series, *away]]
    lines += [["1.9", *CENTRES[0], 5.0], [SCAN.series, "x", 0, 0, 5.0]]  # another series has a nodule at the same place
    write_rows(root.with_name("annotations.csv"), lines, ("seriesuid", *COLUMNS))
    table, left_out, _ = cut("--annotations", root.with_name("annotations.csv"))
    assert [row["annotated"] for row in table] == ["no", "yes"]
    assert place(table[1]) == pytest.approx(near)
    assert left_out.keys() == {
        *(("annotations without a nodule", f"line {line}") for line in (3, 4)),
        ("rows of annotations with a fault", "annotations.csv line 5"),
    }


def test_a_folder_that_gives_no_nodules_is_refused(refused, known, balls, root):
    assert "--annotations must be a CSV" in refused("--annotations", root / "gone.csv")
    assert "too few readers: LIDC-IDRI-0001: 4 of 4 readers" in refused("--min-readers", 5)
    (root / "second.xml").write_text(readings(SCAN, balls[:1]))
    assert "it has 2 that differ" in refused()
    (root / "second.xml").unlink()
    (root / "069.xml").write_text(message(SCAN.series, ["", ""]))
    assert "no outline" in refused()
    (root / "069.xml").unlink()
    assert "1 CT series and 0 XML files" in refused()


@pytest.mark.parametrize(("module", "name"), [(pydicom, "dcmread"), (Path, "read_bytes")])
def test_a_disk_that_fails_is_no_fault_of_the_files(refused, known, monkeypatch, module, name):
    def fail(path, **words):
        if path.suffix == ".dcm":
            raise OSError(errno.EIO, "Input/output error")
        return really(path)

    really = getattr(module, name)
    monkeypatch.setattr(module, name, fail)
    assert "FOLDER must be readable" in refused()

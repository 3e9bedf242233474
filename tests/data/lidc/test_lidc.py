"""`gmmae data lidc` on folders shaped like LIDC-IDRI, whose balls are known, and on those of strangers."""

import errno
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data.extraction import dicom
from gmmae.data.extraction.prepare import load
from gmmae.data.settings import DataConfig
from tests import lidc_folders as folders
from tests.commands import last_refusal, lines_of, rows
from tests.lidc_folders import SCORES, Scan

CENTRES = ((-10.0, 65.0, -180.0), (10.0, 82.0, -160.0))
DIAMETERS = (14.0, 9.0)
SCAN = Scan()
JITTERS = ((0.5, 0.3, 0.2), (-0.5, -0.3, -0.2), (0.4, -0.4, 0.0), (-0.4, 0.4, 0.0))


def cut(capsys, root, out, *words):
    """Runs the command. Returns the rows of the table, why something was left out by what and where, and the printed lines."""
    printed = lines_of(capsys, "data", "lidc", root, "--out", out, *words)
    return rows(out / "nodules.csv"), {(row["what"], row["where"]): row["why"] for row in rows(out / "left_out.csv")}, printed


def refused(capsys, root, out, *words):
    """Runs the command, which writes nothing. Returns the line of the error."""
    error = last_refusal(capsys, "data", "lidc", root, "--out", out, *words)
    assert not out.exists()
    return error


def counted(printed, count, what):
    """Whether a line of the table has this number and name."""
    return any(line.split(maxsplit=1) == [str(count), what] for line in printed)


def drawn(scan, centre, diameter):
    """What each of four readers draws of a ball."""
    return [scan.ball(np.add(centre, jitter), diameter) for jitter in JITTERS]


def sessions(scan, nodules, uids=True):
    """The nodules of each reader, from each nodule's mask by reader; None: that reader did not see it."""
    return [
        [
            folders.nodule(
                f"N{i}", folders.rois(scan, masks[reader], uids=uids), SCORES | {"texture": 5 - i, "malignancy": 1 + reader}
            )
            for i, masks in enumerate(nodules)
            if masks[reader] is not None
        ]
        for reader in range(len(nodules[0]))
    ]


class Known(NamedTuple):
    root: Path
    scan: Scan
    values: np.ndarray
    nodules: list[list[np.ndarray]]


def write(root, scan=SCAN, centres=CENTRES, diameters=DIAMETERS, **series):
    """A folder with one series, and a file of four readers."""
    nodules = [drawn(scan, centre, diameter) for centre, diameter in zip(centres, diameters, strict=True)]
    values = folders.values_of(*(scan.ball(centre, diameter) for centre, diameter in zip(centres, diameters, strict=True)))
    place = root / scan.patient / "study" / "series"
    folders.write_series(place, scan, values, **series)
    (place / "069.xml").write_text(folders.message(scan.series, sessions(scan, nodules)), encoding="utf-8")
    return Known(root, scan, values, nodules)


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return write(tmp_path_factory.mktemp("lidc") / "LIDC-IDRI")


def on_grid_of(image, scan):
    """First index z, y, x and shape of a written image within its scan."""
    start = (np.array(image.GetOrigin()) - scan.origin) @ np.column_stack(
        [scan.rows, scan.columns, np.cross(scan.rows, scan.columns)]
    )
    first = np.rint(start / scan.spacing).astype(int)[::-1]
    return tuple(slice(a, a + n) for a, n in zip(first, image.GetSize()[::-1], strict=True))


def require_as_constructed(out, row, scan, values, readers, centre=None):
    """The voxels are the scan's, the mask holds what half of the readers have inside, and the centre is where it was put."""
    image, mask = (sitk.ReadImage(str(out / folder / row["file"])) for folder in ("images", "masks"))
    if centre is not None:
        assert np.linalg.norm(np.subtract([float(row[name]) for name in ("coordX", "coordY", "coordZ")], centre)) < 0.1
    assert image.GetPixelID() == sitk.sitkInt16
    np.testing.assert_allclose(image.GetSpacing(), scan.spacing, rtol=1e-5)
    assert mask.GetSize() == image.GetSize()
    np.testing.assert_allclose(mask.GetOrigin(), image.GetOrigin(), atol=1e-4)
    box = on_grid_of(image, scan)
    assert (sitk.GetArrayFromImage(image) == values[box]).all()
    agreed = 2 * np.sum(readers, 0) >= len(readers)
    assert (sitk.GetArrayFromImage(mask) == agreed[box]).all()
    assert sitk.GetArrayFromImage(mask).sum() == agreed.sum() > 50


@pytest.mark.parametrize("uids", [True, False])
@pytest.mark.parametrize("namespace", ["http://www.nih.gov", "http://www.nih.gov/idri", ""])
def test_balls_are_found_where_they_are(capsys, known, tmp_path, uids, namespace):
    root, out = tmp_path / "folder", tmp_path / "cubes"
    root.mkdir()
    for path in known.root.rglob("*.dcm"):
        (root / path.name).symlink_to(path)
    xml = folders.message(known.scan.series, sessions(known.scan, known.nodules, uids), namespace)
    (root / "readings.XML").write_text(xml, encoding="utf-8")
    table, _, printed = cut(capsys, root, out)
    assert [row["file"] for row in table] == ["LIDC-IDRI-0001_1.nii.gz", "LIDC-IDRI-0001_2.nii.gz"]
    for row, centre, diameter, readers in zip(table, CENTRES, DIAMETERS, known.nodules, strict=True):
        assert abs(float(row["diameter_mm"]) - diameter) < min(known.scan.spacing)
        require_as_constructed(out, row, known.scan, known.values, readers, centre)
    columns = ("category", "texture", "malignancy", "internal_structure")
    assert [[row[name] for name in columns] for row in table] == [["solid", "5", "2.5", "1"], ["part-solid", "4", "2.5", "1"]]
    columns = ("patient", "seriesuid", "readers", "annotated")
    assert {tuple(row[name] for name in columns) for row in table} == {("LIDC-IDRI-0001", known.scan.series, "4", "no")}
    assert counted(printed, 2, "nodules written")
    assert counted(printed, 2, "nodules of 4 of 4 readers")
    assert printed[-1] == f"--data.source cubes --data.root {out} uses them"


def test_the_source_cubes_reads_the_folder(capsys, known, tmp_path):
    cut(capsys, known.root, tmp_path / "cubes")
    own = {"cache": str(tmp_path / "cache"), "workers": 1, "scan_time_limit_s": None}
    nodules = load(DataConfig(source="cubes", root=str(tmp_path / "cubes"), **own), [].append)  # pyright: ignore[reportArgumentType]
    assert nodules.names == ("LIDC-IDRI-0001_1.nii.gz", "LIDC-IDRI-0001_2.nii.gz")
    assert set(nodules.groups) == {"LIDC-IDRI-0001"}
    assert nodules.masks is not None
    assert nodules.filled.max() == 0
    for values, mask in zip(nodules.values, nodules.masks, strict=True):
        assert values[mask == 1].mean() > -150
        assert values[mask == 0].mean() < -600


@pytest.mark.parametrize(
    ("rows_", "columns"),
    [((-1.0, 0.0, 0.0), (0.0, -1.0, 0.0)), ((1.0, 0.0, 0.0), (0.0, -1.0, 0.0)), ((0.0, 1.0, 0.0), (1.0, 0.0, 0.0))],
    ids=["prone", "slices run down", "turned"],
)
def test_other_orientations(capsys, tmp_path, rows_, columns):
    scan = Scan(rows=rows_, columns=columns, shape=(30, 64, 72), spacing=(0.8, 0.65, 2.0))
    centre = np.add(scan.positions()[15, 30, 40], (0.2, -0.1, 0.3))
    made = write(tmp_path / "in", scan, [centre], [12.0])
    ([row], *_) = cut(capsys, tmp_path / "in", tmp_path / "out")
    require_as_constructed(tmp_path / "out", row, scan, made.values, made.nodules[0], centre)


def test_a_rescaled_series_is_in_hu(capsys, tmp_path):
    made = write(tmp_path / "in", t0028_1053="2", t0028_1052="-1000")
    cut(capsys, tmp_path / "in", tmp_path / "out")
    image = sitk.ReadImage(str(tmp_path / "out" / "images" / "LIDC-IDRI-0001_1.nii.gz"))
    apart = np.abs(sitk.GetArrayFromImage(image) - made.values[on_grid_of(image, made.scan)])
    assert apart.max() == 1  # stored in steps of 2 HU


def test_a_hole_is_cut_and_marks_below_3_mm_are_counted(capsys, tmp_path):
    ball, hole = SCAN.ball(CENTRES[0], 16), SCAN.ball(CENTRES[0], 7)
    values = folders.values_of(ball)
    folders.write_series(tmp_path / "in", SCAN, values)
    reader = [folders.nodule("1", folders.rois(SCAN, ball, hole), SCORES), folders.nodule("2", folders.point(SCAN, 30, 50, 50))]
    (tmp_path / "in" / "1.xml").write_text(folders.message(SCAN.series, [reader] * 4), encoding="utf-8")
    [row], _, printed = cut(capsys, tmp_path / "in", tmp_path / "out")
    require_as_constructed(tmp_path / "out", row, SCAN, values, [ball & ~hole] * 4)
    assert counted(printed, 4, "nodules below 3 mm, marked by a point")
    assert counted(printed, 4, "marks of other findings")


def write_readers(root, *nodules):
    """A series whose readers draw what is given: for each nodule a mask by reader, or None."""
    values = folders.values_of(*(mask for masks in nodules for mask in masks if mask is not None))
    folders.write_series(root, SCAN, values)
    (root / "1.xml").write_text(folders.message(SCAN.series, sessions(SCAN, nodules)), encoding="utf-8")
    return values


def test_readers_who_disagree(capsys, tmp_path):
    one, other, far = (SCAN.ball(CENTRES[0], 8), SCAN.ball(np.add(CENTRES[0], (10, 0, 0)), 8), SCAN.ball(CENTRES[1], 8))
    both = one | other | SCAN.ball(np.add(CENTRES[0], (5, 0, 0)), 8)
    # Two readers see two nodules; two see one large nodule, which reaches over both. A fifth mark is of one reader.
    write_readers(tmp_path / "in", [one, one, both, both], [other, other, None, None], [None, far, None, None])
    # Each large outline joins one nodule only, so no reader counts twice.
    table, _, printed = cut(capsys, tmp_path / "in", tmp_path / "three")
    assert [row["readers"] for row in table] == ["4"]
    assert counted(printed, 1, "nodules of 1 of 4 readers")
    assert [row["what"] for row in rows(tmp_path / "three" / "left_out.csv")].count("nodules of too few readers") == 2
    table, *_ = cut(capsys, tmp_path / "in", tmp_path / "one", "--min-readers", 1)
    assert sorted(row["readers"] for row in table) == ["1", "2", "4"]


def test_readers_whose_outlines_share_no_voxel_have_no_consensus(capsys, tmp_path):
    places = [SCAN.ball(np.add(CENTRES[0], (5.6 * step, 0, 0)), 5) for step in (-1, 0, 1)]
    write_readers(tmp_path / "in", [*places, None], drawn(SCAN, CENTRES[1], 9))
    [_], why, _ = cut(capsys, tmp_path / "in", tmp_path / "out")
    (line,) = [why for (what, _), why in why.items() if what == "nodules without a consensus"]
    assert line == "2 of 3 readers must agree on a voxel; they agree on none"


@pytest.mark.parametrize(("agreement", "votes"), [(0, 1), (0.6, 3), (1, 4)])
def test_the_mask_holds_what_a_share_of_the_readers_have_inside(capsys, known, tmp_path, agreement, votes):
    cut(capsys, known.root, tmp_path / "out", "--agreement", agreement)
    mask = sitk.ReadImage(str(tmp_path / "out" / "masks" / "LIDC-IDRI-0001_1.nii.gz"))
    wanted = np.sum(known.nodules[0], 0) >= votes
    assert (sitk.GetArrayFromImage(mask) == wanted[on_grid_of(mask, known.scan)]).all()
    assert sitk.GetArrayFromImage(mask).sum() == wanted.sum()


def test_a_nodule_at_the_edge_of_the_scan_is_kept(capsys, tmp_path):
    mask = SCAN.ball(SCAN.positions()[0, 4, 40], 10)
    mask[:, 0] = False  # the outline needs a pixel outside of it
    values = write_readers(tmp_path / "in", [mask] * 4)
    [row], *_ = cut(capsys, tmp_path / "in", tmp_path / "out")
    require_as_constructed(tmp_path / "out", row, SCAN, values, [mask] * 4)


@pytest.mark.parametrize("outlined", [True, False])
def test_a_missing_slice_costs_only_the_nodule_that_it_cuts(capsys, tmp_path, outlined):
    text = (
        "each outline must be on a slice of the series; there is none at z = "
        if outlined
        else "a slice of the nodule is missing"
    )
    gap = round((CENTRES[0][2] - SCAN.origin[2]) / SCAN.spacing[2])
    made = write(tmp_path / "in", slices=[k for k in range(SCAN.shape[0]) if k != gap])
    if not outlined:
        for mask in made.nodules[0]:
            mask[gap] = False
        (xml,) = tmp_path.rglob("*.xml")
        xml.write_text(folders.message(SCAN.series, sessions(SCAN, made.nodules)))
    [row], _, printed = cut(capsys, tmp_path / "in", tmp_path / "out")
    require_as_constructed(tmp_path / "out", row, SCAN, made.values, made.nodules[1])
    reasons = [row["why"] for row in rows(tmp_path / "out" / "left_out.csv")]
    assert sum(text in why for why in reasons) == 4
    assert sum(why.startswith("a slice is missing, or out of place, between z = ") for why in reasons) == 1
    assert any("4  readers' nodules with a fault; first: LIDC-IDRI-0001: nodule N0 of reader 1" in line for line in printed)


def test_a_slice_that_is_cut_short_is_named(capsys, tmp_path):
    write(tmp_path / "in")
    (path,) = tmp_path.rglob(f"*-{round((CENTRES[0][2] - SCAN.origin[2]) / SCAN.spacing[2])}.dcm")
    path.write_bytes(path.read_bytes()[:12_000])
    [_], why, _ = cut(capsys, tmp_path / "in", tmp_path / "out")
    assert any(what == "DICOM files that cannot be read" and where.endswith(path.name) for what, where in why)


def test_slices_that_are_there_twice(capsys, known, tmp_path):
    (xml,) = known.root.rglob("*.xml")
    for more, folder in enumerate(("same", "other")):
        folders.write_series(tmp_path / folder, SCAN, known.values)
        folders.write_series(tmp_path / folder / "again", SCAN, known.values + more, slices=range(5))
        (tmp_path / folder / "1.xml").write_text(xml.read_text())
    [_, _], why, _ = cut(capsys, tmp_path / "same", tmp_path / "out")
    assert why["slices", "LIDC-IDRI-0001"] == "5 slices are there twice, with equal voxels: one of each is used"
    assert "a series must have one slice at each place; " in refused(capsys, tmp_path / "other", tmp_path / "no")


def test_a_folder_of_strangers(capsys, tmp_path):
    """Two series of one patient in one folder, X-rays, a damaged file, text, and XML files of all kinds."""
    root = tmp_path / "in"
    second = Scan(series="1.2.826.0.1.3680043.8.498.2", spacing=(0.6, 0.6, 2.0), origin=(-20.0, -60.0, 30.0))
    unread = Scan(series="1.2.826.0.1.3680043.8.498.3", patient="LIDC-IDRI-0002", shape=(3, 32, 32))
    chest = Scan(series="1.2.826.0.1.3680043.8.498.4", shape=(1, 32, 32))
    made = [write(root), write(root, second, [(0.0, -35.0, 60.0)], [12.0])]
    folders.write_series(root / "unread", unread, np.full(unread.shape, -800))
    folders.write_series(root / "chest", chest, np.full(chest.shape, 5), t0008_0060="DX")
    (root / "damaged.dcm").write_bytes(b"\0" * 128 + b"DICM" + b"\x07" * 50)
    (root / ".DS_Store").write_bytes(b"\0" * 200)
    next(root.rglob("069.xml")).unlink()
    xml = folders.message(SCAN.series, sessions(SCAN, made[0].nodules))
    chests = "<ResponseHeader><CXRSeriesInstanceUid>1.2</CXRSeriesInstanceUid></ResponseHeader><CXRreadingSession/>"
    for name, text in {
        "LICENSE": "CC BY 3.0",
        "070.xml": xml,
        "copy.xml": xml,
        "second.xml": folders.message(second.series, sessions(second, made[1].nodules), ""),
        "gone.xml": folders.message("1.2.3", [[]]),
        "cut short.xml": xml[:500],
        "other.xml": "<a/>",
        "chest.xml": f'<IdriReadMessage xmlns="http://www.nih.gov/idri">{chests}</IdriReadMessage>',
    }.items():
        (root / name).write_text(text)
    table, why, printed = cut(capsys, root, tmp_path / "out")
    assert [row["seriesuid"] for row in table] == [SCAN.series, SCAN.series, second.series]
    require_as_constructed(tmp_path / "out", table[2], second, made[1].values, made[1].nodules[0])
    assert "must be an XML file of LIDC-IDRI's readers" in why.pop(("XML files with a fault", "cut short.xml"))
    assert why.pop(("DICOM files that cannot be read", "damaged.dcm"))
    (copy,) = [key for key in why if key[0] == "XML files that repeat another"]
    assert {key: text for key, text in why.items() if key != copy} == {
        ("kinds of DICOM files that are no CT", "DX"): "1 files",
        ("series without readings", "unread"): unread.series,
        ("readings without a series", "1.2.3"): "no CT slice in the folder is of it",
        ("XML files without readings of CT", "chest.xml"): "message on chest X-rays (CXR)",
        ("XML files without readings of CT", "other.xml"): "XML of another kind",
    }
    assert len(printed[printed.index("left out") + 1 : -2]) == 7


def test_annotations_are_matched_to_the_nearest_nodule(capsys, known, tmp_path):
    near = np.add(CENTRES[1], (0.7, -0.4, 0.3)).tolist()
    lines = [["seriesuid", "coordX", "coordY", "coordZ", "diameter_mm"], [SCAN.series, *near, 8.25]]
    lines += [[SCAN.series, *np.add(CENTRES[0], (30, 0, 0)), 6.0], ["1.9", 0, 0, 0, 5.0], [SCAN.series, "x", 0, 0, 5.0]]
    (tmp_path / "annotations.csv").write_text("\n".join(",".join(map(str, line)) for line in lines))
    table, why, printed = cut(capsys, known.root, tmp_path / "out", "--annotations", tmp_path / "annotations.csv")
    assert [row["annotated"] for row in table] == ["no", "yes"]
    assert [float(table[1][name]) for name in ("coordX", "coordY", "coordZ", "diameter_mm")] == pytest.approx([*near, 8.25])
    assert why.keys() >= {
        ("annotations without a nodule", "line 3"),
        ("annotations without a usable series", "line 4"),
        ("rows of annotations with a fault", "annotations.csv line 5"),
    }
    assert counted(printed, 1, "annotations matched to a nodule")


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        ("no folder", "which is no folder"),
        ("empty", "has 0 XML files"),
        ("no series", "but no series has both"),
        ("no outlines", "none can: the readings hold no outline of a nodule of 3 mm or more"),
        (
            "too few readers",
            "none can: nodules of too few readers, the first LIDC-IDRI-0001: 4 of 4 readers",
        ),
        ("contradiction", "XML files that contradict another, the first "),
        ("no annotations", "--annotations must be a CSV with the columns seriesuid, coordX, coordY, coordZ, diameter_mm; "),
    ],
)
def test_a_folder_that_gives_no_nodules_is_refused(capsys, known, tmp_path, spoil, text):
    root, words = tmp_path / "in", []
    if spoil != "no folder":
        root.mkdir()
    if spoil in ("no outlines", "contradiction", "too few readers", "no annotations"):
        for path in known.root.rglob("*.*" if spoil != "no outlines" else "*.dcm"):
            (root / path.name).symlink_to(path)
    words = {"too few readers": ["--min-readers", 5], "no annotations": ["--annotations", tmp_path / "gone.csv"]}.get(spoil, [])
    readings = {"no series": [[]], "no outlines": [[], []], "contradiction": sessions(SCAN, known.nodules[:1])}
    if spoil in readings:
        (root / "1.xml").write_text(folders.message("1.2" if spoil == "no series" else SCAN.series, readings[spoil]))
    assert text in refused(capsys, root, tmp_path / "out", *words)


def test_a_disk_that_fails_is_no_fault_of_the_files(capsys, known, tmp_path, monkeypatch):
    def fail(call, *files):
        if call.__name__ == "Execute":
            raise OSError(errno.EIO, "Input/output error")
        return call()

    monkeypatch.setattr(dicom, "ask_itk", fail)
    error = refused(capsys, known.root, tmp_path / "out")
    assert re.search(r"^error: FOLDER must be readable; .*\.dcm is not \(Input/output error\): see to the disk", error)


def test_an_earlier_result_is_replaced_unless_the_call_is_interrupted_and_nothing_else_is(capsys, known, tmp_path):
    out, mine = tmp_path / "out", tmp_path / "mine"
    mine.mkdir()
    (mine / "nodules.csv").write_text("mine")
    assert "or an earlier result, which is replaced" in last_refusal(capsys, "data", "lidc", known.root, "--out", mine)
    assert (mine / "nodules.csv").read_text() == "mine"
    sizes = []
    for words in ((), ("--margin-mm", 3)):
        cut(capsys, known.root, out, *words)
        sizes.append(sitk.ReadImage(str(out / "images" / "LIDC-IDRI-0001_2.nii.gz")).GetSize())
    assert all(a < b for a, b in zip(sizes[1], sizes[0], strict=True))
    earlier = {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    program = (
        "import signal, sys, time\nfrom gmmae.data.lidc import folder\nwrite = folder._write\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
        "def slow(*words):\n    write(*words)\n    print('written', flush=True)\n    time.sleep(60)\n"
        "folder._write = slow\nfrom gmmae.cli.main import main\nsys.exit(main())\n"
    )
    words = [sys.executable, "-c", program, "data", "lidc", str(known.root), "--out", str(out)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file()} == earlier
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]

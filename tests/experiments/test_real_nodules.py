"""The folder of the real nodules, made from a copy of the project that cut them, or from a folder of its form."""

import sys

import numpy as np
from openpyxl import Workbook

from benchmarks.options import guarded
from experiments import real_nodules
from gmmae.data.extraction.prepare import load
from gmmae.data.settings import DataConfig
from tests.volume_folders import Grid, write_image

HEAD = [
    *("patient_id", "nodule_id", "seriesuid", "coordX", "coordY", "coordZ", "diameter_mm"),
    *(f"{score.capitalize()}_value" for score in real_nodules.SCORES),
]
CENTRE = (12.5, -30.25, -101.0)
GRID = Grid((6, 20, 24), (0.7, 0.7, 1.4), (CENTRE[0] - 12 * 0.7, CENTRE[1] - 10 * 0.7, CENTRE[2] - 3 * 1.4))


def row(patient, number, centre=CENTRE, texture=5):
    return [f"LIDC-IDRI-{patient:04d}", number, f"1.3.{patient}", *centre, 6.5, texture, 3, 1, 1, 5, 4, 6, 4]


ROWS = [row(3, 2), row(3, 4, texture=4), row(5, 1, texture=1), row(6, 1, centre=(90.0, 0.0, 0.0)), row(7, 1), row(749, 1)]


def clone(root):
    """A folder of the project's form. LIDC-IDRI-0007 has no volume."""
    book = Workbook()
    sheet = book.create_sheet("ML4PM_MetadatabyNoduleMaxVoting", 0)
    for line in [HEAD, *ROWS]:
        sheet.append(line)
    (root / "data").mkdir(parents=True)
    book.save(root / real_nodules.SHEET)
    for patient, number, *_ in ROWS:
        z, y, x = np.indices(GRID.shape)
        ball = (x - 12) ** 2 + (y - 10) ** 2 + 4 * (z - 3) ** 2 < 16
        for folder, values in (
            ("images", np.where(ball, int(patient[-4:]), -850)),
            ("masks", ball),
        ):
            if (patient, folder) != ("LIDC-IDRI-0007", "images"):
                path = root / real_nodules.VOLUMES[folder] / f"{patient}_R_{number}.nii.gz"
                write_image(path, values.astype(np.int16), GRID)
    return root


def make(monkeypatch, capsys, *words):
    """Exit code, standard output and error."""
    monkeypatch.setattr(sys, "argv", ["real_nodules", *map(str, words)])
    try:
        guarded(real_nodules.main)
    except SystemExit as error:
        return error.code or 0, *capsys.readouterr()
    return 0, *capsys.readouterr()


def test_the_rules_take_what_they_say(monkeypatch, capsys, tmp_path):
    origin, out = clone(tmp_path / "clone"), tmp_path / "out"
    code, printed, error = make(monkeypatch, capsys, origin, "--out", out)
    assert code == 0, error
    assert printed.splitlines() == [
        f"3 of 6 nodules, of 2 patients: {out}",
        "  left out: 1  LIDC-IDRI-0006_R_1.nii.gz: the point (90, 0, 0) mm lies 122.01 mm outside the scan",
        "  left out: 1  without volume or mask",
        "  left out: 1  patients after 748",
    ]
    for folder, part in real_nodules.VOLUMES.items():
        assert len(list((out / folder).iterdir())) == 3
        for path in (out / folder).iterdir():
            assert path.read_bytes() == (origin / part / path.name).read_bytes()
    said = []
    config = DataConfig(source="cubes", root=str(out), cache=str(tmp_path / "cache"), workers=1, scan_time_limit_s=None)
    nodules = load(config, said.append)
    assert nodules.categories == ("solid", "part-solid", "ground-glass")
    assert nodules.groups == ("LIDC-IDRI-0003", "LIDC-IDRI-0003", "LIDC-IDRI-0005")
    code, printed, _ = make(monkeypatch, capsys, origin, "--out", tmp_path / "all", "--last-patient", "none")
    assert printed.startswith("4 of 6 nodules, of 3 patients")
    code, _, error = make(monkeypatch, capsys, origin, "--out", out)
    assert (code, "--out must be a folder that is new or empty" in error) == (2, True)

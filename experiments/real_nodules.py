"""Makes the folder of the 770 real nodules from the GitHub project PabloLION/ct-slicing.

    git clone https://github.com/PabloLION/ct-slicing CLONE && git -C CLONE checkout 07d32abf
    pip install -c constraints.txt -e '.[xlsx]'
    python -m experiments.real_nodules CLONE --out FOLDER

CLONE has volumes in `data/VOIs/image`, masks in `data/VOIs/nodule_mask`, and a sheet with a row for each nodule of LUNA16's
reference list that it cut. A row is taken if

1. its patient's number is at most 748,
2. the project has its volume and its mask,
3. its centre lies in its volume.

Of 996 rows the first rule takes 771, and the third leaves out LIDC-IDRI-0332_R_1, whose volume is of another place. No property
of the data explains the first rule: `--last-patient none` takes 993. The files are copied byte by byte.
"""

import argparse
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

from benchmarks.options import Parser, guarded
from gmmae.data.extraction.annotations import COORDINATES
from gmmae.data.extraction.scan import index_of, read
from gmmae.data.lidc.consensus import category
from gmmae.data.settings import NODULES
from gmmae.data.volumes import DataError
from gmmae.system.errors import InputError
from gmmae.system.files import csv_text, whole_folder

SHEET = Path("data", "MetadatabyNoduleMaxVoting.xlsx")
VOLUMES = {"images": Path("data", "VOIs", "image"), "masks": Path("data", "VOIs", "nodule_mask")}
LAST_PATIENT = 748
SCORES = ("texture", "malignancy", "spiculation", "lobulation", "margin", "sphericity", "calcification", "subtlety")
COLUMNS = ("file", "patient", "seriesuid", *COORDINATES, "diameter_mm", "category", *SCORES)
PATIENT = re.compile(r"LIDC-IDRI-(\d{4})")


class Choice(NamedTuple):
    """The rows of `nodules.csv`, and the number of the sheet's rows by the reason for which they are left out."""

    rows: list[dict[str, object]]
    left_out: Counter[str]


def read_sheet(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of the first sheet of a workbook by the names of the columns.

    Raises:
      InputError: openpyxl or the file is missing, or it is no workbook.
    """
    try:
        from openpyxl import load_workbook
    except ImportError as error:
        raise InputError("openpyxl must be installed: pip install -c constraints.txt -e '.[xlsx]'") from error
    if not path.is_file():
        raise InputError(f"CLONE must hold {SHEET}; {path} is no file")
    try:
        with path.open("rb") as file:
            head, *rows = load_workbook(file, read_only=True, data_only=True).worksheets[0].iter_rows(values_only=True)
    except (BadZipFile, ValueError, KeyError) as error:
        raise InputError(f"{path}: must be a workbook (.xlsx) with a row for each nodule; {error}") from error
    return [dict(zip(map(str, head), row, strict=True)) for row in rows if any(cell is not None for cell in row)]


def choose(rows: Sequence[Mapping[str, Any]], clone: Path, last_patient: int | None) -> Choice:
    """Returns the rows that the rules take.

    Raises:
      InputError: the sheet has other columns.
    """
    missing = [name for name in ("patient_id", "nodule_id", "Texture_value", *COORDINATES) if rows and name not in rows[0]]
    if missing or not rows:
        raise InputError(f"{SHEET} must have rows with the columns of the project; {', '.join(missing) or 'a row'} is missing")
    choice = Choice([], Counter())
    for row in rows:
        number = PATIENT.fullmatch(str(row["patient_id"]))
        if last_patient is not None and (number is None or int(number[1]) > last_patient):
            choice.left_out[f"patients after {last_patient}"] += 1
            continue
        name = f"{row['patient_id']}_R_{row['nodule_id']}.nii.gz"
        image, mask = (clone / folder / name for folder in VOLUMES.values())
        if not (image.is_file() and mask.is_file()):
            choice.left_out["without volume or mask"] += 1
            continue
        try:
            x, y, z = (float(row[name]) for name in COORDINATES)
            index_of(read(image), (x, y, z))
        except DataError as error:
            choice.left_out[f"{name}: {error}"] += 1
            continue
        choice.rows.append(_cells(name, row))
    return choice


def write(choice: Choice, clone: Path, out: Path) -> None:
    """Writes the folder, whole or not at all.

    Raises:
      InputError: it cannot be written, or no row is taken.
    """
    if not choice.rows:
        raise InputError(f"CLONE must hold a nodule that the rules take; {clone} has none: {dict(choice.left_out)}")
    with whole_folder(out) as place:
        for folder, origin in VOLUMES.items():
            (place / folder).mkdir()
            for row in choice.rows:
                shutil.copyfile(clone / origin / str(row["file"]), place / folder / str(row["file"]))
        (place / NODULES).write_text(csv_text(choice.rows, COLUMNS), encoding="utf-8")


def _cells(name: str, row: Mapping[str, Any]) -> dict[str, object]:
    same = {column: row[column] for column in ("seriesuid", *COORDINATES, "diameter_mm")}
    scores = {score: row[f"{score.capitalize()}_value"] for score in SCORES}
    return {"file": name, "patient": row["patient_id"], **same, "category": category(scores["texture"]), **scores}


def _last_patient(text: str) -> int | None:
    if text != "none" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a patient's number, or none; got {text}")
    return None if text == "none" else int(text)


def main() -> None:
    """Writes the folder, and prints what is left out."""
    parser = Parser(__doc__)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--last-patient", type=_last_patient, default=LAST_PATIENT)
    args = parser.parse_args()
    rows = read_sheet(args.clone / SHEET)
    choice = choose(rows, args.clone, args.last_patient)
    write(choice, args.clone, args.out)
    patients = len({row["patient"] for row in choice.rows})
    print(f"{len(choice.rows)} of {len(rows)} nodules, of {patients} patients: {args.out}")
    for reason, count in choice.left_out.items():
        print(f"  left out: {count}  {reason}")


if __name__ == "__main__":
    guarded(main)

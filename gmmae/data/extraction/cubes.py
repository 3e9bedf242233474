"""Volumes that are cut already: a folder of files with a CSV, or one `.npz` of arrays.

A folder has a CSV (`nodules.csv`, or `data.csv`) with the column `file`. These columns are optional:

- `coordX, coordY, coordZ`: the nodule's centre, world mm; by default the middle of the volume.
- `diameter_mm`, `category`, and `patient` or another group.
- `mask`: a file; by default the one in `masks/` with the volume's name.
- `spacingX, spacingY, spacingZ`: mm, for arrays, which have no geometry; by default 1.

Files lie in the folder itself or in `images/`.

One file has `volumes [N, z, y, x]`. Optional are `masks`, `groups [N]`, `categories [N]`, `names [N]`, `diameter_mm [N]` and
`spacing_mm [N, 3]` (x, y, z). Text may be bytes in UTF-8, and numbers may be text.

With data.ndim 2 or 1, arrays `[y, x]` or `[x]` are valid too. Of data with more axes the central section is taken.
Coordinates and spacings of the missing axes are then not needed.

An array of data.shape voxels along each axis, without a spacing, stays as it is.
"""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from gmmae.data.extraction.annotations import Fault, Table, patient_key, read_table, rows_by_volume
from gmmae.data.extraction.arrays import ARRAY_SUFFIXES, MEDMNIST_ARRAY, VOLUMES_ARRAY, array_header, array_names, stream
from gmmae.data.extraction.headers import SUFFIXES, as_number, require_diameter, require_spacing
from gmmae.data.extraction.luna16 import ANNOTATIONS, NODULES, find_scans
from gmmae.data.extraction.tasks import Item, Plan, Task, fingerprint, item_of, plan_of, task
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError

ENDINGS = ", ".join((*ARRAY_SUFFIXES, *SUFFIXES))
ARRAYS = {VOLUMES_ARRAY, "masks", "groups", "patient", "categories", "names", "diameter_mm", "spacing_mm"}
"""The arrays of an `.npz` of volumes."""


def plan(config: DataConfig) -> Plan:
    """Lists the tasks of a folder of volumes, or of one `.npz`.

    Raises:
      DataError: no such folder or file, a CSV that cannot be used, or arrays that do not belong together.
    """
    root = config.folder
    if root.suffix == ".npz" and root.is_file():
        if MEDMNIST_ARRAY in array_names(root):
            raise DataError(f"{root} is a file of MedMNIST, and has no array volumes: give --data.source medmnist")
        return _plan_arrays(root, config.ndim)
    if not config.root or not root.is_dir():
        raise DataError(
            f"data.root must be a folder of volumes or one .npz when data.source is cubes; got {config.root or 'none'}"
        )
    csv = root / config.csv_name
    if looks_like_luna16(root, csv):
        raise DataError(
            f"{root} is a folder of scans with {ANNOTATIONS}, as LUNA16 is, and no folder of cubes with {NODULES}: give "
            "--data.source luna16"
        )
    table = read_table(csv, config, "file", ())
    return plan_of(root, csv, table, *_tasks(root, table, csv))


def source_of(root: Path, csv: Path) -> Literal["luna16", "cubes", "medmnist"]:
    """Returns the source that reads a file or a folder; `csv` as in `looks_like_luna16`."""
    if root.suffix == ".npz" and root.is_file() and MEDMNIST_ARRAY in array_names(root):
        return "medmnist"
    return "luna16" if looks_like_luna16(root, csv) else "cubes"


def looks_like_luna16(root: Path, csv: Path) -> bool:
    """Returns whether a folder has the scans and the CSV of LUNA16, and `csv` is that CSV or missing."""
    annotations = root / ANNOTATIONS
    return (csv == annotations or not csv.is_file()) and annotations.is_file() and bool(find_scans(root)[0])


def plan_files(files: Sequence[Path]) -> Plan:
    """Lists the tasks of single files, each with one nodule in its middle.

    The nodule has the name of its file. Where several files have one name, it includes the folders below the common one.

    Raises:
      DataError: a file is missing, repeated, or has no ending of a volume.
    """
    tasks: list[Task] = []
    places = [Path(os.path.abspath(path)) for path in files]
    common = Path(os.path.commonpath([place.parent for place in places])) if places else Path()
    names, copies = Counter(path.name for path in places), Counter(map(os.path.realpath, places))
    for path, place in zip(files, places, strict=True):
        if not path.is_file():
            raise DataError(f"volume file not found: {path}")
        if not path.name.endswith((*SUFFIXES, *ARRAY_SUFFIXES)):
            raise DataError(f"a volume must end in {ENDINGS}; got {path}")
        if copies[os.path.realpath(place)] > 1:
            raise DataError(f"each volume must be given once; got {path} {copies[os.path.realpath(place)]} times")
        name = place.name if names[place.name] == 1 else place.relative_to(common).as_posix()
        tasks.append(task(place, str(path), (Item(name, str(path), name, "", None, None),)))
    return Plan(tuple(tasks), (), len(tasks), fingerprint(Path("/"), tasks), "", "leave the file out")


def _tasks(root: Path, table: Table, csv: Path) -> tuple[list[Task], list[Fault]]:
    tasks: list[Task] = []
    faults: list[Fault] = []
    for name, rows in rows_by_volume(table, csv).items():
        path = _find(root, name)
        if path is None:
            text = f"there is no such file, in {root.name} or its images/; {csv.name} lists it"
            faults.append(Fault("missing", name, text, len(rows)))
        elif not name.endswith((*SUFFIXES, *ARRAY_SUFFIXES)):
            text = f"a volume must end in {ENDINGS}"
            faults.append(Fault("unreadable", name, text, len(rows)))
        else:
            items: list[Item] = []
            for i, row in enumerate(rows):
                mask = root / (row.mask or Path("masks", Path(name).name))
                if (row.mask or os.path.lexists(mask)) and not mask.is_file():
                    mask_name = mask.relative_to(root).as_posix()
                    text = f"there is no such mask; {csv.name} line {row.number} names it"
                    faults.append(Fault("nodule", mask_name, text, 1))
                    continue
                item_name = f"{name}_{i}" if len(rows) > 1 else name
                items.append(item_of(item_name, row, csv.name, mask if mask.is_file() else None))
            if items:
                tasks.append(task(path, name, tuple(items)))
    return tasks, faults


def _find(root: Path, name: str) -> Path | None:
    return next((path for path in (root / name, root / "images" / name) if path.is_file()), None)


def _texts(root: Path, key: str, values: np.ndarray | None) -> np.ndarray | None:
    """Returns a column of texts; bytes are read as UTF-8."""
    if values is None or values.dtype.kind != "S":
        return values
    try:
        return np.char.decode(values, "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{root}: {key} must be text; got bytes that are no UTF-8 ({error})") from error


def _numbers(root: Path, key: str, values: np.ndarray | None) -> np.ndarray | None:
    """Returns a column of numbers, which may be written as text."""
    if values is None or values.dtype.kind in "iuf":
        return values
    words = _texts(root, key, values)
    assert words is not None
    numbers = np.array([as_number(str(word)) for word in words.ravel()]).reshape(words.shape)
    for place, word in zip(np.argwhere(np.isnan(numbers)), words[np.isnan(numbers)], strict=True):
        if str(word).strip().lower() != "nan":
            raise DataError(f"{root}: {key}[{', '.join(map(str, place))}] must be a number; got {word}")
    return numbers


def _plan_arrays(root: Path, ndim: int) -> Plan:
    shape, _ = array_header(root, VOLUMES_ARRAY)
    samples, axes = (*shape, 0)[0], len(shape) - 1
    if samples < 1 or not ndim <= axes <= 3:
        wanted = ", ".join("zyx"[3 - ndim :])
        raise DataError(
            f"{root}: volumes must have the axes N, {wanted}{' or more' * (ndim < 3)}; got the shape {shape}: data.ndim "
            "must be the number of axes besides N, or less"
        )
    keys = array_names(root)
    if "masks" in keys and array_header(root, "masks")[0] != shape:
        raise DataError(f"{root}: masks must have the shape of volumes, {shape}; got {array_header(root, 'masks')[0]}")

    def column(key: str, *axes: int) -> np.ndarray | None:
        if key not in keys:
            return None
        values = next(stream(root, key, whole=True))
        if values.shape != (samples, *axes):
            raise DataError(f"{root}: {key} must have the shape {(samples, *axes)}, as volumes has; got {values.shape}")
        return values

    named = "groups" if "groups" in keys else "patient"
    names, groups, categories = (_texts(root, key, column(key)) for key in ("names", named, "categories"))
    diameter_mm = _numbers(root, "diameter_mm", column("diameter_mm"))
    spacing_mm = _numbers(root, "spacing_mm", column("spacing_mm", axes))
    if names is not None and len(set(names.tolist())) < samples:
        raise DataError(f"{root}: names must differ from each other; {samples - len(set(names.tolist()))} are repeated")
    items: list[Item] = []
    faults: list[Fault] = []
    for i in range(samples):
        name = f"{root.stem}_{i:05d}" if names is None else str(names[i])
        diameter = None if diameter_mm is None else float(diameter_mm[i])
        spacing = None if spacing_mm is None else tuple(float(mm) for mm in spacing_mm[i])
        place = f"volumes[{i}]"
        try:
            require_diameter(diameter)
            require_spacing(spacing or (), "spacing_mm")
        except DataError as error:
            faults.append(Fault("row", f"{root.name} {place}", str(error), 1))
            continue
        group = "" if groups is None else str(groups[i])
        category = "" if categories is None else str(categories[i])
        patient = patient_key(group)
        items.append(Item(name, place, group if patient else "", category, None, diameter, spacing, i, patient=patient))
    tasks = (task(root, root.name, tuple(items)),) if items else ()
    unread = tuple(sorted({*keys} - ARRAYS))
    return Plan(tasks, tuple(faults), samples, fingerprint(root.parent, tasks), "", unread=unread)

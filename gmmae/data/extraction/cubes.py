"""Volumes that are cut already: a folder of files with a CSV, or one `.npz` of arrays.

A folder has a CSV (`nodules.csv`, or `data.csv`) with the column `file`. These columns are optional:

- `coordX, coordY, coordZ`: the nodule's centre, world mm; by default the middle of the volume.
- `diameter_mm`, `category`, and `patient` or another group.
- `mask`: a file; by default the one in `masks/` with the volume's name.
- `spacingX, spacingY, spacingZ`: mm, for arrays, which have no geometry; by default 1.

Files lie in the folder itself or in `images/`.

One file has `volumes [N, z, y, x]`. Optional are `masks`, `patient [N]` or `groups [N]`, `categories [N]`, `names [N]`,
`diameter_mm [N]` and `spacing_mm [N, 3]` (x, y, z). Text may be bytes in UTF-8, and numbers may be text.

With data.ndim 2 or 1, arrays `[y, x]` or `[x]` are valid too. Of data with more axes the central section is taken.
Coordinates and spacings of the missing axes are then not needed.

An array of data.shape voxels along each axis, without a spacing, stays as it is.
"""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from zipfile import is_zipfile

import numpy as np

from gmmae.data.extraction.annotations import SPACINGS, Item, table_of
from gmmae.data.extraction.arrays import MEDMNIST_ARRAY, VOLUMES_ARRAY, array_header, array_names, member
from gmmae.data.extraction.luna16 import find_scans
from gmmae.data.extraction.tasks import ENDINGS, Plan, Task, plan_folder, task
from gmmae.data.settings import ANNOTATIONS, NODULES, DataConfig
from gmmae.data.volumes import DataError

Source = Literal["synthetic", "luna16", "cubes", "medmnist"]
ARRAYS = {
    **{name: name for name in ("masks", "patient", "names", "diameter_mm", "spacing_mm")},
    **{"groups": "group", "categories": "category"},
}
"""The arrays of an `.npz` of volumes, and what columns are called that say the same."""


def plan(config: DataConfig) -> Plan:
    """Lists the tasks of a folder of volumes, or of one `.npz`.

    Raises:
      DataError: no such folder or file, a CSV that cannot be used, or arrays that do not belong together.
    """
    root = config.folder
    if root.suffix == ".npz" and root.is_file():
        return _plan_arrays(root, config)
    if not config.root or not root.is_dir():
        raise DataError(
            f"data.root must be a folder of volumes or one .npz when data.source is cubes; got {config.root or 'none'}"
        )

    def find(name: str) -> Path | None:
        return next((path for path in (root / name, root / "images" / name) if path.is_file()), None)

    return plan_folder(config, "file", (), find)


def source_of(root: Path, csv: str = "auto", default: Source = "cubes") -> Source:
    """Returns the source that reads a file or a folder, where it can be told; `csv` as in `data.csv`."""
    names = array_names(root) if root.suffix == ".npz" and is_zipfile(root) else ()
    if MEDMNIST_ARRAY in names:
        return "medmnist"
    if looks_like_luna16(root, csv):
        return "luna16"
    return "cubes" if VOLUMES_ARRAY in names or (root / NODULES).is_file() else default


def looks_like_luna16(root: Path, csv: str = "auto") -> bool:
    """Returns whether a folder has the scans and the CSV of LUNA16, and `csv` names no other CSV that is there."""
    other = csv != ANNOTATIONS and (root / (NODULES if csv == "auto" else csv)).is_file()
    return not other and (root / ANNOTATIONS).is_file() and bool(find_scans(root)[0])


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
        if not path.name.endswith(ENDINGS):
            raise DataError(f"a volume must end in {', '.join(ENDINGS)}; got {path}")
        if copies[os.path.realpath(place)] > 1:
            raise DataError(f"each volume must be given once; got {path} {copies[os.path.realpath(place)]} times")
        name = place.name if names[place.name] == 1 else place.relative_to(common).as_posix()
        tasks.append(task(place, str(path), (Item(name, str(path), name, "", None, None),)))
    return Plan(tuple(tasks), (), len(tasks), "leave the file out")


def _plan_arrays(root: Path, config: DataConfig) -> Plan:
    """Lists the volumes of one `.npz`. Its arrays with a value for each volume are read as the columns of a CSV."""
    shape, _ = array_header(root, VOLUMES_ARRAY)
    samples, axes = (*shape, 0)[0], len(shape) - 1
    if samples < 1 or not config.ndim <= axes <= 3:
        wanted = ", ".join("zyx"[3 - config.ndim :])
        raise DataError(
            f"{root}: volumes must have the axes N, {wanted}{' or more' * (config.ndim < 3)}; got the shape {shape}: data.ndim "
            "must be the number of axes besides N, or less"
        )
    columns, unread = {VOLUMES_ARRAY: [f"volumes[{i}]" for i in range(samples)]}, list[str]()
    for key in sorted({*array_names(root)} - {VOLUMES_ARRAY}):
        wanted = {"masks": shape, "spacing_mm": (samples, axes)}.get(key, (samples,))
        try:
            found, _ = array_header(root, key)
            if found != wanted:
                raise DataError(f"{root}: {key} must have the shape {wanted}, as volumes has; got {found}")
        except DataError:
            if key in ARRAYS:
                raise
            unread.append(key)
            continue
        if key == "masks":
            continue
        values = member(root, key)
        try:
            texts = np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
        except UnicodeDecodeError as error:
            raise DataError(f"{root}: {key} must be text; got bytes that are no UTF-8 ({error})") from error
        names = SPACINGS[:axes] if key == "spacing_mm" else [ARRAYS.get(key, key)]
        columns |= dict(zip(names, texts.reshape(samples, -1).T.tolist(), strict=True))
    records = [[str(value) for value in values] for values in zip(*columns.values(), strict=True)]
    table = table_of(root, tuple(columns), enumerate(records), config, VOLUMES_ARRAY, form="volumes[{}]")
    names = columns.get("names", [f"{root.stem}_{i:05d}" for i in range(samples)])
    if repeated := samples - len(set(names)):
        raise DataError(f"{root}: names must differ from each other; {repeated} are repeated")
    rows = [
        row._replace(name=str(names[row.number]), place=row.file, part=row.number, cells=row.cells[1:]) for row in table.rows
    ]
    tasks = (task(root, root.name, tuple(rows)),) if rows else ()
    return Plan(tasks, tuple(table.faults), samples, header=table.header[1:], used=table.used, unread=tuple(unread))

"""The scans and volumes that a folder or one `.npz` lists, as tasks.

docs/data.md has their forms. Besides, a folder of cubes may have a `mask` in its CSV, by default the one in `masks/` with the
volume's path, or with its name if no other volume has it, and for arrays `spacingX, spacingY, spacingZ` in mm, by default 1.
An array of data.shape, without a spacing, stays as it is.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from zipfile import is_zipfile

import numpy as np

from gmmae.data.extraction.annotations import SPACINGS, Fault, Item, find_csv, read_table, table_of
from gmmae.data.extraction.arrays import MEDMNIST_ARRAY, VOLUMES_ARRAY, array_header, array_names, member
from gmmae.data.extraction.tasks import ENDINGS, Plan, Task, relative, task
from gmmae.data.settings import ANNOTATIONS, NODULES, DataConfig, Source
from gmmae.data.volumes import DataError

ARRAYS = {name: name for name in ("masks", "patient", "names", "diameter_mm", "spacing_mm")} | {
    "groups": "group",
    "categories": "category",
}
"""The arrays of an `.npz` of volumes, and their names as columns."""


def plan_luna16(config: DataConfig) -> Plan:
    """Lists the tasks of a LUNA16 folder."""
    root = config.folder
    if not config.root or not root.is_dir():
        raise DataError(
            f"data.root must be the folder of the .mhd scans when data.source is luna16; got {config.root or 'none'}"
        )
    scans, faults = find_scans(root)
    if not scans:
        raise DataError(f"data.root must hold .mhd scans, in subset*/ or directly; {root} has none")
    return _plan_folder(config, "seriesuid", scans.get, faults)


def find_scans(root: Path) -> tuple[dict[str, Path], list[Fault]]:
    """The headers of a folder's scans by series UID, and a fault for each second scan of one UID."""
    scans, faults = dict[str, Path](), list[Fault]()
    for path in sorted([*root.glob("[!.]*.mhd"), *root.glob("subset*/[!.]*.mhd")]):  # macOS leaves a `._name` beside files
        first = scans.setdefault(path.stem, path)
        if first is not path:
            text = f"is also in {first.parent.name}, which is used: remove one of the two"
            faults.append(Fault("ambiguous", str(path.relative_to(root)), text, 0))
    return scans, faults


def plan_cubes(config: DataConfig) -> Plan:
    """Lists the tasks of a folder of volumes, or of one `.npz`."""
    root = config.folder
    if root.suffix == ".npz" and root.is_file():
        return _plan_arrays(root, config)
    if not config.root or not root.is_dir():
        raise DataError(
            f"data.root must be a folder of volumes or one .npz when data.source is cubes; got {config.root or 'none'}"
        )

    def find(name: str) -> Path | None:
        return next((path for path in (root / name, root / "images" / name) if path.is_file()), None)

    return _plan_folder(config, "file", find, [])


def _plan_folder(config: DataConfig, column: str, find: Callable[[str], Path | None], faults: list[Fault]) -> Plan:
    root, csv, tasks = config.folder, find_csv(config), list[Task]()
    table, scans = read_table(csv, config, column), column == "seriesuid"
    faults, dropped = [*table.faults, *faults], [*table.dropped]
    names = Counter(Path(file).name for file in {row.file for row in table.rows})
    for name, group in groupby(sorted(table.rows, key=lambda row: row.file), lambda row: row.file):
        rows, path, items = list(group), find(name), list[Item]()
        if path is None or not (scans or name.endswith(ENDINGS)):
            kind, text = "missing", f"there is no such file in the folder, its images/ or subset*/; {csv.name} lists it"
            if path is not None:
                kind, text = "unreadable", f"a volume must end in {', '.join(ENDINGS)}"
            faults.append(Fault(kind, name, text, len(rows)))
            dropped += rows
            continue
        for i, row in enumerate(rows):
            usual = root / "masks" / name.removeprefix("images/")
            if names[usual.name] == 1 and not os.path.lexists(usual):
                usual = root / "masks" / usual.name
            mask = root / row.mask if row.mask else usual
            if (row.mask or os.path.lexists(mask)) and not mask.is_file():
                text = f"there is no such mask; {csv.name} line {row.number} names it"
                faults.append(Fault("nodule", relative(root, mask), text, 1))
                dropped.append(row)
                continue
            own = f"{name}_{i}" if scans or rows[1:] else name
            items.append(row._replace(name=own, group=row.group or name, mask=mask if mask.is_file() else None))
        if items:
            tasks.append(task(path, relative(root, path) if scans else name, items))
    listed = len(table.rows) + len(table.faults)
    return Plan(tuple(tasks), faults, listed, header=table.header, used=table.used, dropped=dropped)


def source_of(root: Path, csv: str = "auto", default: Source = "cubes") -> Source:
    """The source that reads a file or a folder, where it can be told; `csv` as in `data.csv`."""
    names = array_names(root) if root.suffix == ".npz" and is_zipfile(root) else ()
    if MEDMNIST_ARRAY in names:
        return "medmnist"
    other = csv != ANNOTATIONS and (root / (NODULES if csv == "auto" else csv)).is_file()
    if not other and (root / ANNOTATIONS).is_file() and find_scans(root)[0]:
        return "luna16"
    return "cubes" if VOLUMES_ARRAY in names or (root / NODULES).is_file() else default


def plan_files(files: Sequence[Path]) -> Plan:
    """Lists the tasks of single files, each with one nodule in its middle.

    Names of several files with one name include the folders below the common one.
    """
    tasks, places = list[Task](), [Path(os.path.abspath(path)) for path in files]
    common = os.path.commonpath([place.parent for place in places])
    names, copies = Counter(path.name for path in places), Counter(map(os.path.realpath, places))
    for path, place in zip(files, places, strict=True):
        if not path.is_file():
            raise DataError(f"volume file not found: {path}")
        if not path.name.endswith(ENDINGS):
            raise DataError(f"a volume must end in {', '.join(ENDINGS)}; got {path}")
        if (count := copies[os.path.realpath(place)]) > 1:
            raise DataError(f"each volume must be given once; got {path} {count} times")
        name = place.name if names[place.name] == 1 else place.relative_to(common).as_posix()
        tasks.append(task(place, str(path), [Item(name, str(path), name)]))
    return Plan(tuple(tasks), [], len(tasks), "leave the file out")


def _plan_arrays(root: Path, config: DataConfig) -> Plan:
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
        if twice := [name for name in names if name in columns]:
            raise DataError(f"{root}: arrays must have different meanings; {key} and another one are {twice[0]}: rename one")
        columns |= dict(zip(names, texts.reshape(samples, -1).T.tolist(), strict=True))
    records = [*enumerate([*map(str, values)] for values in zip(*columns.values(), strict=True))]
    table = table_of(root, [*columns], records, config, VOLUMES_ARRAY, form="volumes[{}]")
    names = columns.get("names", [f"{root.stem}_{i:05d}" for i in range(samples)])
    if repeated := samples - len(set(names)):
        raise DataError(f"{root}: names must differ from each other; {repeated} are repeated")
    rows = [
        row._replace(name=str(names[row.number]), place=row.file, part=row.number, cells=row.cells[1:]) for row in table.rows
    ]
    tasks = (task(root, root.name, rows),) if rows else ()
    dropped = [row._replace(cells=row.cells[1:]) for row in table.dropped]
    return Plan(tasks, table.faults, samples, header=table.header[1:], used=table.used, unread=unread, dropped=dropped)

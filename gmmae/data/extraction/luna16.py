"""A folder shaped like LUNA16: `.mhd` scans with `.raw` or `.zraw`, and a CSV of nodules in world mm.

The CSV has the columns `seriesuid, coordX, coordY, coordZ, diameter_mm` (LUNA16's `annotations.csv`, or any other with them).
Scans lie at `subset*/seriesuid.mhd` or `seriesuid.mhd`. The CSV chooses among them.

Source: Setio et al. 2017, https://luna16.grand-challenge.org/Data/.
"""

from pathlib import Path

from gmmae.data.extraction.annotations import COORDINATES, Fault, find_csv, read_table
from gmmae.data.extraction.tasks import Plan, Task, by_volume, plan_of, task
from gmmae.data.settings import ANNOTATIONS, NODULES, DataConfig
from gmmae.data.volumes import DataError

COLUMNS = (*COORDINATES, "diameter_mm")


def plan(config: DataConfig) -> Plan:
    """Lists the tasks of a LUNA16 folder. It opens only the headers of scans.

    Raises:
      DataError: no such folder, no scans, or a CSV that cannot be used.
    """
    root = config.folder
    if not config.root or not root.is_dir():
        hint = ": one .npz is read with --data.source cubes" if root.suffix == ".npz" and root.is_file() else ""
        raise DataError(
            f"data.root must be the folder of the .mhd scans when data.source is luna16; got {config.root or 'none'}{hint}"
        )
    scans, faults = find_scans(root)
    if config.csv == "auto" and (root / NODULES).is_file() and not (root / ANNOTATIONS).is_file():
        raise DataError(f"{root} is a folder of cubes with {NODULES}, and has no {ANNOTATIONS}: give --data.source cubes")
    if not scans:
        raise DataError(f"data.root must hold .mhd scans, in subset*/ or directly; {root} has none")
    csv = find_csv(config)
    table = read_table(csv, config, "seriesuid", COLUMNS)
    tasks: list[Task] = []
    for uid, rows in by_volume(table).items():
        if uid in scans:
            items = tuple(row._replace(name=f"{uid}_{i}") for i, row in enumerate(rows))
            tasks.append(task(scans[uid], str(scans[uid].relative_to(root)), items))
        else:
            text = f"there is no such scan; {csv.name} lists {len(rows)} of its nodules"
            faults.append(Fault("missing", f"{uid}.mhd", text, len(rows)))
    return plan_of(root, csv, table, tasks, faults)


def find_scans(root: Path) -> tuple[dict[str, Path], list[Fault]]:
    """Returns the headers of a folder's scans by their series UID, and a fault for each second scan of one UID."""
    scans: dict[str, Path] = {}
    faults: list[Fault] = []
    for path in sorted([*root.glob("[!.]*.mhd"), *root.glob("subset*/[!.]*.mhd")]):  # macOS leaves a `._name` beside files
        first = scans.setdefault(path.stem, path)
        if first is not path:
            text = f"is also in {first.parent.name}, which is used: remove one of the two"
            faults.append(Fault("ambiguous", str(path.relative_to(root)), text, 0))
    return scans, faults

"""A folder shaped like LUNA16: `.mhd` scans with `.raw` or `.zraw`, and a CSV of nodules in world mm.

The CSV has the columns `seriesuid, coordX, coordY, coordZ, diameter_mm` (LUNA16's `annotations.csv`, or any other with them).
Scans lie at `subset*/seriesuid.mhd` or `seriesuid.mhd`. The CSV chooses among them.

Source: Setio et al. 2017, https://luna16.grand-challenge.org/Data/.
"""

from pathlib import Path

from gmmae.data.extraction.annotations import COORDINATES, Fault
from gmmae.data.extraction.tasks import Plan, plan_folder
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError

COLUMNS = (*COORDINATES, "diameter_mm")


def plan(config: DataConfig) -> Plan:
    """Lists the tasks of a LUNA16 folder. It opens only the headers of scans.

    Raises:
      DataError: no such folder, no scans, or a CSV that cannot be used.
    """
    root = config.folder
    if not config.root or not root.is_dir():
        raise DataError(
            f"data.root must be the folder of the .mhd scans when data.source is luna16; got {config.root or 'none'}"
        )
    scans, faults = find_scans(root)
    if not scans:
        raise DataError(f"data.root must hold .mhd scans, in subset*/ or directly; {root} has none")
    return plan_folder(config, "seriesuid", COLUMNS, scans.get, faults, numbered=True)


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

"""The section `data` of a configuration: where volumes come from, and how they are cut and divided."""

import math
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from gmmae.base.rules import RESUMABLE, NonNegativeFloat, NonNegativeInt, Rule, Section, at_least, require

EDGE = re.compile(r"(?P<number>\d+\.?\d*|\.\d+)(?P<unit>x|mm)|whole")
"""What `data.edge` may say: a multiple of the diameter, millimetres, or the whole volume."""


def _sound_edge(value: str) -> bool:
    edge = EDGE.fullmatch(value)
    return edge is not None and (edge["number"] is None or float(edge["number"]) > 0)


def _sound_window(window: tuple[float, float]) -> bool:
    low, high = window
    return math.isfinite(low) and math.isfinite(high) and low < high


OnError = Literal["skip", "refuse"]

Edge = Annotated[str, Rule("a positive number followed by x or mm (1.25x, 20mm), or whole", _sound_edge)]
Window = Annotated[tuple[float, float], Rule("two increasing HU values", _sound_window)]


@dataclass(frozen=True)
class DataConfig(Section, name="data"):
    source: Literal["synthetic", "luna16", "cubes"] = "synthetic"  # where the nodules come from
    root: str = ""  # luna16, cubes: the folder of the scans or volumes; cubes: or one .npz file
    csv: str = ""  # luna16, cubes: the CSV file, looked for in root; empty: annotations.csv (luna16), nodules.csv (cubes)
    ndim: Literal[1, 2, 3] = 3  # axes of a volume: 3, or its central slice (2) or central line (1)
    size: Annotated[int, at_least(4)] = 16  # samples along each axis
    samples: Annotated[int, at_least(2)] = 768  # synthetic: volumes made, training and validation together
    validation: int | float = 0.25  # validation volumes: a fraction between 0 and 1, or a count
    hu_window: Window = (-1000.0, 400.0)  # HU mapped to 0 and to 1; beyond is clipped
    seed: NonNegativeInt = 0  # of the synthetic volumes and of the split into training and validation
    edge: Edge = "1.25x"  # luna16, cubes: a cube's edge: 1.25x the diameter, 20mm, or whole (the volume's longest)
    fill: Literal["air", "replicate"] = "air"  # luna16, cubes: what lies outside the scan: -1000 HU, or its outermost voxels
    category_column: str = "category"  # luna16, cubes: the CSV's column of nodule categories, where there is one
    group_column: str = ""  # luna16, cubes: the column no split divides; empty: patient or group, otherwise the scan
    on_error: Annotated[OnError, RESUMABLE] = "skip"  # luna16, cubes: leave a broken scan or row out and report it, or stop
    workers: Annotated[NonNegativeInt, RESUMABLE] = 0  # luna16, cubes: processes that read scans; 0 takes one a core
    scan_time_limit_s: Annotated[NonNegativeFloat, RESUMABLE] = 300.0  # luna16, cubes: to read a volume at most; 0: no limit
    cache: Annotated[str, RESUMABLE] = ""  # luna16, cubes: folder of extracted cubes; empty: gmmae in the user's cache folder
    augment: bool = False  # training volumes are flipped and turned by 90 degrees at random

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction = isinstance(self.validation, float)
        require(
            0 < self.validation < 1 if fraction else self.validation >= 1,
            "data.validation",
            "a count of at least 1 or a fraction between 0 and 1",
            self.validation,
        )

"""The section `data` of a configuration."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from gmmae.config.rules import (
    FINGERPRINTED,
    MAY_CHANGE_ON_RESUME,
    PATH,
    PositiveFloat,
    PositiveInt,
    Rule,
    Section,
    Seed,
    Text,
    at_least,
    require,
)
from gmmae.config.schema import Place

CROP_PATTERN = re.compile(r"(?P<number>\d+\.?\d*|\.\d+)(?P<unit>x|mm)|whole")

COLUMNS = ("file_column", "diameter_column", "category_column", "group_column")
"""Fields that name the CSV's columns."""

AIR_HU = -1000.0

ANNOTATIONS, NODULES = "annotations.csv", "nodules.csv"
"""The CSVs of a folder of scans, as LUNA16's, and of cubes."""


def _sound_edge(value: str) -> bool:
    edge = CROP_PATTERN.fullmatch(value)
    return edge is not None and float(edge["number"] or 1) > 0


Source = Literal["synthetic", "luna16", "cubes", "medmnist"]
OnError = Literal["skip", "refuse"]

Crop = Annotated[str, Rule("a positive number followed by x or mm (1.25x, 20mm), or whole", _sound_edge)]
AllowSeen = Annotated[bool, MAY_CHANGE_ON_RESUME]
Cache = Annotated[str, Rule("auto, or a path with a / in it", lambda place: place == "auto" or "/" in place)]
Csv = Annotated[Text, FINGERPRINTED]
Size = Annotated[
    int | tuple[int, ...], Rule("at least 4", lambda size: min(size if isinstance(size, tuple) else (size,), default=0) >= 4)
]
Validation = Annotated[
    int | float,
    Rule("a count of at least 1 or a fraction between 0 and 1", lambda x: 0 < x < 1 if isinstance(x, float) else x >= 1),
]
Window = Annotated[tuple[float, float], Rule("two increasing numbers", lambda window: window[0] < window[1])]


@dataclass(frozen=True)
class DataConfig(Section, name="data"):
    """The section `data`: the source of the volumes, their cut and their split."""

    source: Source = "synthetic"  # where the nodules come from
    root: Place = None  # luna16, cubes: the folder of the scans or volumes; cubes, medmnist: or one .npz file
    csv: Csv = "auto"  # luna16, cubes: the CSV in root; auto: annotations.csv (luna16), nodules.csv (cubes), or the only one
    ndim: Literal[1, 2, 3] = 3  # axes: 3; 2 for arrays [y, x], or volumes' central slices; 1 for [x], or central lines
    shape: Size = 16  # samples along every axis, or along each: z, y, x (the last ndim of them)
    samples: Annotated[int, at_least(2)] = 768  # synthetic: volumes made, training and validation together
    validation: Validation = 0.25  # validation volumes: a fraction between 0 and 1, or a count; medmnist: the file has them
    window: Window = (-1000.0, 400.0)  # values that become 0 and 1: HU; cubes: another is in the data's unit; medmnist: 0 255
    seed: Seed = 0  # of the synthetic volumes and of the split into training and validation
    crop: Crop = "1.25x"  # luna16, cubes: a cube's edge: 1.25x the diameter, 20mm, or whole (medmnist: always whole)
    padding: Literal["air", "replicate"] = "air"  # what lies outside: -1000 HU (else the window's low), or the outermost voxels
    category_column: str = "category"  # luna16, cubes: the CSV's column of nodule categories, where there is one
    file_column: Text = "auto"  # luna16, cubes: the column of the volumes; auto: file, image, image_path or path; or seriesuid
    diameter_column: Text = "auto"  # luna16, cubes: the column of diameters; auto: diameter_mm, size_mm or diameter, in mm
    group_column: Text = "auto"  # luna16, cubes: samples equal in this column also stay on one side of the split
    on_error: Annotated[OnError, MAY_CHANGE_ON_RESUME] = "skip"  # luna16, cubes: report a broken scan or row, or stop at it
    workers: Annotated[PositiveInt | Literal["auto"], MAY_CHANGE_ON_RESUME] = "auto"  # luna16, cubes: processes that read scans
    scan_time_limit_s: Annotated[PositiveFloat | None, MAY_CHANGE_ON_RESUME] = 300.0  # luna16, cubes: to read a volume
    cache: Annotated[Cache, MAY_CHANGE_ON_RESUME, PATH] = "auto"  # luna16, cubes: folder of extracted cubes; auto: the user's
    augment_with: Place = None  # a folder of cubes with nodules.csv, generated ones: they join the training set
    allow_seen: AllowSeen = False  # go on though the run of init_from, or the generator, was trained on validation samples
    augment: bool = False  # training volumes are flipped and turned by 90 degrees at random

    def __post_init__(self) -> None:
        if isinstance(self.shape, tuple) and len(set(self.shape)) == 1 and len(self.shape) in (1, self.ndim):
            object.__setattr__(self, "shape", self.shape[0])  # so that runs that are equal are named so
        if self.source == "medmnist":  # whole cubes of bytes, so the defaults of CT do not fit
            if self.window == DataConfig.window:
                object.__setattr__(self, "window", (0.0, 255.0))
            if self.crop == DataConfig.crop:
                object.__setattr__(self, "crop", "whole")
            require(self.crop == "whole", "data.crop", "whole for data.source = medmnist", self.crop)
            require(isinstance(self.shape, int), "data.shape", "one number for data.source = medmnist", self.shape)
        super().__post_init__()
        rule = f"one number, or one for each of data.ndim = {self.ndim} axes"
        require(isinstance(self.shape, int) or len(self.shape) == self.ndim, "data.shape", rule, self.shape)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Samples along each axis, in array order."""
        return (self.shape,) * self.ndim if isinstance(self.shape, int) else self.shape

    @property
    def folder(self) -> Path:
        """The folder or file of `root`; empty without one."""
        return Path(self.root or "")

    @property
    def volume_shape(self) -> tuple[int, int, int]:
        """Voxels of a cube along z, y, x. Axes that its central section loses have the longest edge."""
        z, y, x = (max(self.sample_shape),) * (3 - self.ndim) + self.sample_shape
        return (z, y, x)

    @property
    def min_ndim(self) -> int:
        """Scans have three axes; arrays may have fewer."""
        return self.ndim if self.source == "cubes" else 3

    @property
    def hu(self) -> bool:
        """Whether voxels are in Hounsfield units, which are checked and kept as integers.

        Cubes are with the default window, and MedMNIST's bytes never.
        """
        return self.source not in ("cubes", "medmnist") or self.window == DataConfig.window

    @property
    def outside(self) -> float | None:
        """The value outside of a scan; None repeats its outermost voxels."""
        if self.padding == "replicate":
            return None
        return AIR_HU if self.hu else self.window[0]

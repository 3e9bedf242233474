"""The settings of the built-in workloads, read without JAX, before a run's devices are known."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from gmmae.config.rules import (
    ConfigError,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PositiveInts,
    Section,
    Seed,
    Text,
    at_least,
    require,
)
from gmmae.data.settings import AllowSeen, Csv, DataConfig, Place, Validation, Window
from gmmae.models.settings import ModelConfig


@dataclass(frozen=True)
class NodulesConfig(Section):
    """The settings of the workload `nodules`."""

    loss: Literal["msle", "mse", "mae"] = "msle"  # between the input density and the reconstruction
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        left = min(self.data.sample_shape) - sum(kernel - 1 for kernel in self.model.kernels)
        if self.model.padding == "VALID" and left < 1:
            raise ConfigError(
                f"model.kernels must leave at least 1 voxel of data.shape = {self.data.shape} under VALID padding; got "
                f"{self.model.kernels}, which leaves {left}: use smaller kernels or model.padding = SAME"
            )


@dataclass(frozen=True)
class PatchConfig(Section, name="data"):
    """The section `data`: the nodules, and the patches around them."""

    source: Literal["synthetic", "cubes"] = "synthetic"  # where the nodules come from
    root: Place = None  # cubes: the folder of the volumes, with masks
    csv: Csv = "auto"  # cubes: the CSV in root; auto: nodules.csv, or the only one
    ndim: Literal[2, 3] = 2  # axes: 2, axial slices at their own pixel spacing; 3, volumes of cubic voxels
    shape: Annotated[int, at_least(4)] = 64  # samples of a patch along every axis, as the network sees it
    jitter: NonNegativeInt = 11  # largest offset of a patch from the nodule's centre along each axis, samples
    voxel_mm: PositiveFloat = 1.0  # 3 axes: edge of a voxel
    neighbours: NonNegativeInt = 0  # 2 axes: slices above, and as many below, that are further channels
    empty_slices: bool = False  # 2 axes: whether slices above and below that hold no nodule are samples too
    samples: Annotated[int, at_least(2)] = 240  # synthetic: nodules made, training and validation together
    validation: Validation = 0.25  # validation nodules: a fraction between 0 and 1, or a count
    folds: Annotated[int | None, at_least(2)] = None  # parts of a cross-validation by patient; none: data.validation decides
    fold: NonNegativeInt = 0  # the part that is for validation, from 0
    window: Window = (-1000.0, 400.0)  # values that become -1 and 1: HU; cubes: another window is in the data's own unit
    seed: Seed = 0  # of the synthetic nodules, of the split, and of the offsets at validation
    file_column: Text = "auto"  # cubes: the CSV's column of the volumes; auto: file, image, image_path or path
    diameter_column: Text = "auto"  # cubes: the CSV's column of diameters; auto: diameter_mm, size_mm or diameter, in mm
    category_column: str = "category"  # cubes: the CSV's column of nodule categories, where there is one
    group_column: Text = "auto"  # cubes: samples equal in this column also stay on one side of the split
    augment: bool = True  # training samples are reflected and rotated by 90 degrees at random, with their masks
    allow_seen: AllowSeen = False  # go on though the run of init_from was trained on validation samples

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "0 without data.folds" if self.folds is None else f"below data.folds = {self.folds}"
        require(self.fold < (self.folds or 1), "data.fold", rule, self.fold)


@dataclass(frozen=True)
class UNetConfig(Section, name="model"):
    """The section `model`: the U-Net."""

    features: PositiveInts = (16, 32, 64, 128)  # channels of each stage, from the finest
    groups: PositiveInt | None = None  # of channels that are normalised together; none: each by itself (instance normalisation)

    def __post_init__(self) -> None:
        super().__post_init__()
        sound = not self.groups or all(features % self.groups == 0 for features in self.features)
        require(sound, "model.groups", f"none or a divisor of each of model.features = {self.features}", self.groups)


@dataclass(frozen=True)
class SegmentationConfig(Section):
    """The settings of the workload `segmentation`."""

    data: PatchConfig = field(default_factory=PatchConfig)
    model: UNetConfig = field(default_factory=UNetConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        step = 2 ** (len(self.model.features) - 1)
        if self.data.shape % step or (self.data.shape == step and not self.model.groups):  # a norm of one voxel is 0
            raise ConfigError(
                f"data.shape must be a multiple of {step} for {len(self.model.features)} stages of model.features, and larger "
                f"without model.groups; got {self.data.shape}: change either"
            )

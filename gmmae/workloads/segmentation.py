"""The workload of the follow-up study: a U-Net that segments a lung nodule in axial slices or in small volumes.

The network's input is cropped from a wider patch. In training the offset is random; at validation each sample has a fixed one.
So the position tells little about the nodule. Voxels outside of the volume count neither in the loss nor in the Dice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from gmmae.config.rules import ConfigError, NonNegativeInt, PositiveFloat, Rule, Section, Seed, at_least, require
from gmmae.data.settings import DataConfig, Window
from gmmae.data.splits import Split
from gmmae.data.volumes import central_section
from gmmae.workloads.interface import Events, Params, PerSample, Samples, Snapshot, Splits, Workload

if TYPE_CHECKING:
    from jax import Array

    from gmmae.data.native_volumes import NativeNodule
    from gmmae.data.patches import Patches

CPU_BATCH_PIXELS = 64**2
"""Pixels that a CPU's device trains on at once. A layer of the finest stage takes 0.25 MB then, so a few fit into a cache."""
FEATURES = Rule("one or more positive numbers", lambda values: bool(values) and min(values) >= 1)
VALIDATION = Rule(
    "a count of at least 1 or a fraction between 0 and 1", lambda x: 0 < x < 1 if isinstance(x, float) else x >= 1
)


@dataclass(frozen=True)
class PatchConfig(Section, name="data"):
    """The section `data`: the nodules, and the patches around them."""

    source: Literal["synthetic", "cubes"] = "synthetic"  # where the nodules come from
    root: str = ""  # cubes: the folder of the volumes, with masks
    csv: str = ""  # cubes: the CSV file, looked for in root; empty: nodules.csv
    ndim: Literal[2, 3] = 2  # axes: 2, axial slices at their own pixel spacing; 3, volumes of cubic voxels
    shape: Annotated[int, at_least(4)] = 64  # samples of a patch along every axis, as the network sees it
    jitter: NonNegativeInt = 11  # largest offset of a patch from the nodule's centre along each axis, samples
    voxel_mm: PositiveFloat = 1.0  # 3 axes: edge of a voxel
    neighbours: NonNegativeInt = 0  # 2 axes: slices above, and as many below, that are further channels
    empty_slices: bool = False  # 2 axes: whether slices above and below that hold no nodule are samples too
    samples: Annotated[int, at_least(2)] = 240  # synthetic: nodules made, training and validation together
    validation: Annotated[int | float, VALIDATION] = 0.25  # validation nodules: a fraction between 0 and 1, or a count
    folds: NonNegativeInt = 0  # parts of a cross-validation by patient; 0: data.validation decides
    fold: NonNegativeInt = 0  # the part that is for validation, from 0
    window: Window = (-1000.0, 400.0)  # values that become -1 and 1: HU; cubes: another window is in the data's own unit
    seed: Seed = 0  # of the synthetic nodules, of the split, and of the offsets at validation
    category_column: str = "category"  # cubes: the CSV's column of nodule categories, where there is one
    group_column: str = ""  # cubes: the column no split divides; empty: patient or group, otherwise the volume
    augment: bool = True  # training samples are reflected and rotated by 90 degrees at random, with their masks

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.folds != 1, "data.folds", "0 or at least 2", self.folds)
        require(self.fold < max(self.folds, 1), "data.fold", f"below data.folds = {self.folds}, or 0", self.fold)


@dataclass(frozen=True)
class UNetConfig(Section, name="model"):
    """The section `model`: the U-Net."""

    features: Annotated[tuple[int, ...], FEATURES] = (16, 32, 64, 128)  # channels of each stage, from the finest
    groups: NonNegativeInt = 0  # of channels that are normalised together; 0: each by itself (instance normalisation)

    def __post_init__(self) -> None:
        super().__post_init__()
        sound = not self.groups or all(features % self.groups == 0 for features in self.features)
        require(sound, "model.groups", f"0 or a divisor of each of model.features = {self.features}", self.groups)


@dataclass(frozen=True)
class Config(Section):
    """The settings of the workload."""

    data: PatchConfig = field(default_factory=PatchConfig)
    model: UNetConfig = field(default_factory=UNetConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        step = 2 ** (len(self.model.features) - 1)
        if self.data.shape % step:
            raise ConfigError(
                f"data.shape must be a multiple of {step} for {len(self.model.features)} stages of model.features; got "
                f"{self.data.shape}: change either"
            )


def load_volumes(data: PatchConfig) -> "tuple[NativeNodule, ...]":
    """Returns the nodules of a configuration on the grids of their scans.

    Raises:
      DataError: they cannot be used.
    """
    if data.source == "synthetic":
        from gmmae.data.synthetic.volumes import native_nodules

        return native_nodules(data.samples, data.shape + 2 * data.jitter, data.seed)
    from gmmae.data.native_volumes import read

    return read(
        DataConfig(
            source="cubes",
            root=data.root,
            csv=data.csv,
            ndim=data.ndim,
            window=data.window,
            category_column=data.category_column,
            group_column=data.group_column,
        )
    )


def split_volumes(volumes: "Sequence[NativeNodule]", data: PatchConfig) -> Split:
    """Returns the indices of the training and of the validation nodules; no patient is in both.

    Raises:
      DataError: they cannot be divided in this way.
    """
    from gmmae.data import splits

    groups, categories = [volume.group for volume in volumes], [volume.category for volume in volumes]
    if data.folds:
        return splits.fold(groups, categories, data.folds, data.fold, data.seed)
    return splits.split(groups, categories, data.validation, data.seed)


def patches_of(volumes: "Sequence[NativeNodule]", data: PatchConfig, empty: bool) -> "Patches":
    """Returns the patches of nodules; `empty` as in `data.empty_slices`.

    Raises:
      DataError: as `gmmae.data.patches.require_visible`.
    """
    from gmmae.data import patches

    if data.ndim == 3:
        cut = patches.boxes(volumes, data.shape, data.jitter, data.voxel_mm, data.seed)
    else:
        cut = patches.slices(volumes, data.shape, data.jitter, data.neighbours, empty, data.seed)
    patches.require_visible(cut, volumes, data.shape, data.jitter)
    return cut


def samples_of(patches: "Patches") -> dict[str, np.ndarray]:
    """Returns the samples of patches: values, labels, and the offsets of validation."""
    return {"values": patches.values, "labels": patches.labels, "offsets": patches.offsets}


def crop_and_augment(data: PatchConfig, samples: Samples, keys: "Array | None") -> "tuple[Array, Array]":
    """Returns the network's images, from -1 to 1, and their labels.

    With keys each sample has an offset and a symmetry drawn from its key.
    """
    import jax
    import jax.numpy as jnp

    from gmmae.workloads.augment import symmetries, symmetry

    values, labels, offsets = (jnp.asarray(samples[name]) for name in ("values", "labels", "offsets"))
    low, high = data.window
    patches = 2 * jnp.clip((values - low) / (high - low), 0, 1) - 1
    if keys is not None:
        offsets = jax.vmap(lambda key: jax.random.randint(key, (data.ndim,), 0, 2 * data.jitter + 1))(keys)

    def crop(patch: "Array", offset: "Array") -> "Array":
        return jax.lax.dynamic_slice(patch, offset, (data.shape,) * data.ndim)

    labels, images = jax.vmap(crop)(labels, offsets), jax.vmap(jax.vmap(crop, (-1, None), -1))(patches, offsets)
    if keys is None or not data.augment:
        return images, labels
    symmetry_keys = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
    return jax.vmap(jax.vmap(symmetry, (-1, None), -1))(images, symmetry_keys), symmetries(labels, symmetry_keys)


def build(config: Config) -> Workload:
    """Returns the workload; its samples are those of `samples_of`."""
    import jax
    import jax.numpy as jnp

    from gmmae.data.patches import NODULE, OUTSIDE, visible_labels
    from gmmae.models.losses import dice
    from gmmae.models.unet import UNet, mask_losses

    data = config.data
    module = UNet(config.model.features, config.model.groups)
    channels = 2 * data.neighbours + 1 if data.ndim == 2 else 1

    def init(key: "Array") -> Params:
        return module.init(key, jnp.zeros((1, *(data.shape,) * data.ndim, channels)))

    def logits(params: Params, images: "Array") -> "Array":
        outputs = module.apply(params, images)
        assert isinstance(outputs, jax.Array)
        return outputs

    def losses(params: Params, samples: Samples, keys: "Array | None") -> "Array":
        images, labels = crop_and_augment(data, samples, keys)
        return mask_losses(logits(params, images), labels == NODULE, labels != OUTSIDE)

    def metrics(params: Params, samples: Samples) -> PerSample:
        images, labels = crop_and_augment(data, samples, None)
        return {"dice": dice(logits(params, images), labels == NODULE, labels != OUTSIDE)}

    def describe(params: Params, samples: Samples) -> PerSample:
        images, labels = crop_and_augment(data, samples, None)
        return {
            "images": images[..., images.shape[-1] // 2],
            "labels": labels,
            "probabilities": jax.nn.sigmoid(logits(params, images)),
        }

    def load() -> Splits:
        volumes = load_volumes(data)
        patches = patches_of(volumes, data, data.empty_slices)
        parts = {name: _patches_of(patches, part) for name, part in split_volumes(volumes, data)._asdict().items()}
        all_visible = all((labels == NODULE).any() for labels in visible_labels(patches, data.shape))
        return Splits(
            *(samples_of(patches.take(part)) for part in parts.values()),
            about=f"{data.source} {'slices' if data.ndim == 2 else 'volumes'} of {len(volumes)} nodules",
            names={name: [_patch_name(volumes, patches, i, data.ndim) for i in part] for name, part in parts.items()},
            groups={name: [volumes[volume].group for volume in patches.volumes[part]] for name, part in parts.items()},
            may_be_undefined=() if all_visible else ("dice",),
        )

    return Workload(load, init, losses, metrics, describe, cpu_samples=max(1, CPU_BATCH_PIXELS // data.shape**data.ndim))


def _patches_of(patches: "Patches", volumes: np.ndarray) -> np.ndarray:
    """Returns the indices of some volumes' patches, the middle slice of each volume first.

    So pictures of the first samples show several nodules.
    """
    index = np.flatnonzero(np.isin(patches.volumes, volumes))
    volume_of, z = patches.volumes[index], patches.corners[index, 0]
    middles = {volume: np.median(z[volume_of == volume]) for volume in np.unique(volume_of)}
    return index[np.argsort([abs(at - middles[volume]) for volume, at in zip(volume_of, z, strict=True)], kind="stable")]


def _patch_name(volumes: "Sequence[NativeNodule]", patches: "Patches", i: int, ndim: int) -> str:
    name = volumes[patches.volumes[i]].name
    return f"{name} slice {patches.corners[i, 0]}" if ndim == 2 else name


def draw(snapshots: Sequence[Snapshot], folder: Path, title: str, ending: str = "png") -> Path:
    """Draws the images of nodules, their masks, and the masks that the network predicts after some epochs."""
    from gmmae.plotting.slices import Prediction, segmentations

    predicted = [
        Prediction(f"epoch {snapshot.epoch}", central_section(snapshot.arrays["probabilities"], 2)) for snapshot in snapshots
    ]
    last = snapshots[-1].arrays
    images, labels = central_section(last["images"], 2), central_section(last["labels"], 2)
    return segmentations(images, labels == 1, labels == 2, predicted, folder / f"segmentations.{ending}", title=title)


def events(arrays: Mapping[str, np.ndarray]) -> Events:
    """Returns for each shown nodule the image, its mask, and the predicted probabilities, from left to right."""
    images, labels, predicted = (central_section(arrays[name], 2) for name in ("images", "labels", "probabilities"))
    rows = [
        np.hstack([(image + 1) / 2, label == 1, np.nan_to_num(p)])
        for image, label, p in zip(images, labels, predicted, strict=True)
    ]
    return Events(images={f"nodule_{i}/image_mask_and_found": np.clip(row, 0, 1) for i, row in enumerate(rows)})

"""The workload of the follow-up study: a U-Net that segments a lung nodule in axial slices or in small volumes.

Its input is cropped from a wider patch, at a random offset in training and a fixed one at validation, so the position tells
little. Voxels outside of the volume count neither in the loss nor in the Dice.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gmmae.data import native_volumes, splits
from gmmae.data import patches as cutting
from gmmae.data.native_volumes import NativeNodule
from gmmae.data.patches import NODULE, OUTSIDE, Patches, visible_labels
from gmmae.data.settings import DataConfig
from gmmae.data.splits import Split
from gmmae.data.synthetic.volumes import native_nodules
from gmmae.data.volumes import central_section, cut_from
from gmmae.models.losses import dice
from gmmae.models.unet import UNet, mask_losses
from gmmae.workloads.augment import symmetries, symmetry
from gmmae.workloads.interface import Events, Params, PerSample, Samples, Snapshot, Splits, Workload
from gmmae.workloads.settings import PatchConfig
from gmmae.workloads.settings import SegmentationConfig as Config

CPU_BATCH_PIXELS = 4 * 64**2
"""Four slices of 64², with which a layer of the finest stage takes 1 MB.

Fewer give the coarse stages' products few rows, and more do not fit into a core's cache.
"""


def load_volumes(data: PatchConfig) -> tuple[NativeNodule, ...]:
    """The nodules on the grids of their scans."""
    if data.source == "synthetic":
        return native_nodules(data.samples, data.shape + 2 * data.jitter, data.seed)
    same = ("source", "root", "csv", "ndim", "window", "file_column", "diameter_column", "category_column", "group_column")
    return native_volumes.read(DataConfig(**{name: getattr(data, name) for name in same}))


def split_volumes(volumes: Sequence[NativeNodule], data: PatchConfig) -> Split:
    """Indices of training and validation nodules; no patient is in both."""
    groups, categories = [volume.group for volume in volumes], [volume.category for volume in volumes]
    if data.folds:
        return splits.fold(groups, categories, data.folds, data.fold, data.seed)
    return splits.split(groups, categories, data.validation, data.seed)


def patches_of(volumes: Sequence[NativeNodule], data: PatchConfig, empty: bool) -> Patches:
    """`empty` as in `data.empty_slices`."""
    if data.ndim == 3:
        cut = cutting.boxes(volumes, data.shape, data.jitter, data.voxel_mm, data.seed)
    else:
        cut = cutting.slices(volumes, data.shape, data.jitter, data.neighbours, empty, data.seed)
    cutting.require_visible(cut, volumes, data.shape, data.jitter)
    return cut


def samples_of(patches: Patches) -> dict[str, np.ndarray]:
    """The samples of patches, with the offsets of validation."""
    return {"values": patches.values, "labels": patches.labels, "offsets": patches.offsets}


def crop_and_augment(data: PatchConfig, samples: Samples, keys: Array | None) -> tuple[Array, Array]:
    """The network's images, from -1 to 1, and their labels.

    With keys each sample has an offset and a symmetry drawn from its key.
    """
    values, labels, offsets = (jnp.asarray(samples[name]) for name in ("values", "labels", "offsets"))
    low, high = data.window
    patches = 2 * jnp.clip((values - low) / (high - low), 0, 1) - 1
    if keys is not None:
        offsets = jax.vmap(lambda key: jax.random.randint(key, (data.ndim,), 0, 2 * data.jitter + 1))(keys)

    def crop(patch: Array, offset: Array) -> Array:
        return jax.lax.dynamic_slice(patch, offset, (data.shape,) * data.ndim)

    labels, images = jax.vmap(crop)(labels, offsets), jax.vmap(jax.vmap(crop, (-1, None), -1))(patches, offsets)
    if keys is None or not data.augment:
        return images, labels
    symmetry_keys = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
    return jax.vmap(jax.vmap(symmetry, (-1, None), -1))(images, symmetry_keys), symmetries(labels, symmetry_keys)


def build(config: Config) -> Workload:
    """The workload; its samples are those of `samples_of`."""
    data = config.data
    module = UNet(config.model.features, config.model.groups or 0)
    channels = 2 * data.neighbours + 1 if data.ndim == 2 else 1
    logits: Callable[..., Any] = module.apply

    def init(key: Array) -> Params:
        return module.init(key, jnp.zeros((1, *(data.shape,) * data.ndim, channels)))

    def losses(params: Params, samples: Samples, keys: Array | None) -> Array:
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
            names={
                name: [volumes[patches.volumes[i]].name + f" slice {patches.corners[i, 0]}" * (data.ndim == 2) for i in part]
                for name, part in parts.items()
            },
            groups={name: [volumes[volume].group for volume in patches.volumes[part]] for name, part in parts.items()},
            origins={
                name: [cut_from(volumes[volume].origin, volumes[volume].series) for volume in patches.volumes[part]]
                for name, part in parts.items()
            },
            may_be_undefined=() if all_visible else ("dice",),
            columns={
                name: {key: [volumes[volume].own[key] for volume in patches.volumes[part]] for key in volumes[0].own}
                for name, part in parts.items()
            },
        )

    return Workload(load, init, losses, metrics, describe, cpu_samples=max(1, CPU_BATCH_PIXELS // data.shape**data.ndim))


def _patches_of(patches: Patches, volumes: np.ndarray) -> np.ndarray:
    """The middle slice of each volume first, so pictures of few samples show several nodules."""
    index = np.flatnonzero(np.isin(patches.volumes, volumes))
    volume_of, z = patches.volumes[index], patches.corners[index, 0]
    middles = {volume: np.median(z[volume_of == volume]) for volume in np.unique(volume_of)}
    return index[np.argsort([abs(at - middles[volume]) for volume, at in zip(volume_of, z, strict=True)], kind="stable")]


def draw(snapshots: Sequence[Snapshot], folder: Path, title: str, ending: str = "png") -> Path:
    """Draws images, masks, and the masks that the network predicts after some epochs."""
    from gmmae.plotting.slices import segmentations

    predicted = {f"epoch {snapshot.epoch}": central_section(snapshot.arrays["probabilities"], 2) for snapshot in snapshots}
    last = snapshots[-1].arrays
    images, labels = central_section(last["images"], 2), central_section(last["labels"], 2)
    return segmentations(images, labels == 1, labels == 2, predicted, folder / f"segmentations.{ending}", title=title)


def events(arrays: Mapping[str, np.ndarray]) -> Events:
    """Image, mask and predicted probabilities of each shown nodule, from left to right."""
    images, labels, predicted = (central_section(arrays[name], 2) for name in ("images", "labels", "probabilities"))
    rows = [
        np.hstack([(image + 1) / 2, label == 1, np.nan_to_num(p)])
        for image, label, p in zip(images, labels, predicted, strict=True)
    ]
    return Events(images={f"nodule_{i}/image_mask_and_found": np.clip(row, 0, 1) for i, row in enumerate(rows)})

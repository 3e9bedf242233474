"""New nodules from a trained model: prior, decoder, added texture, and rejection of copies."""

import math
import os
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Int16, Shaped
from scipy import ndimage

from gmmae.data.settings import DataConfig
from gmmae.data.volumes import Nodules, from_density, make_table, masses, to_density, windowed
from gmmae.generation import prior as priors
from gmmae.generation.distance import signed_distance
from gmmae.generation.grain import spectra, with_spectra
from gmmae.generation.judging.novelty import REJECTION_PERCENTILE, nearest, symmetries
from gmmae.generation.prior import Prior
from gmmae.generation.texture import (
    blend_residual_blocks,
    block_weights,
    grey_levels,
    innermost,
    with_grey_levels,
)
from gmmae.system.errors import InputError
from gmmae.training.compilation import EVAL_DEVICE_BATCH
from gmmae.training.trained import Trained
from gmmae.workloads.lattice import density_at

INACTIVE_SHARE = 1e-3
"""Largest standard deviation of an inactive latent unit over the training set, as a share of the largest one."""
MALIGNANCY = "malignancy"
"""Column of the training CSV with the readers' score of malignancy."""
VOXEL_BYTES = 50
"""Bytes of memory for each voxel of a nodule in the making."""
DENSITY_VOXEL_BYTES = 450
"""Further bytes for each voxel of the one nodule whose mixture is evaluated on a finer grid. 417 were measured."""
MIN_VOXELS = 4
"""Minimum number of voxels along each axis of a volume, as for `data.shape`."""
MAX_ROUNDS = 30
"""Maximum number of rounds in which rejected samples are drawn again."""
SAME_DONOR_ROUNDS = 10
"""Number of first rounds that draw rejected samples again from the same donors."""
MASK_STRENGTH = 0.5
"""Factor of the mask residuals."""
BLOCKS = 2
"""Number of the texture's blocks along each axis."""
NEIGHBOURS = 3
"""Number of nearest training nodules, in the prior's components, among which each block's donor is drawn."""


Range = tuple[float, float]


class Wanted(NamedTuple):
    """What is asked of new nodules; None asks nothing.

    Attributes:
      category: category of all nodules.
      diameter_mm: smallest and largest diameter.
      malignancy: smallest and largest score of the training nodules behind the shapes.
    """

    category: str | None = None
    diameter_mm: Range | None = None
    malignancy: Range | None = None


NOTHING = Wanted()


class Generated(NamedTuple):
    """New nodules, with the record of each draw.

    Attributes:
      nodules: values in HU (int16), categories, drawn diameters and edges, and masks if the training set has them. Each
        nodule is in the group of its first donor, and lies at the world's origin.
      nearest: names of the nearest training nodules, in any symmetry.
      distance: distances to these by `gmmae.generation.judging.novelty.nearest`.
      turn: index of the applied symmetry among `gmmae.generation.judging.novelty.symmetries`; 0 is the identity.
      shape_donors: names of the training nodules behind the prior's bands.
      texture_donors: names of the training nodules behind the texture's blocks.
      rejected: number of samples rejected as copies.
    """

    nodules: Nodules
    nearest: tuple[str, ...]
    distance: Float[np.ndarray, " samples"]
    turn: Int[np.ndarray, " samples"]
    shape_donors: Shaped[np.ndarray, "samples bands"]
    texture_donors: Shaped[np.ndarray, "samples blocks"]
    rejected: int


class Generator(NamedTuple):
    """A prior fitted to training nodules, with the data for texture.

    Attributes:
      model: the trained model.
      prior: the distribution of latent vectors, log mass, log diameter and the logarithm of edge over diameter.
      training: the training nodules.
      residuals: windowed nodules minus their reconstructions.
      mask_residuals: signed distances of the masks minus those of the decoded masks.
      grey_levels: voxel values of each windowed nodule, by `gmmae.generation.texture.grey_levels`.
      spectra: spectrum of each windowed nodule, by `gmmae.generation.grain.spectra`.
      mask_voxels: number of voxels in each mask; 0 without one.
      min_distance: minimum distance of a sample from the training set in any symmetry; a nearer one is a copy.
      inactive_units: number of latent units that carry no information.
      malignancy: malignancy of the training nodules, NaN where not known; None without labels.
    """

    model: Trained
    prior: Prior
    training: Nodules
    residuals: Float32[np.ndarray, "samples *volume"]
    mask_residuals: Float32[np.ndarray, "samples *volume"]
    grey_levels: Float32[np.ndarray, "samples voxels"]
    spectra: Float[np.ndarray, "samples bands"]
    mask_voxels: Int[np.ndarray, " samples"]
    min_distance: float
    inactive_units: int
    malignancy: Float[np.ndarray, " samples"] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the model's volumes."""
        return self.training.values.shape[1:]

    def sample(
        self,
        count: int,
        wanted: Wanted = NOTHING,
        seed: int = 0,
        *,
        size: int = 0,
        bandwidth: float = 1.3,
        texture: float = 0.5,
    ) -> Generated:
        """Draws new nodules, each rotated or reflected at random.

        Otherwise a classifier could learn the orientations of the few donors.

        Args:
          count: number of nodules.
          wanted: what is asked of all nodules. Without a category they have the training set's proportions.
          seed: seed of all random draws.
          size: number of voxels along the longest axis; 0 keeps the model's own.
          bandwidth: standard deviation of the prior's noise, in standard deviations within a category.
          texture: factor of the residuals that are added to the decoded mixtures. With 0 there are none, and no grain.

        Raises:
          InputError: no training nodule is as asked, an axis would be too short, or too many samples are copies or have
            another diameter.
        """
        allowed = fitting(wanted, self.training, self.malignancy)
        shape, rng = resized(self.shape, size), np.random.default_rng(seed)
        accepted: list[dict[str, np.ndarray]] = []
        donors, rejected, unfit = rng.choice(allowed, count), 0, 0
        for attempt in range(MAX_ROUNDS):
            drawn = self._draw(donors, rng, bandwidth, texture)
            new = drawn["distance"] >= self.min_distance
            fits = _within(drawn["diameter_mm"], wanted.diameter_mm)
            keep = new & fits
            accepted.append({name: values[keep] for name, values in drawn.items()})
            rejected += int((~new).sum())
            unfit += int((new & ~fits).sum())
            # The same donors are tried first. Otherwise nodules of similar appearance, such as faint ones, would become rare.
            # Samples of the faintest donors stay near some training nodule, so other donors follow.
            same_donors = attempt < SAME_DONOR_ROUNDS
            donors = donors[~keep] if same_donors else rng.choice(allowed, int((~keep).sum()))
            if not len(donors):
                order = rng.permutation(count)  # otherwise samples accepted early would come first
                samples = {name: np.concatenate([part[name] for part in accepted])[order] for name in drawn}
                return _with_random_symmetries(self._finished(samples, rejected, seed, shape), rng)
        if unfit > rejected:
            assert wanted.diameter_mm is not None
            raise InputError(
                f"generated nodules must have a diameter of {_shown(wanted.diameter_mm)} mm; got {unfit} of another in "
                f"{rejected + unfit + count - len(donors)} samples: widen --diameter-mm, or draw with less noise (--bandwidth)"
            )
        raise InputError(
            f"generated nodules must differ by at least {self.min_distance:.3g} from all of the training set; got {rejected} "
            f"copies in {rejected + count - len(donors)} samples: draw with more noise (--bandwidth), or train on more nodules"
        )

    def _draw(
        self,
        donors: Int[np.ndarray, " count"],
        rng: np.random.Generator,
        bandwidth: float,
        texture: float,
    ) -> dict[str, np.ndarray]:
        drawn = priors.draw(self.prior, donors, bandwidth, rng)
        decoded = decode(self.model, drawn.points[:, :-3].astype(np.float32))
        mass, diameter_mm, edges = np.exp(drawn.points[:, -3:].T)
        patches = priors.sample_neighbours(self.prior, drawn, NEIGHBOURS, BLOCKS ** len(self.shape), rng)
        weights = block_weights(self.shape, BLOCKS)
        residual = texture * blend_residual_blocks(self.residuals, patches, weights)
        mask_residual = MASK_STRENGTH * blend_residual_blocks(self.mask_residuals, patches, weights)
        outline = np.stack([signed_distance(mask) for mask in decoded["mask"] > 0.5]) + mask_residual
        first = drawn.donors[:, 0]
        outline = _with_voxels(outline, self.mask_voxels[first])
        smooth = from_density(decoded["density"], mass, (0.0, 1.0))
        shares = smooth + residual
        levels, inside = self.grey_levels[first], innermost(outline, self.mask_voxels[first])
        shares = with_grey_levels(shares, levels, inside)
        if texture > 0:
            shares = with_spectra(shares, self.spectra[first], levels, inside)
        values = to_hu(shares, window_of(self.model))
        neighbours = nearest(values, self.training.values, window_of(self.model), symmetric=True)
        return {
            **decoded,
            "values": values,
            "texture": shares - smooth,
            "outline": outline,
            "mass": mass,
            "diameter_mm": diameter_mm,
            "edge_mm": edges * diameter_mm,
            "category": np.array(drawn.labels),
            "nearest": neighbours.index,
            "distance": neighbours.distance,
            "shape_donors": drawn.donors,
            "texture_donors": patches,
        }

    def _finished(self, drawn: dict[str, np.ndarray], rejected: int, seed: int, shape: tuple[int, ...]) -> Generated:
        values, outline = drawn["values"], drawn["outline"]
        if shape != self.shape:
            stretch = _stretch(self.shape, shape)
            density = density_at(drawn["weights"], drawn["means"], drawn["covariances"], shape, stretch)
            # Texture is interpolated. A spectrum on the model's voxels is none on finer ones. Grey levels inside and outside of
            # a finer outline would leave a line along it.
            added, outline = (_resampled(drawn[name], shape) for name in ("texture", "outline"))
            shares = from_density(density, drawn["mass"], (0.0, 1.0)) + added
            values = to_hu(shares, window_of(self.model))
        names = [f"generated-{seed}-{i:05d}" for i in range(len(values))]
        name_of = self.training.table["name"]
        group = self.training.table["group"][drawn["shape_donors"][:, 0]]  # siblings stay on one side of a split
        table = make_table(names, group=group, **{name: drawn[name] for name in ("category", "edge_mm", "diameter_mm")})
        masks = None if self.training.masks is None else (outline > 0).astype(np.uint8)
        return Generated(
            Nodules(values, masks, table),
            tuple(name_of[drawn["nearest"]].tolist()),
            drawn["distance"],
            np.zeros(len(names), np.int64),
            name_of[drawn["shape_donors"]],
            name_of[drawn["texture_donors"]],
            rejected,
        )


def fit(
    model: Trained,
    training: Nodules,
    held_out: Nodules,
    malignancy: Float[np.ndarray, " samples"] | None = None,
) -> Generator:
    """Fits a generator to training nodules.

    Args:
      model: a model trained on them.
      training: the training nodules, with their diameters.
      held_out: real nodules of other patients. Their distances from the training set give the threshold for copies.
      malignancy: malignancy of the training nodules, if there are labels.

    Raises:
      InputError: the model cannot encode and decode latent vectors, or a training nodule has no diameter.
    """
    window = window_of(model)
    if not np.isfinite(training.diameter_mm).all():
        raise InputError("every training nodule must have a diameter; got some without: fill the CSV's column diameter_mm")
    latent = encode(model, training)
    decoded, mass = decode(model, latent), masses(training.values, window)
    shares = windowed(training.values, window)
    residuals = (shares - from_density(decoded["density"], mass, (0.0, 1.0))).astype(np.float32)
    mask_residuals = np.zeros_like(residuals)
    if training.masks is not None:
        pairs = zip(training.masks > 0, decoded["mask"] > 0.5, strict=True)
        mask_residuals = np.stack([signed_distance(mask) - signed_distance(other) for mask, other in pairs]).astype(np.float32)
    sizes = np.log(np.stack([mass, training.diameter_mm, training.edge_mm / training.diameter_mm], 1))
    held_out_distances = nearest(held_out.values, training.values, window, symmetric=True).distance
    deviations = latent.std(0)
    inactive_units = int((deviations <= INACTIVE_SHARE * deviations.max()).sum())
    min_distance = float(np.percentile(held_out_distances, REJECTION_PERCENTILE))
    prior = priors.fit(np.concatenate([latent, sizes], axis=1), training.categories)
    masks = np.zeros(shares.shape, bool) if training.masks is None else training.masks > 0
    return Generator(
        model=model,
        prior=prior,
        training=training,
        residuals=residuals,
        mask_residuals=mask_residuals,
        grey_levels=grey_levels(shares, masks).astype(np.float32),
        spectra=spectra(shares),
        mask_voxels=masks.reshape(len(masks), -1).sum(1),
        min_distance=min_distance,
        inactive_units=inactive_units,
        malignancy=malignancy,
    )


def _within(values: Float[np.ndarray, " samples"], limits: Range | None) -> Bool[np.ndarray, " samples"]:
    return np.ones(len(values), bool) if limits is None else (values >= limits[0]) & (values <= limits[1])


def _shown(limits: Range) -> str:
    return f"{limits[0]:g} to {limits[1]:g}"


def malignancy(training: Nodules) -> Float[np.ndarray, " samples"] | None:
    """Returns the readers' scores of training nodules, NaN where there is none; None where the data have no such column.

    Raises:
      InputError: the column has other words than numbers.
    """
    words = training.column(MALIGNANCY)
    try:
        return None if words is None else np.where(words == "", "nan", words).astype(float)
    except ValueError as error:
        raise InputError(f"--malignancy needs numbers in the training CSV's column {MALIGNANCY}; {error}") from error


def require_memory(count: int, shape: tuple[int, ...], size: int) -> None:
    """Checks that nodules of a shape, and of another `size`, fit into memory: Linux would end the program without a message.

    Raises:
      InputError: they need more than this machine has.
    """
    made = resized(shape, size)
    needed = (count * VOXEL_BYTES + DENSITY_VOXEL_BYTES * (made != shape)) * math.prod(made)
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise InputError(
            f"--count nodules of --size must fit into memory; got {count} of {' × '.join(map(str, made))} voxels, which take "
            f"{needed / 1e9:.0f} of {available / 1e9:.0f} GB: make fewer in a call, each with another --seed, or lower --size"
        )


def fitting(
    wanted: Wanted,
    training: Nodules,
    malignancy: Float[np.ndarray, " samples"] | None = None,
) -> Int[np.ndarray, " allowed"]:
    """Returns the training nodules whose shapes are as asked.

    Raises:
      InputError: there is none, or the data do not say.
    """
    kinds = training.table["category"]
    known = sorted({*kinds.tolist()} - {""})
    if wanted.category is not None and not known:
        raise InputError("training nodules must have categories for --category; got none: leave --category out")
    if wanted.category is not None and wanted.category not in known:
        raise InputError(f"--category must be one of {', '.join(known)}; got {wanted.category!r}")
    shapes = {
        "--diameter-mm": (wanted.diameter_mm, training.diameter_mm),
        "--malignancy": (wanted.malignancy, malignancy),
    }
    everyone = np.ones(len(kinds), bool)
    return _within_all(shapes, everyone if wanted.category is None else kinds == wanted.category)


def _within_all(
    columns: Mapping[str, tuple[Range | None, Float[np.ndarray, " samples"] | None]], fits: Bool[np.ndarray, " samples"]
) -> Int[np.ndarray, " allowed"]:
    """Returns the indices of training nodules that fit and whose columns lie in their limits.

    Raises:
      InputError: there is none, or a column is not known.
    """
    for option, (limits, values) in columns.items():
        if limits is None:
            continue
        if values is None or np.isnan(values).all():
            raise InputError(
                f"{option} needs training nodules whose data say so; got none that do: leave {option} out, or train on a "
                "folder of cubes with this column"
            )
        others, fits = values[fits & ~np.isnan(values)], fits & _within(values, limits)
        if not fits.any():
            known = (
                f"those that fit the others have {others.min():.3g} to {others.max():.3g}" if len(others) else "none has one"
            )
            raise InputError(
                f"{option} must hold a training nodule that fits the other options too; got {_shown(limits)}, and {known}: "
                "widen it or the others"
            )
    return np.flatnonzero(fits)


def _with_voxels(
    outline: Float[np.ndarray, "samples *volume"], voxels: Int[np.ndarray, " samples"]
) -> Float[np.ndarray, "samples *volume"]:
    """Shifts signed distances so that about as many voxels lie inside as are asked for.

    Decoded masks have nearly one size, because a mean of outlines is rounder than each of them.
    """
    flat = np.sort(outline.reshape(len(outline), -1), axis=1)[:, ::-1]
    place = np.clip(voxels, 1, flat.shape[1] - 1)
    level = (flat[np.arange(len(flat)), place - 1] + flat[np.arange(len(flat)), place]) / 2
    return outline - level.reshape(-1, *[1] * (outline.ndim - 1))


def window_of(model: Trained) -> tuple[float, float]:
    """Returns the window of a model's volumes, in their unit."""
    data = getattr(model.config.settings, "data", None)
    assert isinstance(data, DataConfig)
    return data.window


def to_hu(shares: Float[np.ndarray, "samples *volume"], window: tuple[float, float]) -> Int16[np.ndarray, "samples *volume"]:
    """Converts shares of the window to HU, clipped to the window."""
    low, high = window
    return np.rint(low + (high - low) * np.clip(shares, 0, 1)).astype(np.int16)


def encode(model: Trained, nodules: Nodules) -> Float[np.ndarray, "samples latent"]:
    """Returns the latent vectors of nodules, in the run's precision."""
    return model.encode(to_density(nodules.values, window_of(model)))


def decode(model: Trained, latent: Float[np.ndarray, "samples latent"]) -> dict[str, np.ndarray]:
    """Decodes latent vectors to densities, the parameters of their mixtures, and masks.

    Vectors are padded to whole batches, so one compiled program serves any number of them.
    """
    padded = np.concatenate([latent, np.repeat(latent[-1:], -len(latent) % EVAL_DEVICE_BATCH, axis=0)])
    return {name: values[: len(latent)] for name, values in model.decode(padded).items()}


def _with_random_symmetries(generated: Generated, rng: np.random.Generator) -> Generated:
    """Rotates or reflects each nodule and its mask by a symmetry drawn at random."""
    nodules = generated.nodules
    volumes = {"values": nodules.values} | ({} if nodules.masks is None else {"masks": nodules.masks})
    views = {name: list(symmetries(array)) for name, array in volumes.items()}
    symmetry = rng.integers(len(views["values"]), size=len(generated.turn))
    oriented = {name: np.stack([view[k][i] for i, k in enumerate(symmetry)]) for name, view in views.items()}
    return generated._replace(nodules=nodules._replace(**oriented), turn=symmetry)


def resized(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Returns a volume's shape after its longest axis gets another number of voxels.

    Voxels stay cubic, so the other axes are rounded.

    Args:
      shape: shape of the volume.
      size: number of voxels along the longest axis; 0 keeps the shape.

    Raises:
      InputError: an axis would have fewer than `MIN_VOXELS` voxels.

    >>> resized((12, 16, 20), 24), resized((16, 16, 16), 32), resized((12, 16, 20), 0)
    ((14, 19, 24), (32, 32, 32), (12, 16, 20))
    """
    new = tuple(round(edge * size / max(shape)) for edge in shape) if size else shape
    if min(new) < MIN_VOXELS:
        old_text, new_text = (" × ".join(map(str, axes)) for axes in (shape, new))
        raise InputError(
            f"--size must leave at least {MIN_VOXELS} voxels along each axis; got {size}, which makes {new_text} of {old_text}"
        )
    return new


def _stretch(shape: tuple[int, ...], new: tuple[int, ...]) -> Float[np.ndarray, " axes"]:
    """Returns the ratio of each axis' new length to its old one. Rounding makes it differ from 1."""
    return np.array(new) / max(new) * max(shape) / np.array(shape)


def _resampled(values: Float[np.ndarray, "samples *old"], shape: tuple[int, ...]) -> Float[np.ndarray, "samples *new"]:
    """Interpolates volumes on the voxels of a resized volume with the same centre."""
    old, new = np.array(values.shape[1:]), np.array(shape)
    step = old.max() / new.max()
    first = (old - 1) / 2 - (new - 1) / 2 * step
    scale = np.full(len(shape), step)
    return np.stack([ndimage.affine_transform(volume, scale, first, shape, order=1, mode="nearest") for volume in values])

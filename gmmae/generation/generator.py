"""New nodules from a trained model: prior, decoder, added texture, and rejection of copies."""

import math
import os
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int, Real, Shaped
from scipy import ndimage

from gmmae.data.extraction.annotations import is_blank
from gmmae.data.extraction.extract import stored
from gmmae.data.volumes import Nodules, from_density, make_table, masses, to_density, windowed
from gmmae.generation import prior as priors
from gmmae.generation.distance import signed_distance
from gmmae.generation.grain import spectra, with_spectra
from gmmae.generation.judging.novelty import REJECTION_PERCENTILE, nearest, symmetries
from gmmae.generation.prior import Prior
from gmmae.generation.texture import (
    Volumes,
    blend_residual_blocks,
    block_weights,
    deepest_voxels,
    grey_levels,
    with_grey_levels,
)
from gmmae.system.errors import InputError
from gmmae.training.preparation import EVAL_DEVICE_BATCH
from gmmae.training.trained import Trained
from gmmae.workloads.lattice import density_at

VOXEL_BYTES = 50
"""Memory for each voxel of a nodule in the making."""
DENSITY_VOXEL_BYTES = 450
"""Further memory for the one on a finer grid; 417 were measured."""
MIN_VOXELS = 4
MAX_ROUNDS = 30
SAME_DONOR_ROUNDS = 10
"""Rounds that draw again from the same donors."""
MASK_STRENGTH = 0.5
"""Factor of the mask residuals."""
BLOCKS = 2
NEIGHBOURS = 3
"""Training nodules, nearest in the prior's components, from which a block's donor is drawn."""

Range = tuple[float, float]


class Options(NamedTuple):
    """How new nodules are made, and what is asked of them; None asks nothing."""

    category: str | None = None  # none: the training set's proportions
    diameter_mm: Range | None = None  # smallest and largest diameter
    malignancy: Range | None = None  # of the training nodules behind the shapes
    size: int = 0  # voxels along the longest axis; 0: the model's own
    bandwidth: float = 1.3  # of the prior's noise, in standard deviations within a category
    texture: float = 0.5  # factor of the residuals; 0: none, and no noise texture


DEFAULTS = Options()


class Generated(NamedTuple):
    """New nodules, with the record of each draw."""

    nodules: Nodules  # in the training set's unit, each in the group of its first donor
    nearest: Shaped[np.ndarray, " samples"]  # nearest training nodules, in any symmetry
    distance: Float[np.ndarray, " samples"]  # from these, by `judging.novelty.nearest`
    turn: Int[np.ndarray, " samples"]  # index in `judging.novelty.symmetries`; 0 is the identity
    shape_donors: Shaped[np.ndarray, "samples bands"]  # training nodules behind the prior's bands
    texture_donors: Shaped[np.ndarray, "samples blocks"]  # behind the texture's blocks
    rejected: int  # copies


class Generator(NamedTuple):
    """A prior fitted to training nodules, with the data for texture."""

    model: Trained
    prior: Prior  # of latent vectors, log mass, log diameter and the logarithm of edge over diameter
    training: Nodules
    residuals: Float32[np.ndarray, "samples *volume"]  # windowed nodules minus their reconstructions
    mask_residuals: Float32[np.ndarray, "samples *volume"]  # signed distances, minus those of the decoded masks
    grey_levels: Float32[np.ndarray, "samples voxels"]  # by `texture.grey_levels`
    spectra: Float[np.ndarray, "samples bands"]  # by `grain.spectra`
    mask_voxels: Int[np.ndarray, " samples"]  # in each mask; 0 without one
    min_distance: float  # from the training set in any symmetry; a nearer sample is a copy
    window: Range

    def sample(self, count: int, seed: int = 0, options: Options = DEFAULTS) -> Generated:
        """Draws new nodules, each rotated or reflected at random: a classifier could learn the orientations of the few donors.

        Raises:
          InputError: no training nodule is as asked, or too many samples are copies or of another size.
        """
        allowed, rng = candidates(self.training, options), np.random.default_rng(seed)
        shape, (low, high) = resized(self.training.values.shape[1:], options.size), options.diameter_mm or (0.0, math.inf)
        accepted: list[dict[str, np.ndarray]] = []
        donors, copies, wrong_size = rng.choice(allowed, count), 0, 0
        for attempt in range(MAX_ROUNDS):
            drawn = self._draw(donors, rng, options)
            new = drawn["distance"] >= self.min_distance
            keep = new & (drawn["diameter_mm"] >= low) & (drawn["diameter_mm"] <= high)
            accepted.append({name: values[keep] for name, values in drawn.items()})
            copies += int((~new).sum())
            wrong_size += int((new & ~keep).sum())
            # The same donors come first, otherwise faint nodules, which resemble each other, would become rare. The faintest
            # stay near some training nodule, so others follow.
            donors = donors[~keep] if attempt < SAME_DONOR_ROUNDS else rng.choice(allowed, int((~keep).sum()))
            if not len(donors):
                break
        else:
            raise InputError(
                f"generated nodules must differ by at least {self.min_distance:.3g} from all of the training set, and be as "
                f"wide as asked; got {copies} copies and {wrong_size} of another width in {MAX_ROUNDS} rounds: change the "
                "noise (--bandwidth), widen --diameter-mm, or train on more nodules"
            )
        order = rng.permutation(count)  # not by the round that accepted them
        drawn = {name: np.concatenate([part[name] for part in accepted])[order] for name in drawn}
        values, outline = drawn["values"], drawn["outline"]
        old = np.array(values.shape[1:])
        if shape != values.shape[1:]:
            # Voxels stay cubic, so the other axes' lengths change a little.
            step = old.max() / max(shape)
            stretch = np.array(shape) * step / old
            density = density_at(drawn["weights"], drawn["means"], drawn["covariances"], shape, stretch)
            # Texture is interpolated: a spectrum on the model's voxels is none on finer ones, and grey levels would leave a
            # line along a finer outline.
            first, scale = (old - 1) / 2 - (np.array(shape) - 1) / 2 * step, np.full(len(shape), step)
            texture, outline = (
                np.stack([ndimage.affine_transform(v, scale, first, shape, order=1, mode="nearest") for v in drawn[name]])
                for name in ("texture", "outline")
            )
            values = self._in_unit(from_density(density, drawn["mass"], (0.0, 1.0)) + texture)
        turn = rng.integers(len(symmetries(values)), size=count)
        values, outline = (
            np.stack([turned[k][i] for i, k in enumerate(turn)]) for turned in map(symmetries, (values, outline))
        )
        # A small mask may lie between the voxels of another size.
        mask = (outline > 0) | (outline == outline.max((1, 2, 3), keepdims=True))
        known, first = self.training.table, drawn["shape_donors"][:, 0]
        # Siblings stay on one side of a split.
        table = make_table(
            [f"generated-{seed}-{i:05d}" for i in range(count)],
            group=known["group"][first],
            category=known["category"][first],
            edge_mm=drawn["edge_mm"],
            diameter_mm=drawn["diameter_mm"],
        )
        return Generated(
            Nodules(values, None if self.training.masks is None else mask.astype(np.uint8), table),
            known["name"][drawn["nearest"]],
            drawn["distance"],
            turn,
            known["name"][drawn["shape_donors"]],
            known["name"][drawn["texture_donors"]],
            copies,
        )

    def _draw(self, donors: Int[np.ndarray, " count"], rng: np.random.Generator, options: Options) -> dict[str, np.ndarray]:
        points, shape_donors = priors.draw(self.prior, donors, options.bandwidth, rng)
        decoded = decode(self.model, points[:, :-3].astype(np.float32))
        mass, diameter_mm, edges = np.exp(points[:, -3:].T)
        components = self.prior.components.transform(points - self.prior.means[donors])
        shape = self.training.values.shape[1:]
        patches = priors.random_neighbours(self.prior.points, components, NEIGHBOURS, BLOCKS ** len(shape), rng)
        weights = block_weights(shape, BLOCKS)
        outline = np.stack([signed_distance(mask) for mask in decoded["mask"] > 0.5])
        outline += MASK_STRENGTH * blend_residual_blocks(self.mask_residuals, patches, weights)
        # Decoded masks have nearly one size, so they get their donor's.
        flat, voxels = np.sort(-outline.reshape(len(donors), -1), axis=1), self.mask_voxels[donors]
        place = np.clip(voxels, 1, flat.shape[1] - 1)
        beside = np.take_along_axis(flat, np.stack([place - 1, place], axis=1), axis=1)
        outline += beside.mean(1).reshape(-1, *[1] * len(shape))
        smooth = from_density(decoded["density"], mass, (0.0, 1.0))
        shares = smooth + options.texture * blend_residual_blocks(self.residuals, patches, weights)
        levels, inside = self.grey_levels[donors], deepest_voxels(outline, voxels)
        outline = np.where(inside, np.maximum(outline, 1e-6), np.minimum(outline, 0))
        shares = with_grey_levels(shares, levels, inside)
        if options.texture > 0:
            shares = with_spectra(shares, self.spectra[donors], levels, inside)
        values = self._in_unit(shares)
        neighbours = nearest(values, self.training.values, self.window, symmetric=True)
        return {
            **decoded,
            "values": values,
            "texture": shares - smooth,
            "outline": outline,
            "mass": mass,
            # The mask has its donor's share of the cube.
            "diameter_mm": self.training.diameter_mm[donors] * (edges * diameter_mm / self.training.edge_mm[donors]),
            "edge_mm": edges * diameter_mm,
            "nearest": neighbours.index,
            "distance": neighbours.distance,
            "shape_donors": shape_donors,
            "texture_donors": patches,
        }

    def _in_unit(self, shares: Volumes) -> Real[np.ndarray, "samples *volume"]:
        low, high = self.window
        return stored(low + (high - low) * np.clip(shares, 0, 1), self.training.values.dtype == np.int16)


def fit(model: Trained, training: Nodules, held_out: Nodules) -> Generator:
    """Fits a generator; distances of `held_out`, real nodules of other patients, give the threshold for copies."""
    window = model.config.settings.data.window
    if not np.isfinite(training.diameter_mm).all():
        raise InputError("every training nodule must have a diameter; got some without: fill the CSV's column diameter_mm")
    latent = model.encode(to_density(training.values, window))
    decoded, mass = decode(model, latent), masses(training.values, window)
    shares = windowed(training.values, window)
    residuals = (shares - from_density(decoded["density"], mass, (0.0, 1.0))).astype(np.float32)
    masks, mask_residuals = np.zeros(shares.shape, bool), np.zeros_like(residuals)
    if training.masks is not None:
        masks = training.masks > 0
        pairs = zip(masks, decoded["mask"] > 0.5, strict=True)
        mask_residuals = np.stack([signed_distance(mask) - signed_distance(other) for mask, other in pairs]).astype(np.float32)
    sizes = np.log(np.stack([mass, training.diameter_mm, training.edge_mm / training.diameter_mm], 1))
    held_out_distances = nearest(held_out.values, training.values, window, symmetric=True).distance
    return Generator(
        model,
        priors.fit(np.concatenate([latent, sizes], axis=1), training.categories),
        training,
        residuals,
        mask_residuals,
        grey_levels(shares, masks).astype(np.float32),
        spectra(shares),
        mask_voxels=masks.reshape(len(masks), -1).sum(1),
        min_distance=float(np.percentile(held_out_distances, REJECTION_PERCENTILE)),
        window=window,
    )


def require_memory(count: int, shape: tuple[int, ...], size: int) -> None:
    """Raises InputError if nodules of a shape and `size` exceed the memory: Linux would end the program without a message."""
    made = resized(shape, size)
    needed = (count * VOXEL_BYTES + DENSITY_VOXEL_BYTES * (made != shape)) * math.prod(made)
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise InputError(
            f"--count nodules of --size must fit into memory; got {count} of {' × '.join(map(str, made))} voxels, which take "
            f"{needed / 1e9:.0f} of {available / 1e9:.0f} GB: make fewer in a call, each with another --seed, or lower --size"
        )


def candidates(training: Nodules, options: Options) -> Int[np.ndarray, " allowed"]:
    """The training nodules whose shapes are as asked, with masks where any have one."""
    masked, known = training.masked, sorted({*training.categories} - {""})
    fits = masked if masked.any() else ~masked
    if options.category is not None:
        if options.category not in known:
            raise InputError(
                f"--category must be one of {', '.join(known) or 'none, as training nodules have no categories'}; got "
                f"{options.category!r}: name another, or leave --category out"
            )
        fits = fits & (training.table["category"] == options.category)
    words, asked = training.column("malignancy"), options.malignancy
    try:
        cells = [] if asked is None or words is None else ["nan" if is_blank(word) else word for word in words.tolist()]
        scores = np.array(cells, float)
    except ValueError as error:
        raise InputError(f"--malignancy needs numbers in the training CSV's column malignancy; {error}") from error
    columns = {"--diameter-mm": (options.diameter_mm, training.diameter_mm), "--malignancy": (asked, scores)}
    for option, (limits, values) in columns.items():
        if limits is None:
            continue
        if np.isnan(values).all():  # or there is no such column
            raise InputError(
                f"{option} needs training nodules whose data say so; got none that do: leave {option} out, or train on a "
                "folder of cubes with this column"
            )
        (low, high), others = limits, values[fits & ~np.isnan(values)]
        fits = fits & (values >= low) & (values <= high)
        if not fits.any():
            span = f"those that fit the others have {others.min():.3g} to {others.max():.3g}" if len(others) else "none has one"
            raise InputError(
                f"{option} must hold a training nodule that fits the other options too; got {low:g} to {high:g}, and {span}: "
                "widen it or the others"
            )
    return np.flatnonzero(fits)


def decode(model: Trained, latent: Float[np.ndarray, "samples latent"]) -> dict[str, np.ndarray]:
    """Decodes latent vectors to densities, mixtures and masks, in whole batches so that one program serves all."""
    padded = np.concatenate([latent, np.repeat(latent[-1:], -len(latent) % EVAL_DEVICE_BATCH, axis=0)])
    return {name: values[: len(latent)] for name, values in model.decode(padded).items()}


def resized(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """A volume's shape with `size` voxels along its longest axis, 0 for no change; the other axes are rounded.

    >>> resized((12, 16, 20), 24), resized((16, 16, 16), 32), resized((12, 16, 20), 0)
    ((14, 19, 24), (32, 32, 32), (12, 16, 20))
    """
    new = tuple(round(edge * size / max(shape)) for edge in shape) if size else shape
    if min(new) < MIN_VOXELS:
        raise InputError(
            f"--size must leave at least {MIN_VOXELS} voxels along each axis; got {size}, which leaves {min(new)}: raise it"
        )
    return new

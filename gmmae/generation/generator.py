"""New nodules from a trained model: prior, decoder, added texture, and rejection of copies."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Float32, Int, Int16, Shaped
from scipy import ndimage

from gmmae.config.schema import Config
from gmmae.data.volumes import Details, Nodules, masses, to_density, windowed
from gmmae.generation import prior as priors
from gmmae.generation.judging.novelty import COPY_PERCENTILE, nearest, symmetries
from gmmae.generation.prior import Prior, Strengths
from gmmae.generation.texture import blend_residual_blocks, block_weights, signed_distances, with_grey_levels
from gmmae.system.errors import InputError
from gmmae.training import compilation
from gmmae.workloads.interface import Params, PerSample, Workload
from gmmae.workloads.lattice import density_at

BATCH = 64
"""Samples encoded or decoded at a time."""
INACTIVE_SHARE = 1e-3
"""Largest standard deviation of an inactive latent unit over the training set, as a share of the largest one."""
MIN_VOXELS = 4
"""Minimum number of voxels along each axis of a volume, as for `data.shape`."""
MAX_ROUNDS = 30
"""Maximum number of rounds in which rejected samples are drawn again."""
SAME_DONOR_ROUNDS = 10
"""Number of first rounds that draw rejected samples again from the same donors."""


class Model(NamedTuple):
    """A trained model: its configuration, its workload, its parameters, and the window and shape of its data."""

    config: Config
    workload: Workload
    params: Params
    window: tuple[float, float]
    shape: tuple[int, ...]


class Texture(NamedTuple):
    """How residuals are added to the decoded mixtures.

    Attributes:
      strength: factor of the residuals; 0 adds none.
      mask_strength: factor of the mask residuals.
      blocks: number of blocks along each axis.
      neighbours: number of nearest training nodules, in the prior's components, among which each block's donor is drawn.
      grey_levels: whether voxels get the grey levels of the first band's donor.
    """

    strength: float = 0.5
    mask_strength: float = 0.5
    blocks: int = 2
    neighbours: int = 3
    grey_levels: bool = True


STRENGTHS, TEXTURE = Strengths(), Texture()


class Generated(NamedTuple):
    """New nodules, with the record of each draw.

    Attributes:
      nodules: values in HU (int16), categories, drawn diameters and edges, and masks if the training set has them. Each
        nodule is a group of its own and lies at the world's origin.
      nearest: names of the nearest training nodules.
      distance: distances to these by `gmmae.generation.judging.novelty.nearest`, before rotation or reflection.
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
      sorted_intensities: sorted voxel values of each windowed nodule, in ascending order.
      min_distance: minimum distance of a sample from the training set; a nearer one is a copy.
      inactive_units: number of latent units that carry no information.
    """

    model: Model
    prior: Prior
    training: Nodules
    residuals: Float32[np.ndarray, "samples *volume"]
    mask_residuals: Float32[np.ndarray, "samples *volume"]
    sorted_intensities: Float32[np.ndarray, "samples voxels"]
    min_distance: float
    inactive_units: int

    def sample(
        self,
        count: int,
        category: str | None = None,
        seed: int = 0,
        *,
        size: int = 0,
        strengths: Strengths = STRENGTHS,
        texture: Texture = TEXTURE,
        random_symmetry: bool = True,
    ) -> Generated:
        """Draws new nodules.

        Args:
          count: number of nodules.
          category: category of all nodules; None keeps the training set's proportions.
          seed: seed of all random draws.
          size: number of voxels along the longest axis; 0 keeps the model's own.
          strengths: strengths of the prior's draws.
          texture: strengths of the texture.
          random_symmetry: whether each nodule is rotated or reflected at random. Otherwise a classifier could learn the
            orientations of the few donors.

        Raises:
          InputError: no training nodule has the category, an axis would be too short, or too many samples are copies.
        """
        if category is not None and category not in self.prior.means:
            raise InputError(f"category must be one of {', '.join(sorted(self.prior.means))}; got {category!r}")
        shape, rng = resized(self.model.shape, size), np.random.default_rng(seed)
        accepted: list[dict[str, np.ndarray]] = []
        donors, rejected = priors.first_donors(self.prior, count, category, rng), 0
        for attempt in range(MAX_ROUNDS):
            drawn = self._draw(donors, rng, strengths, texture)
            keep = drawn["distance"] >= self.min_distance
            accepted.append({name: values[keep] for name, values in drawn.items()})
            rejected += int((~keep).sum())
            # The same donors are tried first. Otherwise nodules of similar appearance, such as faint ones, would become rare.
            # Samples of the faintest donors stay near some training nodule, so other donors follow.
            same_donors = attempt < SAME_DONOR_ROUNDS
            donors = donors[~keep] if same_donors else priors.first_donors(self.prior, int((~keep).sum()), category, rng)
            if not len(donors):
                order = rng.permutation(count)  # otherwise samples accepted early would come first
                samples = {name: np.concatenate([part[name] for part in accepted])[order] for name in drawn}
                generated = self._finished(samples, rejected, seed, shape, texture.grey_levels)
                return _with_random_symmetries(generated, rng) if random_symmetry else generated
        raise InputError(
            f"generated nodules must differ by at least {self.min_distance:.3g} from all of the training set; got {rejected} "
            f"copies in {rejected + count - len(donors)} samples: draw with more noise (--bandwidth), or train on more nodules"
        )

    def _draw(
        self, donors: Int[np.ndarray, " count"], rng: np.random.Generator, strengths: Strengths, texture: Texture
    ) -> dict[str, np.ndarray]:
        drawn = priors.draw(self.prior, donors, strengths, rng)
        decoded = decode(self.model, drawn.points[:, :-3].astype(np.float32))
        mass, diameter_mm, edges = np.exp(drawn.points[:, -3:].T)
        blocks = texture.blocks ** len(self.model.shape)
        patches = priors.sample_neighbours(self.prior, drawn, texture.neighbours, blocks, rng)
        weights = block_weights(self.model.shape, texture.blocks)
        residual = texture.strength * blend_residual_blocks(self.residuals, patches, weights)
        mask_residual = texture.mask_strength * blend_residual_blocks(self.mask_residuals, patches, weights)
        outline = signed_distances(decoded["mask"] > 0.5) + mask_residual
        values = self._hu(decoded["density"], mass, residual, drawn.donors[:, 0], texture.grey_levels)
        neighbours = nearest(values, self.training.values, window=self.model.window)
        return {
            **decoded,
            "values": values,
            "residual": residual,
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

    def _hu(
        self, density: np.ndarray, mass: np.ndarray, residual: np.ndarray, donors: np.ndarray, grey_levels: bool
    ) -> Int16[np.ndarray, "count *volume"]:
        shares = _expanded(mass, density.ndim) * density + residual
        if grey_levels:
            shares = with_grey_levels(shares, self.sorted_intensities[donors])
        return _in_hu(shares, self.model.window)

    def _finished(
        self, drawn: dict[str, np.ndarray], rejected: int, seed: int, shape: tuple[int, ...], grey_levels: bool
    ) -> Generated:
        values, outline = drawn["values"], drawn["outline"]
        if shape != self.model.shape:
            stretch = _stretch(self.model.shape, shape)
            density = density_at(drawn["weights"], drawn["means"], drawn["covariances"], shape, stretch)
            residual, outline = (_resampled(drawn[name], shape) for name in ("residual", "outline"))
            values = self._hu(density, drawn["mass"], residual, drawn["shape_donors"][:, 0], grey_levels)
        names = tuple(f"generated-{seed}-{i:05d}" for i in range(len(values)))
        name_of = np.array(self.training.names)
        count = len(names)
        details = Details(names, np.zeros((count, 3)), drawn["edge_mm"], drawn["diameter_mm"], np.zeros(count))
        masks = None if self.training.masks is None else (outline > 0).astype(np.uint8)
        return Generated(
            Nodules(values, names, names, tuple(drawn["category"].tolist()), masks, details),
            tuple(name_of[drawn["nearest"]].tolist()),
            drawn["distance"],
            np.zeros(count, np.int64),
            name_of[drawn["shape_donors"]],
            name_of[drawn["texture_donors"]],
            rejected,
        )


def fit(model: Model, training: Nodules, held_out: Nodules) -> Generator:
    """Fits a generator to training nodules.

    Args:
      model: a model trained on them.
      training: the training nodules, with details for their diameters.
      held_out: real nodules of other patients. Their distances from the training set give the threshold for copies.

    Raises:
      InputError: the model cannot encode and decode latent vectors, or a training nodule has no diameter.
    """
    if model.workload.encode is None or model.workload.decode is None:
        raise InputError(
            "the run must have a model that decodes latent vectors to nodules; got one without: set model.decoder to lattice"
        )
    details = training.details
    if details is None or not np.isfinite(details.diameter_mm).all():
        raise InputError("every training nodule must have a diameter; got some without: fill the CSV's column diameter_mm")
    latent = encode(model, training)
    decoded, mass = decode(model, latent), masses(training.values, model.window)
    shares = windowed(training.values, model.window)
    residuals = (shares - _expanded(mass, shares.ndim) * decoded["density"]).astype(np.float32)
    sorted_intensities = np.sort(shares.reshape(len(shares), -1), axis=1).astype(np.float32)
    mask_residuals = np.zeros_like(residuals)
    if training.masks is not None:
        mask_residuals = (signed_distances(training.masks) - signed_distances(decoded["mask"] > 0.5)).astype(np.float32)
    sizes = np.log(np.stack([mass, details.diameter_mm, details.edge_mm / details.diameter_mm], 1))
    held_out_distances = nearest(held_out.values, training.values, window=model.window).distance
    deviations = latent.std(0)
    inactive_units = int((deviations <= INACTIVE_SHARE * deviations.max()).sum())
    min_distance = float(np.percentile(held_out_distances, COPY_PERCENTILE))
    prior = priors.fit(np.concatenate([latent, sizes], axis=1), training.categories)
    return Generator(model, prior, training, residuals, mask_residuals, sorted_intensities, min_distance, inactive_units)


def in_hu(
    density: Float[np.ndarray, "samples *volume"], mass: Float[np.ndarray, " samples"], window: tuple[float, float]
) -> Int16[np.ndarray, "samples *volume"]:
    """Converts densities of these masses to HU, clipped to the window."""
    return _in_hu(_expanded(mass, density.ndim) * density, window)


def encode(model: Model, nodules: Nodules) -> Float[np.ndarray, "samples latent"]:
    """Returns the latent vectors of nodules, in the run's precision."""
    encoder = model.workload.encode
    assert encoder is not None
    densities = to_density(nodules.values, model.window)
    return _in_batches(model, lambda params, samples: {"latent": encoder(params, samples)}, densities)["latent"]


def decode(model: Model, latent: Float[np.ndarray, "samples latent"]) -> dict[str, np.ndarray]:
    """Decodes latent vectors to densities, the parameters of their mixtures, and masks."""
    assert model.workload.decode is not None
    return _in_batches(model, model.workload.decode, latent)


def _in_batches(model: Model, function: Callable[..., PerSample], samples: np.ndarray) -> dict[str, np.ndarray]:
    """Applies a function to samples in the run's precision, `BATCH` at a time.

    The last batch is padded, so one compiled program serves all calls.
    """
    compiled = jax.jit(function)
    parts: list[Mapping[str, np.ndarray]] = []
    with compilation.precision_context(model.config):
        samples = compilation.cast(model.config, samples)
        for start in range(0, len(samples), BATCH):
            part = samples[start : start + BATCH]
            padded = np.concatenate([part, np.repeat(part[-1:], BATCH - len(part), axis=0)])
            outputs = compiled(model.params, padded)
            parts.append({name: np.asarray(array)[: len(part)] for name, array in outputs.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _with_random_symmetries(generated: Generated, rng: np.random.Generator) -> Generated:
    """Rotates or reflects each nodule and its mask by a symmetry drawn at random."""
    nodules = generated.nodules
    volumes = {"values": nodules.values} | ({} if nodules.masks is None else {"masks": nodules.masks})
    views = {name: list(symmetries(array)) for name, array in volumes.items()}
    symmetry = rng.integers(len(views["values"]), size=len(generated.turn))
    oriented = {name: np.stack([view[k][i] for i, k in enumerate(symmetry)]) for name, view in views.items()}
    return generated._replace(nodules=nodules._replace(**oriented), turn=symmetry)


def _expanded(values: Float[np.ndarray, " samples"], ndim: int) -> Float[np.ndarray, "samples ..."]:
    return np.expand_dims(values, tuple(range(1, ndim)))


def _in_hu(shares: np.ndarray, window: tuple[float, float]) -> Int16[np.ndarray, "samples *volume"]:
    low, high = window
    return np.rint(low + (high - low) * np.clip(shares, 0, 1)).astype(np.int16)


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

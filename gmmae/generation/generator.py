"""New nodules from a trained model: latent vectors from the prior, decoded, with texture, and without copies."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int, Int16, Shaped
from scipy import ndimage

from gmmae.config.schema import Config
from gmmae.data.volumes import Details, Nodules, masses, to_density, windowed
from gmmae.generation import prior as priors
from gmmae.generation.judging.novelty import COPY_PERCENTILE, nearest, symmetries
from gmmae.generation.prior import Prior, Strengths
from gmmae.generation.texture import block_weights, mosaic, signed_distances, with_grey_levels
from gmmae.system.errors import InputError

if TYPE_CHECKING:
    from gmmae.workloads.interface import Params, Workload

BATCH = 64
"""Samples that are encoded or decoded at a time."""
DEAD = 1e-3
"""A latent unit is dead if its standard deviation over the training set is less than this share of the largest."""
LEAST = 4
"""Voxels along each axis of a volume, as `data.size` has at least."""
ROUNDS, SAME_DONORS = 30, 10
"""Times that what was rejected is drawn again before the generator gives up; the first of them from the same donors."""


class Model(NamedTuple):
    """What is needed of a trained model: its configuration, its workload's functions, its parameters, its data's window."""

    config: Config
    workload: "Workload"
    params: "Params"
    window: tuple[float, float]
    shape: tuple[int, ...]


class Texture(NamedTuple):
    """How residuals are put on the mixtures.

    Attributes:
      strength: that they are multiplied by; 0: none.
      mask_strength: the same of the masks' outlines.
      blocks: along each axis.
      neighbours: training nodules, near in the prior's components, among which each block's donor is drawn.
      grey_levels: whether voxels get the grey levels of the training nodule that the first band comes from.
    """

    strength: float = 0.5
    mask_strength: float = 0.5
    blocks: int = 2
    neighbours: int = 3
    grey_levels: bool = True


STRENGTHS, TEXTURE = Strengths(), Texture()


class Generated(NamedTuple):
    """New nodules, with what was drawn for each.

    Attributes:
      nodules: values in HU (int16), categories, the diameters and edges that were drawn, and masks where the training set
        has them. Each is a group of its own, and lies at the world's origin.
      nearest: the training nodule that each is nearest to.
      distance: to it, as `gmmae.generation.judging.novelty.nearest` measures, before it was turned.
      turn: which of `gmmae.generation.judging.novelty.symmetries` it was put into; 0 leaves it as its donors lie.
      shape_donors, texture_donors: the training nodules that the prior's bands and the texture's blocks come from.
      rejected: samples that were thrown away for being too near.
    """

    nodules: Nodules
    nearest: tuple[str, ...]
    distance: Float[np.ndarray, " samples"]
    turn: Int[np.ndarray, " samples"]
    shape_donors: Shaped[np.ndarray, "samples bands"]
    texture_donors: Shaped[np.ndarray, "samples blocks"]
    rejected: int


class Generator(NamedTuple):
    """A prior fitted to training nodules, with these.

    Attributes:
      model: that decodes.
      prior: over latent vectors, log mass, log diameter and the logarithm of edge over diameter.
      training: the nodules.
      residuals: the windowed nodules minus their reconstructions.
      outlines: the signed distances from the borders of their masks, minus those of the decoded masks.
      levels: the voxels of each windowed nodule, the darkest first.
      least_distance: below which a sample is a copy.
      dead: latent units that carry nothing.
    """

    model: Model
    prior: Prior
    training: Nodules
    residuals: Float32[np.ndarray, "samples *volume"]
    outlines: Float32[np.ndarray, "samples *volume"]
    levels: Float32[np.ndarray, "samples voxels"]
    least_distance: float
    dead: int

    def sample(
        self,
        count: int,
        category: str | None = None,
        seed: int = 0,
        *,
        size: int = 0,
        strengths: Strengths = STRENGTHS,
        texture: Texture = TEXTURE,
        turned: bool = True,
    ) -> Generated:
        """New nodules.

        Args:
          count: how many.
          category: of all; None: in the training set's proportions.
          seed: another seed, other nodules.
          size: voxels along the longest axis; 0: the model's own.
          strengths, texture: of what is drawn.
          turned: put each into a symmetry drawn at random. Nodules have no front, and a classifier would learn how the few
            donors lie.

        Raises:
          InputError: no training nodule has the category, an axis would be too short, or too many samples are copies.
        """
        if category is not None and category not in self.prior.means:
            raise InputError(f"category must be one of {', '.join(sorted(self.prior.means))}; got {category!r}")
        shape, rng = resized(self.model.shape, size), np.random.default_rng(seed)
        found: list[dict[str, np.ndarray]] = []
        donors, rejected = priors.first_donors(self.prior, count, category, rng), 0
        for attempt in range(ROUNDS):
            drawn = self._draw(donors, rng, strengths, texture)
            keep = drawn["distance"] >= self.least_distance
            found.append({name: values[keep] for name, values in drawn.items()})
            rejected += int((~keep).sum())
            # From the same donors again: otherwise nodules that are alike by nature, such as faint ones, would become rare. But
            # what is made of the faintest is always near to some other.
            again = attempt < SAME_DONORS
            donors = donors[~keep] if again else priors.first_donors(self.prior, int((~keep).sum()), category, rng)
            if not len(donors):
                order = rng.permutation(count)  # those that were easy to draw are not to stand in front
                all_of = {name: np.concatenate([part[name] for part in found])[order] for name in drawn}
                made = self._finished(all_of, rejected, seed, shape, texture.grey_levels)
                return _turned(made, rng) if turned else made
        raise InputError(
            f"generated nodules must differ by at least {self.least_distance:.3g} from all of the training set; {rejected} of "
            f"{rejected + count - len(donors)} samples do not: draw with more noise (--bandwidth), or train on more nodules"
        )

    def _draw(
        self, donors: Int[np.ndarray, " count"], rng: np.random.Generator, strengths: Strengths, texture: Texture
    ) -> dict[str, np.ndarray]:
        drawn = priors.draw(self.prior, donors, strengths, rng)
        decoded = decode(self.model, drawn.points[:, :-3].astype(np.float32))
        mass, diameter_mm, edges = np.exp(drawn.points[:, -3:].T)
        blocks = texture.blocks ** len(self.model.shape)
        patches = priors.near(self.prior, drawn, texture.neighbours, blocks, rng)
        weights = block_weights(self.model.shape, texture.blocks)
        residual = texture.strength * mosaic(self.residuals, patches, weights)
        outline = signed_distances(decoded["mask"] > 0.5) + texture.mask_strength * mosaic(self.outlines, patches, weights)
        values = self._hu(decoded["density"], mass, residual, drawn.donors[:, 0], texture.grey_levels)
        close = nearest(values, self.training.values, window=self.model.window)
        return {
            **decoded,
            "values": values,
            "residual": residual,
            "outline": outline,
            "mass": mass,
            "diameter_mm": diameter_mm,
            "edge_mm": edges * diameter_mm,
            "category": np.array(drawn.labels),
            "nearest": close.index,
            "distance": close.distance,
            "shape_donors": drawn.donors,
            "texture_donors": patches,
        }

    def _hu(
        self, density: np.ndarray, mass: np.ndarray, residual: np.ndarray, donors: np.ndarray, grey_levels: bool
    ) -> Int16[np.ndarray, "count *volume"]:
        shares = _expanded(mass, density.ndim) * density + residual
        if grey_levels:
            shares = with_grey_levels(shares, self.levels[donors])
        return _in_hu(shares, self.model.window)

    def _finished(
        self, drawn: dict[str, np.ndarray], rejected: int, seed: int, shape: tuple[int, ...], grey_levels: bool
    ) -> Generated:
        values, outline = drawn["values"], drawn["outline"]
        if shape != self.model.shape:
            from gmmae.workloads.lattice import density_at

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
    """A generator of nodules like those of a training set.

    Args:
      model: trained on that set.
      training: with details, for the diameters.
      held_out: real nodules of other patients: how far these lie from the training set says what a copy is.

    Raises:
      InputError: the model has no latent vector that can be drawn, or the diameters are not known.
    """
    if model.workload.encode is None or model.workload.decode is None:
        raise InputError(
            "a run must have a model that decodes latent vectors to nodules, such as model.decoder = lattice; this one has none"
        )
    details = training.details
    if details is None or not np.isfinite(details.diameter_mm).all():
        raise InputError("training nodules must have a diameter each, column diameter_mm; some have none: give them in the CSV")
    latent = encode(model, training)
    found, mass = decode(model, latent), masses(training.values, model.window)
    shares = windowed(training.values, model.window)
    residuals = (shares - _expanded(mass, shares.ndim) * found["density"]).astype(np.float32)
    levels = np.sort(shares.reshape(len(shares), -1), axis=1).astype(np.float32)
    outlines = np.zeros_like(residuals)
    if training.masks is not None:
        outlines = (signed_distances(training.masks) - signed_distances(found["mask"] > 0.5)).astype(np.float32)
    sizes = np.log(np.stack([mass, details.diameter_mm, details.edge_mm / details.diameter_mm], 1))
    apart = nearest(held_out.values, training.values, window=model.window).distance
    spread = latent.std(0)
    dead = int((spread <= DEAD * spread.max()).sum())
    least = float(np.percentile(apart, COPY_PERCENTILE))
    prior = priors.fit(np.concatenate([latent, sizes], axis=1), training.categories)
    return Generator(model, prior, training, residuals, outlines, levels, least, dead)


def in_hu(
    density: Float[np.ndarray, "samples *volume"], mass: Float[np.ndarray, " samples"], window: tuple[float, float]
) -> Int16[np.ndarray, "samples *volume"]:
    """Densities of these masses as HU, cut off at the window's ends."""
    return _in_hu(_expanded(mass, density.ndim) * density, window)


def encode(model: Model, nodules: Nodules) -> Float[np.ndarray, "samples latent"]:
    """The latent vectors of nodules, in the run's precision."""
    assert model.workload.encode is not None
    return _in_batches(model, model.workload.encode, to_density(nodules.values, model.window))


def decode(model: Model, latent: Float[np.ndarray, "samples latent"]) -> dict[str, np.ndarray]:
    """What the model's decoder says of latent vectors: the density and its mixture, and a mask."""
    assert model.workload.decode is not None
    return _in_batches(model, model.workload.decode, latent)


def _in_batches(model: Model, function: Callable[..., Any], given: np.ndarray) -> Any:
    """The function of all samples in the run's precision, `BATCH` at a time.

    The last batch is filled up, so that one program serves all, also those of a later call.
    """
    import jax

    from gmmae.training import compilation

    compiled, parts = jax.jit(function), []
    with compilation.precision_context(model.config):
        given = compilation.cast(model.config, given)
        for start in range(0, len(given), BATCH):
            part = given[start : start + BATCH]
            padded = np.concatenate([part, np.repeat(part[-1:], BATCH - len(part), axis=0)])
            parts.append(jax.tree.map(partial(_first, len(part)), compiled(model.params, padded)))
    return jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)


def _first(count: int, array: Any) -> np.ndarray:
    return np.asarray(array)[:count]


def _turned(made: Generated, rng: np.random.Generator) -> Generated:
    """Each nodule and its mask in one of the symmetries, drawn at random."""
    volumes = {"values": made.nodules.values} | ({} if made.nodules.masks is None else {"masks": made.nodules.masks})
    views_of = {name: list(symmetries(of)) for name, of in volumes.items()}
    turn = rng.integers(len(views_of["values"]), size=len(made.turn))
    turned = {name: np.stack([views[at][i] for i, at in enumerate(turn)]) for name, views in views_of.items()}
    return made._replace(nodules=made.nodules._replace(**turned), turn=turn)


def _expanded(values: Float[np.ndarray, " samples"], ndim: int) -> Float[np.ndarray, "samples ..."]:
    return np.expand_dims(values, tuple(range(1, ndim)))


def _in_hu(shares: np.ndarray, window: tuple[float, float]) -> Int16[np.ndarray, "samples *volume"]:
    low, high = window
    return np.rint(low + (high - low) * np.clip(shares, 0, 1)).astype(np.int16)


def resized(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The shape of a volume whose longest axis gets another number of voxels. Voxels stay cubic, so other axes are rounded.

    Args:
      shape: of the volume.
      size: voxels along the longest axis; 0: as many as now.

    Raises:
      InputError: an axis would have fewer than `LEAST` voxels.

    >>> resized((12, 16, 20), 24), resized((16, 16, 16), 32), resized((12, 16, 20), 0)
    ((14, 19, 24), (32, 32, 32), (12, 16, 20))
    """
    found = tuple(round(edge * size / max(shape)) for edge in shape) if size else shape
    if min(found) < LEAST:
        now, then = (" × ".join(map(str, each)) for each in (shape, found))
        raise InputError(f"--size must leave at least {LEAST} voxels along each axis; got {size}, which makes {then} of {now}")
    return found


def _stretch(shape: tuple[int, ...], new: tuple[int, ...]) -> Float[np.ndarray, " axes"]:
    """The length of each axis of a resized volume, in lengths of the axis before; axes of other lengths are rounded."""
    return np.array(new) / max(new) * max(shape) / np.array(shape)


def _resampled(values: Float[np.ndarray, "samples *old"], shape: tuple[int, ...]) -> Float[np.ndarray, "samples *new"]:
    """Volumes interpolated to the voxels of a resized volume around the same centre."""
    old, new = np.array(values.shape[1:]), np.array(shape)
    step = old.max() / new.max()
    first = (old - 1) / 2 - (new - 1) / 2 * step
    scale = np.full(len(shape), step)
    return np.stack([ndimage.affine_transform(each, scale, first, shape, order=1, mode="nearest") for each in values])

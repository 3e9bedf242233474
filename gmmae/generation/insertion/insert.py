"""Insertion of nodules into a folder of scans."""

import math
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Real

from gmmae.data.extraction.progress import Progress, Say
from gmmae.data.volumes import DataError, Nodules
from gmmae.generation.insertion import noise as noises
from gmmae.generation.insertion.blending import BLENDINGS, Blend, dense
from gmmae.generation.insertion.cubes import Nodule, as_nodule, band_mm
from gmmae.generation.insertion.folder import MASKS, PICTURE, InsertionRecord, write_mask, write_scan, write_tables
from gmmae.generation.insertion.hosts import (
    Annotations,
    Host,
    annotated,
    list_scans,
    outside,
    read_annotations,
    read_host,
    repeated_scans,
)
from gmmae.generation.insertion.lungs import PleuralDistances, find_lungs, measure_pleural_distances
from gmmae.generation.insertion.noise import Noise
from gmmae.generation.insertion.placing import Placement, Target, find_placement
from gmmae.plotting.slices import InsertionView, draw_insertions
from gmmae.system.files import whole_folder

BLENDING = "poisson"
SHOWN = 6
"""Number of nodules in the picture, from as many scans as possible."""

SHOWN_EDGE_MM = 50.0
MAX_LINES = 20
"""Maximum number of messages of each kind in the summary."""

EXTRA_TRIES = 4
"""Number of nodules that may fail in a scan before it gets fewer than planned. They are tried again in the next scan."""

MIN_DEPTH_MM = 1.0
"""Depth below its surface at which a nodule's own noise can be told from its edge."""


class Summary(NamedTuple):
    """The result of an insertion.

    Attributes:
      out: the output folder.
      records: the inserted nodules.
      scans: number of written scans; scans without a new nodule are not written.
      empty: number of scans without a new nodule.
      unplaced: a message for each nodule that was tried and found no place.
      unused: number of nodules for which no scan was left.
      faults: a message for each unusable row of annotations.csv, each repeated scan and each unreadable scan.
      pleural_distances: source of the distances to the pleura.
    """

    out: Path
    records: tuple[InsertionRecord, ...]
    scans: int
    empty: int
    unplaced: tuple[str, ...]
    unused: int
    faults: tuple[str, ...]
    pleural_distances: str

    def lines(self) -> list[str]:
        """Returns the summary as lines for the user."""
        lines = [f"{len(self.records)} nodules in {self.scans} scans: {self.out}", f"places: {self.pleural_distances}"]
        if self.empty:
            lines.append(f"{self.empty} scans got no nodule and are not in the folder")
        if self.unused:
            lines.append(f"{self.unused} nodules were not needed: give more scans, or raise --per-scan")
        for messages in (self.faults, self.unplaced):
            lines += messages[:MAX_LINES]
            lines += [f"and {len(messages) - MAX_LINES} more"] if len(messages) > MAX_LINES else []
        return [*lines, f"--data.source luna16 --data.root {self.out} uses them"]


class Inserted(NamedTuple):
    """A nodule's insertion into a scan.

    Attributes:
      region: slices of the scan's voxels that contain the support.
      before: the region's former voxels.
      label: the nodule's voxels in the region.
      centre_mm: centroid of the nodule's voxels, world x, y, z.
      box_mm: box around them along the world's axes: centre and width along x, y, z.
      turn: symmetry of the cube.
      pleura_mm: distance from the nodule's surface to the pleura.
      displaced_hu: median of the displaced tissue.
      shift_hu: change of the nodule's mean by blending.
      noise_hu: standard deviation of the added noise.
      scan_noise_hu: standard deviation of the scan's own noise.
    """

    region: tuple[slice, slice, slice]
    before: Real[np.ndarray, "z y x"]
    label: Bool[np.ndarray, "z y x"]
    centre_mm: Float[np.ndarray, "3"]
    box_mm: Float[np.ndarray, "6"]
    turn: str
    pleura_mm: float
    displaced_hu: float
    shift_hu: float
    noise_hu: float
    scan_noise_hu: float


class _Queue:
    """The nodules in random order; a nodule without a place goes to the end, and `failures` keeps its reason."""

    def __init__(self, nodules: Nodules, seed: int) -> None:
        if nodules.masks is None:
            raise DataError("nodules to insert must have masks; got none: add FOLDER/masks or a column mask")
        if nodules.values.ndim != 4:
            raise DataError(f"nodules to insert must have 3 axes; got {nodules.values.ndim - 1}")
        for name, mask in zip(nodules.names, nodules.masks, strict=True):
            if not mask.any():
                raise DataError(f"the mask of a nodule to insert must have voxels; that of {name} has none")
        self.nodules = nodules
        self.numbers = deque(np.random.default_rng(seed).permutation(len(nodules.names)).tolist())
        self.failures: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    def pop(self) -> tuple[int, Nodule]:
        """Removes the next nodule. Only now it is padded, because a thousand padded nodules take gigabytes."""
        number, nodules = self.numbers.popleft(), self.nodules
        assert nodules.masks is not None
        assert nodules.details is not None
        volume, mask = nodules.values[number], nodules.masks[number]
        edge_mm, diameter_mm = (float(column[number]) for column in (nodules.details.edge_mm, nodules.details.diameter_mm))
        return number, as_nodule(nodules.names[number], nodules.categories[number], volume, mask, edge_mm, diameter_mm)

    def put_back(self, number: int, reason: str) -> None:
        """Puts a nodule without a place to the end."""
        self.failures[self.nodules.names[number]] = reason
        self.numbers.append(number)

    def unplaced(self) -> tuple[str, ...]:
        """Returns a message for each remaining nodule that was tried."""
        names = [self.nodules.names[number] for number in self.numbers]
        return tuple(f"{name} found no place: {self.failures[name]}" for name in names if name in self.failures)


def insert(
    nodules: Nodules,
    scans: Path,
    out: Path,
    seed: int,
    blending: str = BLENDING,
    say: Say = print,
    per_scan: tuple[int, int] = (1, 3),
) -> Summary:
    """Inserts nodules, each once, into scans in LUNA16's format. One scan is in memory at a time.

    Args:
      nodules: cubes in HU along the world's axes, with masks, and with details for their edges and diameters.
      scans: folder of the scans, which stays unchanged.
      out: output folder, empty or new. It appears when the insertion is complete.
      seed: seed of places, symmetries and noise.
      blending: a name in `BLENDINGS`.
      say: function for lines to the user.
      per_scan: minimum and maximum number of nodules per scan, as long as nodules are left.

    Raises:
      DataError: nodules without masks, a folder without scans, or no place for any nodule.
      InputError: the output folder is not empty, or cannot be written.
    """
    if blending not in BLENDINGS:
        raise DataError(f"--blending must be one of {', '.join(BLENDINGS)}; got {blending!r}")
    if not 1 <= per_scan[0] <= per_scan[1]:
        raise DataError(f"--per-scan must be two counts, 1 ≤ minimum ≤ maximum; got {per_scan[0]} and {per_scan[1]}")
    headers, annotations = list_scans(scans), read_annotations(scans)
    queue = _Queue(nodules, seed)
    records: list[InsertionRecord] = []
    written: dict[str, Path] = {}
    unreadable: list[str] = []
    faults = [*repeated_scans(scans), *annotations.faults]
    views: list[InsertionView] = []
    with whole_folder(out) as folder, Progress(len(headers), "scans", say) as progress:
        distances = measure_pleural_distances(headers, annotations)
        for number, (uid, header) in enumerate(headers.items()):
            if not queue:
                break
            try:
                host = read_host(uid, header)
            except DataError as error:
                unreadable.append(str(error))
                continue
            faults += outside(host, annotations.rows.get(uid, []))
            rng = np.random.default_rng([seed, number])
            labels = np.zeros(host.voxels.shape, np.uint16)
            count = int(rng.integers(*per_scan, endpoint=True))
            new: list[InsertionRecord] = []
            for nodule, inserted in _fill(rng, queue, _target(host, annotations), distances, count, BLENDINGS[blending]):
                labels[inserted.region][inserted.label] = len(new) + 1
                if len(views) < SHOWN and len(new) < max(1, SHOWN // len(headers)):
                    views.append(_surroundings(nodule, inserted, host))
                new.append(_record(nodule, inserted, host, len(new) + 1, blending, seed))
            if new:
                written[uid] = header.relative_to(scans)
                write_scan(folder / written[uid], header, host.voxels)
                write_mask(folder / MASKS / f"{uid}.nii.gz", host, labels)
            records += new
            progress.advance()
        if not records:
            reasons = [f"{name}: {reason}" for name, reason in queue.failures.items()] or unreadable
            raise DataError(f"a nodule must find a place in {scans}; got none, and the first reason is {reasons[0]}")
        write_tables(folder, annotations, written, records)
        draw_insertions(folder / PICTURE, views)
    unplaced, empty = queue.unplaced(), len(headers) - len(unreadable) - len(written)
    messages = (*faults, *unreadable)
    return Summary(out, tuple(records), len(written), empty, unplaced, len(queue) - len(unplaced), messages, distances.source)


def _target(host: Host, annotations: Annotations) -> Target:
    lungs = find_lungs(host)
    occupied = [(centre, diameter / 2) for centre, diameter in annotated(annotations.rows.get(host.uid, []))]
    return Target(host, lungs, noises.measure(host, lungs), occupied)


def _fill(
    rng: np.random.Generator, queue: _Queue, target: Target, distances: PleuralDistances, count: int, blend: Blend
) -> Iterator[tuple[Nodule, Inserted]]:
    """Inserts up to `count` nodules of the queue into a scan, and yields each insertion."""
    done = 0
    for _ in range(min(count + EXTRA_TRIES, len(queue))):
        if done == count:
            return
        number, nodule = queue.pop()
        inserted = insert_nodule(rng, nodule, target, distances.draw(rng), blend)
        if isinstance(inserted, str):
            queue.put_back(number, inserted)
            continue
        done += 1
        radius = float(np.linalg.norm(inserted.box_mm[3:])) / 2
        target = target._replace(occupied=[*target.occupied, (inserted.centre_mm, radius)])
        yield nodule, inserted


def insert_nodule(
    rng: np.random.Generator, nodule: Nodule, target: Target, gap_mm: float | None, blend: Blend
) -> Inserted | str:
    """Inserts a nodule into a scan in memory, or returns the reason if no place was found.

    Voxels farther from the nodule's surface than the band stay unchanged.

    Args:
      rng: random generator.
      nodule: the nodule.
      target: the scan, whose voxels change.
      gap_mm: wanted distance of a free nodule's surface from the pleura; None for any.
      blend: a function in `BLENDINGS`.
    """
    placement = find_placement(rng, nodule, target, gap_mm)
    if isinstance(placement, str):
        return placement
    host, resampled = target.host, placement.resampled
    region, distance_mm = resampled.region, resampled.distance_mm
    old = host.voxels[region].copy()
    before = old.astype(float)
    added = _missing_noise(resampled.hu, distance_mm, target.noise)
    hu = resampled.hu + noises.draw(rng, target.noise._replace(hu=added), resampled.hu.shape)
    hu += dense(before, hu) * (before - hu)
    width = band_mm(host.grid)
    after = blend(before, hu, distance_mm, width, host.grid.spacing_mm)
    support = distance_mm < width
    host.voxels[region][support] = _as_voxels(host.voxels.dtype, after[support])
    label = placement.label
    pleura_mm = max(float(placement.depth_mm[label].min()), 0.0)
    displaced, shift = float(np.median(before[label])), float((after - hu)[label].mean())
    symmetry = str(placement.symmetry)
    return Inserted(
        region, old, label, *_extent(placement, host), symmetry, pleura_mm, displaced, shift, added, target.noise.hu
    )


def _missing_noise(hu: Float[np.ndarray, "z y x"], distance_mm: Float[np.ndarray, "z y x"], noise: Noise) -> float:
    """Returns the standard deviation of the noise that a nodule lacks; 0 if it is too small for a measurement."""
    for inner in (distance_mm < -MIN_DEPTH_MM, distance_mm < 0):
        own = noises.within(hu, inner, noise.reach_pixels)
        if own is not None:
            return math.sqrt(max(noise.hu**2 - own**2, 0.0))
    return 0.0


def _as_voxels(dtype: np.dtype, values: Float[np.ndarray, " n"]) -> Real[np.ndarray, " n"]:
    """Converts values to the type of the scan's voxels, rounded and clipped for integers."""
    if np.issubdtype(dtype, np.floating):
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    return np.clip(np.rint(values), limits.min, limits.max).astype(dtype)


def _extent(placement: Placement, host: Host) -> tuple[Float[np.ndarray, "3"], Float[np.ndarray, "6"]]:
    """Returns the centroid of a nodule's voxels, and the box around their outer corners, in world mm."""
    indices = np.argwhere(placement.label) + np.array([axis.start for axis in placement.resampled.region])
    points = host.grid.world(indices)
    half = np.abs(host.grid.matrix_mm).sum(axis=1) / 2
    low, high = points.min(0) - half, points.max(0) + half
    return points.mean(0), np.concatenate([(low + high) / 2, high - low])


def _record(nodule: Nodule, inserted: Inserted, host: Host, label: int, blending: str, seed: int) -> InsertionRecord:
    x, y, z = (round(float(mm), 6) for mm in inserted.centre_mm)
    return InsertionRecord(
        nodule=nodule.name,
        category=nodule.category,
        seriesuid=host.uid,
        label=label,
        coordX=x,
        coordY=y,
        coordZ=z,
        diameter_mm=round(nodule.diameter_mm, 4),
        box_mm=tuple(inserted.box_mm.tolist()),
        voxels=int(inserted.label.sum()),
        spacing_mm=tuple(host.grid.spacing_mm[::-1].tolist()),
        blending=blending,
        seed=seed,
        turn=inserted.turn,
        pleura_mm=round(inserted.pleura_mm, 2),
        displaced_hu=round(inserted.displaced_hu, 1),
        shift_hu=round(inserted.shift_hu, 1),
        noise_hu=round(inserted.noise_hu, 1),
        scan_noise_hu=round(inserted.scan_noise_hu, 1),
    )


def _surroundings(nodule: Nodule, inserted: Inserted, host: Host) -> InsertionView:
    """Cuts out the surroundings of a nodule, without it and with it."""
    first = np.array([part.start for part in inserted.region])
    middle = first + np.rint(np.argwhere(inserted.label).mean(0)).astype(int)
    half = np.ceil(SHOWN_EDGE_MM / 2 / host.grid.spacing_mm).astype(int)
    start, stop = np.clip(middle - half, 0, host.voxels.shape), np.clip(middle + half + 1, 0, host.voxels.shape)
    z, y, x = map(slice, np.minimum(start, first), np.maximum(stop, [part.stop for part in inserted.region]))
    after = host.voxels[z, y, x].copy()
    before, label = after.copy(), np.zeros(after.shape, bool)
    inner = tuple(slice(part.start - s.start, part.stop - s.start) for part, s in zip(inserted.region, (z, y, x), strict=True))
    before[inner], label[inner] = inserted.before, inserted.label
    c, b, a = (middle - [z.start, y.start, x.start]).tolist()
    title = f"{nodule.name} {nodule.category}, {nodule.diameter_mm:.0f} mm, in …{host.uid[-12:]}"
    return InsertionView(title, before, after, label, (c, b, a), host.grid.spacing_mm)

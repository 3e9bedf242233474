"""Insertion of nodules into a folder of scans."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Real

from gmmae.data.extraction.progress import Say, progress
from gmmae.data.volumes import DataError, Nodules
from gmmae.generation.insertion import noise as noises
from gmmae.generation.insertion.blending import dense, poisson
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
    rows_in_scan,
)
from gmmae.generation.insertion.lungs import PleuralDistances, find_lungs, measure_pleural_distances
from gmmae.generation.insertion.noise import Noise
from gmmae.generation.insertion.placing import Placement, Target, find_placement
from gmmae.plotting.slices import InsertionView, draw_insertions
from gmmae.system.files import whole_folder

SHOWN = 6
"""Number of nodules in the picture, from as many scans as possible."""

SHOWN_EDGE_MM = 50.0
MAX_LINES = 20
"""Maximum number of messages of each kind in the summary."""

EXTRA_TRIES = 4
"""Number of nodules that may fail in a scan before it gets fewer than planned. They are tried again in the next scan."""

EDGE_MM = 1.0
"""Width of a nodule's edge, which is left out when its own noise is measured."""


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
      record: line of `insertions.csv`.
    """

    region: tuple[slice, slice, slice]
    before: Real[np.ndarray, "z y x"]
    label: Bool[np.ndarray, "z y x"]
    centre_mm: Float[np.ndarray, "3"]
    record: InsertionRecord


class Supply(NamedTuple):
    """Nodules, and the numbers of those that wait for a place, in their order."""

    nodules: Nodules
    waiting: dict[int, str]


def insert(
    nodules: Nodules,
    scans: Path,
    out: Path,
    seed: int,
    say: Say = print,
    per_scan: tuple[int, int] = (1, 3),
) -> Summary:
    """Inserts nodules, each once, into scans in LUNA16's format. One scan is in memory at a time.

    A nodule gets the noise that it lacks of the scan's. It keeps its own blur.

    Args:
      nodules: cubes in HU along the world's axes, with masks, edges and diameters.
      scans: folder of the scans, which stays unchanged.
      out: output folder, empty or new. It appears when the insertion is complete.
      seed: seed of places, symmetries and noise.
      say: function for lines to the user.
      per_scan: minimum and maximum number of nodules per scan, as long as nodules are left.

    Raises:
      DataError: nodules without masks, a folder without scans, or no place for any nodule.
      InputError: the output folder is not empty, or cannot be written.
    """
    headers, faults = list_scans(scans)
    annotations = read_annotations(scans)
    faults += annotations.faults
    _require_masks(nodules)
    waiting = dict.fromkeys(np.random.default_rng(seed).permutation(len(nodules.names)).tolist(), "")
    supply = Supply(nodules, waiting)
    records: list[InsertionRecord] = []
    written: dict[str, Path] = {}
    unreadable: list[str] = []
    views: list[InsertionView] = []
    with whole_folder(out) as folder:
        distances = measure_pleural_distances(headers, annotations)
        for number, (uid, header) in enumerate(progress(headers.items(), len(headers), "scans", say)):
            if not waiting:
                break
            try:
                host = read_host(uid, header)
            except DataError as error:
                unreadable.append(str(error))
                continue
            rows = annotations.rows.get(uid, [])
            faults += outside(host, rows)
            annotations.rows[uid] = rows_in_scan(host, rows)
            rng = np.random.default_rng([seed, number])
            count = int(rng.integers(*per_scan, endpoint=True))
            labels = np.zeros(host.voxels.shape, np.uint16)
            new: list[InsertionRecord] = []
            for inserted in _fill(rng, supply, _target(host, annotations), distances, count, seed):
                labels[inserted.region][inserted.label] = inserted.record.label
                if len(views) < SHOWN and len(new) < max(1, SHOWN // len(headers)):
                    views.append(_surroundings(inserted, host))
                new.append(inserted.record)
            if new:
                written[uid] = header.relative_to(scans)
                write_scan(folder / written[uid], header, host.voxels)
                write_mask(folder / MASKS / f"{uid}.nii.gz", host, labels)
            records += new
        if not records:
            reasons = [f"{nodules.names[number]}: {reason}" for number, reason in waiting.items() if reason] or unreadable
            raise DataError(f"a nodule must find a place in {scans}; got none, and the first reason is {reasons[0]}")
        write_tables(folder, annotations, written, records)
        draw_insertions(folder / PICTURE, views)
    unplaced = tuple(f"{nodules.names[number]} found no place: {reason}" for number, reason in waiting.items() if reason)
    empty, unused = len(headers) - len(unreadable) - len(written), len(waiting) - len(unplaced)
    messages = (*faults, *unreadable)
    return Summary(out, tuple(records), len(written), empty, unplaced, unused, messages, distances.source)


def _require_masks(nodules: Nodules) -> None:
    if nodules.masks is None:
        raise DataError("nodules to insert must have masks; got none: add FOLDER/masks or a column mask")
    if nodules.values.ndim != 4:
        raise DataError(f"nodules to insert must have 3 axes; got {nodules.values.ndim - 1}")
    for name, mask in zip(nodules.names, nodules.masks, strict=True):
        if not mask.any():
            raise DataError(f"the mask of a nodule to insert must have voxels; that of {name} has none")


def _target(host: Host, annotations: Annotations) -> Target:
    lungs = find_lungs(host)
    occupied = [(centre, diameter / 2) for centre, diameter in annotated(annotations.rows[host.uid])]
    return Target(host, lungs, noises.measure(host, lungs), occupied)


def _fill(
    rng: np.random.Generator,
    supply: Supply,
    target: Target,
    distances: PleuralDistances,
    count: int,
    seed: int,
) -> Iterator[Inserted]:
    """Inserts up to `count` waiting nodules into a scan, and yields each insertion.

    A nodule without a place goes to the end, with the reason.
    """
    label, (nodules, waiting) = 1, supply
    for _ in range(min(count + EXTRA_TRIES, len(waiting))):
        if label > count:
            return
        number = next(iter(waiting))
        del waiting[number]
        nodule = as_nodule(nodules, number)  # one at a time, because a thousand padded nodules take gigabytes
        inserted = _insert_nodule(rng, nodule, target, distances.draw(rng), label, seed)
        if isinstance(inserted, str):
            waiting[number] = inserted
            continue
        label += 1
        radius = float(np.linalg.norm(inserted.record.box_mm[3:])) / 2
        target = target._replace(occupied=[*target.occupied, (inserted.centre_mm, radius)])
        yield inserted


def _insert_nodule(
    rng: np.random.Generator, nodule: Nodule, target: Target, gap_mm: float | None, label: int, seed: int
) -> Inserted | str:
    """Inserts a nodule into a scan in memory, or returns the reason if no place was found.

    Voxels farther from the nodule's surface than the band stay unchanged. A free nodule's surface is to lie `gap_mm` from the
    pleura, or anywhere if that is None. Label and seed are for the record.
    """
    placement = find_placement(rng, nodule, target, gap_mm)
    if isinstance(placement, str):
        return placement
    host, inside, (region, nodule_hu, distance_mm) = target.host, placement.label, placement.resampled
    old = host.voxels[region].copy()
    before = old.astype(float)
    added = _missing_noise(nodule_hu, distance_mm, target.noise)
    hu = nodule_hu + noises.draw(rng, target.noise._replace(hu=added), nodule_hu.shape)
    hu += dense(before, hu) * (before - hu)
    width = band_mm(host.grid)
    after = poisson(before, hu, distance_mm, width, host.grid.spacing_mm)
    support = distance_mm < width
    host.voxels[region][support] = _as_voxels(host.voxels.dtype, after[support])
    centre_mm, box_mm = _extent(placement, host)
    x, y, z = (round(float(mm), 6) for mm in centre_mm)
    record = InsertionRecord(
        nodule=nodule.name,
        patient=nodule.group,
        category=nodule.category,
        seriesuid=host.uid,
        label=label,
        coordX=x,
        coordY=y,
        coordZ=z,
        diameter_mm=round(nodule.diameter_mm, 4),
        box_mm=tuple(box_mm.tolist()),
        voxels=int(inside.sum()),
        spacing_mm=tuple(host.grid.spacing_mm[::-1].tolist()),
        seed=seed,
        turn=str(placement.symmetry),
        pleura_mm=round(max(float(placement.depth_mm[inside].min()), 0.0), 2),
        displaced_hu=round(float(np.median(before[inside])), 1),
        shift_hu=round(float((after - hu)[inside].mean()), 1),
        noise_hu=round(added, 1),
        scan_noise_hu=round(target.noise.hu, 1),
    )
    return Inserted(region, old, inside, centre_mm, record)


def _missing_noise(hu: Float[np.ndarray, "z y x"], distance_mm: Float[np.ndarray, "z y x"], noise: Noise) -> float:
    """Returns the standard deviation of the noise that a nodule lacks; 0 if it is too small for a measurement."""
    for inner in (distance_mm < -EDGE_MM, distance_mm < 0):
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


def _surroundings(inserted: Inserted, host: Host) -> InsertionView:
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
    record = inserted.record
    title = f"{record.nodule} {record.category}, {record.diameter_mm:.0f} mm, in …{host.uid[-12:]}"
    return InsertionView(title, before, after, label, (c, b, a), host.grid.spacing_mm)

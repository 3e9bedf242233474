"""Nodules into a folder of scans: which goes where, and what is written of it."""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gmmae.data.extraction.prepare import Details
from gmmae.data.extraction.progress import Progress, Say
from gmmae.data.volumes import DataError, Nodules
from gmmae.generation.insertion import noise, pleura
from gmmae.generation.insertion.blending import BLENDINGS
from gmmae.generation.insertion.cubes import Nodule, as_nodule
from gmmae.generation.insertion.folder import MASKS, PICTURE, Row, write_mask, write_scan, write_tables
from gmmae.generation.insertion.hosts import (
    Host,
    Table,
    annotated,
    list_scans,
    outside,
    read_annotations,
    read_host,
    repeated_scans,
)
from gmmae.generation.insertion.lungs import find_lungs
from gmmae.generation.insertion.placing import Taken
from gmmae.generation.insertion.put import Inserted, put
from gmmae.plotting.insertions import Shown, draw_insertions
from gmmae.system.files import whole_folder

BLENDING = "poisson"
SHOWN = 6
"""Nodules in the picture, from as many scans as there are."""

SHOWN_MM = 50.0
MOST_LINES = 20
EXTRA = 4
"""Nodules that may fail in a scan before it is left with fewer than it should have; they are tried again in the next."""


class Summary(NamedTuple):
    """What came of an insertion.

    Attributes:
      out: the folder.
      rows: the inserted nodules.
      scans: how many scans were written; those that got no nodule are not.
      left: scans that got none.
      unplaced: a line for each nodule that was tried and found no place.
      unused: nodules for which no scan was left.
      faults: a line for each row of annotations.csv that cannot be used, and for each scan that is there twice or could not
        be read.
      gaps: where the distances to the pleura come from.
    """

    out: Path
    rows: tuple[Row, ...]
    scans: int
    left: int
    unplaced: tuple[str, ...]
    unused: int
    faults: tuple[str, ...]
    gaps: str

    def lines(self) -> list[str]:
        """For the user."""
        found = [f"{len(self.rows)} nodules in {self.scans} scans: {self.out}", f"places: {self.gaps}"]
        if self.left:
            found.append(f"{self.left} scans got no nodule and are not in the folder")
        if self.unused:
            found.append(f"{self.unused} nodules were not needed: give more scans, or raise --per-scan")
        for what in (self.faults, self.unplaced):
            found += what[:MOST_LINES]
            found += [f"and {len(what) - MOST_LINES} more"] if len(what) > MOST_LINES else []
        return [*found, f"--data.source luna16 --data.root {self.out} uses them"]


def insert(
    nodules: Nodules,
    details: Details,
    scans: Path,
    out: Path,
    seed: int,
    blending: str = BLENDING,
    say: Say = print,
    per_scan: tuple[int, int] = (1, 3),
) -> Summary:
    """Insert nodules, each once, into scans shaped like LUNA16's; one scan is in memory at a time.

    Args:
      nodules: cubes in HU, along the world's axes, with masks.
      details: of which the cubes' edges and the diameters are used.
      scans: the folder of the scans, which is left as it is.
      out: the folder to write, empty or not there; it appears when all is done.
      seed: another seed, other places, turns and noise.
      blending: one of `BLENDINGS`.
      say: takes lines for the user.
      per_scan: the fewest and the most nodules that a scan gets, as long as there are any.

    Raises:
      DataError: no masks, no scans, or no nodule found a place.
      InputError: the folder is not empty, or cannot be written.
    """
    if blending not in BLENDINGS:
        raise DataError(f"--blending must be one of {', '.join(BLENDINGS)}; got {blending!r}")
    if not 1 <= per_scan[0] <= per_scan[1]:
        raise DataError(f"--per-scan must be two counts, 1 ≤ fewest ≤ most; got {per_scan[0]} and {per_scan[1]}")
    headers, table = list_scans(scans), read_annotations(scans)
    queue = _queue(nodules, seed)
    tried: dict[str, str] = {}
    rows: list[Row] = []
    written: dict[str, Path] = {}
    faults: list[str] = []
    strays = [*repeated_scans(scans), *table.faults]
    shown: list[Shown] = []
    with whole_folder(out) as folder, Progress(len(headers), "scans", say) as progress:
        gaps = pleura.measure(headers, table)
        for number, (uid, header) in enumerate(headers.items()):
            if not queue:
                break
            try:
                host = read_host(uid, header)
            except DataError as error:
                faults.append(str(error))
                continue
            strays += outside(host, table.rows.get(uid, []))
            rng = np.random.default_rng([seed, number])
            labels = np.zeros(host.voxels.shape, np.uint16)
            count = int(rng.integers(*per_scan, endpoint=True))
            new: list[Row] = []
            made = partial(_nodule, nodules, details)
            for nodule, done in _fill(rng, queue, made, host, table, gaps, count, blending, tried):
                labels[done.region][done.label] = len(new) + 1
                if len(shown) < SHOWN and len(new) < max(1, SHOWN // len(headers)):
                    shown.append(_shown(nodule, done, host))
                new.append(_row(nodule, done, host, len(new) + 1, blending, seed))
            if new:
                written[uid] = header.relative_to(scans)
                write_scan(folder / written[uid], header, host.voxels)
                write_mask(folder / MASKS / f"{uid}.nii.gz", host, labels)
            rows += new
            progress.advance()
        if not rows:
            why = [f"{name}: {reason}" for name, reason in tried.items()] or faults
            raise DataError(f"a nodule must find a place in {scans}; none did, the first reason: {why[0]}")
        write_tables(folder, table, written, rows)
        draw_insertions(folder / PICTURE, shown)
    names = [nodules.names[i] for i in queue]
    unplaced = tuple(f"{name} found no place: {tried[name]}" for name in names if name in tried)
    left = len(headers) - len(faults) - len(written)
    unused, said = len(queue) - len(unplaced), (*strays, *faults)
    return Summary(out, tuple(rows), len(written), left, unplaced, unused, said, gaps.source)


def _queue(nodules: Nodules, seed: int) -> deque[int]:
    """The nodules' numbers in a random order."""
    if nodules.masks is None:
        raise DataError("nodules to insert must have masks, in FOLDER/masks or a column mask; these have none")
    if nodules.values.ndim != 4:
        raise DataError(f"nodules to insert must have 3 axes; got {nodules.values.ndim - 1}")
    for name, mask in zip(nodules.names, nodules.masks, strict=True):
        if not mask.any():
            raise DataError(f"a nodule to insert must have a mask with voxels; that of {name} has none")
    return deque(np.random.default_rng(seed).permutation(len(nodules.names)).tolist())


def _nodule(nodules: Nodules, details: Details, number: int) -> Nodule:
    """Made when it is needed: padded, a thousand of them would take gigabytes."""
    assert nodules.masks is not None
    return as_nodule(
        nodules.names[number],
        nodules.categories[number],
        nodules.values[number],
        nodules.masks[number],
        float(details.edge_mm[number]),
        float(details.diameter_mm[number]),
    )


def _fill(
    rng: np.random.Generator,
    queue: deque[int],
    made: Callable[[int], Nodule],
    host: Host,
    table: Table,
    gaps: pleura.Gaps,
    count: int,
    blending: str,
    tried: dict[str, str],
) -> Iterator[tuple[Nodule, Inserted]]:
    """Put up to `count` nodules of the queue into a scan; each with what was done.

    One that finds no place goes to the queue's end, and the reason into `tried`.
    """
    lungs = find_lungs(host)
    scan_noise = noise.measure(host, lungs)
    taken: list[Taken] = [(centre, diameter / 2) for centre, diameter in annotated(table.rows.get(host.uid, []))]
    done = 0
    for _ in range(min(count + EXTRA, len(queue))):
        if done == count:
            return
        number = queue.popleft()
        nodule = made(number)
        result = put(rng, nodule, host, lungs, scan_noise, taken, gaps.draw(rng), BLENDINGS[blending])
        if isinstance(result, str):
            tried[nodule.name] = result
            queue.append(number)
            continue
        done += 1
        taken.append((result.centre_mm, float(np.linalg.norm(result.box_mm[3:])) / 2))
        yield nodule, result


def _row(nodule: Nodule, done: Inserted, host: Host, label: int, blending: str, seed: int) -> Row:
    x, y, z = (round(float(mm), 6) for mm in done.centre_mm)
    return Row(
        nodule.name,
        nodule.category,
        host.uid,
        label,
        x,
        y,
        z,
        round(nodule.diameter_mm, 4),
        tuple(done.box_mm.tolist()),
        int(done.label.sum()),
        tuple(host.grid.spacing_mm[::-1].tolist()),
        blending,
        seed,
        done.turn,
        round(done.pleura_mm, 2),
        round(done.displaced_hu, 1),
        round(done.shift_hu, 1),
        round(done.noise_hu, 1),
        round(done.scan_noise_hu, 1),
    )


def _shown(nodule: Nodule, done: Inserted, host: Host) -> Shown:
    """The part of a scan around a nodule, without it and with it."""
    first = np.array([part.start for part in done.region])
    middle = first + np.rint(np.argwhere(done.label).mean(0)).astype(int)
    half = np.ceil(SHOWN_MM / 2 / host.grid.spacing_mm).astype(int)
    start, stop = np.clip(middle - half, 0, host.voxels.shape), np.clip(middle + half + 1, 0, host.voxels.shape)
    z, y, x = map(slice, np.minimum(start, first), np.maximum(stop, [part.stop for part in done.region]))
    after = host.voxels[z, y, x].copy()
    before, label = after.copy(), np.zeros(after.shape, bool)
    inner = tuple(slice(part.start - s.start, part.stop - s.start) for part, s in zip(done.region, (z, y, x), strict=True))
    before[inner], label[inner] = done.before, done.label
    c, b, a = (middle - [z.start, y.start, x.start]).tolist()
    title = f"{nodule.name} {nodule.category}, {nodule.diameter_mm:.0f} mm, in …{host.uid[-12:]}"
    return Shown(title, before, after, label, (c, b, a), host.grid.spacing_mm)

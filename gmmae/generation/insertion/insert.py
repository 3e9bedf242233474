"""Insertion of nodules into a folder of scans."""

import math
from pathlib import Path

import numpy as np
from jaxtyping import UInt16

from gmmae.data.extraction.annotations import Table
from gmmae.data.extraction.progress import Say, progress
from gmmae.data.extraction.scan import as_image, read_scan
from gmmae.data.settings import ANNOTATIONS
from gmmae.data.volumes import DataError, Nodules
from gmmae.data.writing import write_image
from gmmae.generation.insertion import noise as noises
from gmmae.generation.insertion.blending import dense, poisson
from gmmae.generation.insertion.cubes import as_nodule, band_mm, turn_name
from gmmae.generation.insertion.folder import InsertionRecord, Written, read_scans, write_tables
from gmmae.generation.insertion.geometry import matrix_mm, spacing_mm, to_index, to_world
from gmmae.generation.insertion.lungs import find_lungs
from gmmae.generation.insertion.placing import Target, find_placement
from gmmae.plotting.slices import InsertionView, draw_insertions
from gmmae.system.files import whole_folder

SHOWN = 6
"""Nodules in the picture, from as many scans as possible."""

SHOWN_EDGE_MM = 50.0

EXTRA_TRIES = 4
"""Nodules that may fail in a scan; they are tried again in the next one."""

MIN_ANNOTATED = 20
"""Annotated nodules for measured distances to the pleura."""

AT_PLEURA_MM = 1.0


def insert(
    nodules: Nodules,
    scans: Path,
    out: Path,
    seed: int,
    say: Say = print,
    per_scan: tuple[int, int] = (1, 3),
) -> tuple[list[InsertionRecord], list[str]]:
    """Inserts nodules, each once, into scans in LUNA16's format, one in memory at a time; returns the inserted and a summary.

    A nodule gets the noise that it lacks of the scan's, and keeps its own blur. A free one gets the distance to the pleura of
    an annotated one of the scans so far; with fewer than `MIN_ANNOTATED` it lies anywhere in the lung.

    Args:
      nodules: cubes in HU along the world's axes, with masks, edges and diameters.
      scans: their folder, which stays unchanged.
      out: empty or new; it appears when the insertion is complete.
      seed: of places, symmetries and noise.
      say: takes lines for the user.
      per_scan: least and greatest number.
    """
    headers, table, faults = read_scans(scans)
    if nodules.masks is None:
        raise DataError("nodules to insert must have masks; got none: add FOLDER/masks or a column mask")
    for name, mask in zip(nodules.names, nodules.masks, strict=True):
        if not mask.any():
            raise DataError(f"the mask of a nodule to insert must have voxels; that of {name} has none")
    waiting = dict.fromkeys(np.random.default_rng(seed).permutation(len(nodules.names)).tolist(), "")
    enough = sum(row.file in headers for row in table.rows) >= MIN_ANNOTATED
    free_mm: list[float] = []
    written: dict[str, Written] = {}
    views: list[InsertionView] = []
    unreadable = 0
    with whole_folder(out) as folder:
        (folder / "masks").mkdir()
        for number, (uid, header) in enumerate(progress(headers.items(), len(headers), "scans", say)):
            if not waiting:
                break
            try:
                target = _read(uid, header, table, faults)
            except (DataError, OSError) as error:
                faults.append(f"{header.name}: {error}")
                unreadable += 1
                continue
            (_, scan, lungs, _, _), old = target, list(target.occupied)
            gaps_mm = [float(lungs.depth_at(to_index(scan.frame, centre))) - radius for centre, radius in old]
            free_mm += [gap for gap in gaps_mm if enough and gap > AT_PLEURA_MM]
            records, labels, shown = _fill(nodules, waiting, target, free_mm, per_scan, [seed, number])
            if records:
                written[uid] = Written(header.relative_to(scans), old, records)
                (folder / written[uid].path).parent.mkdir(exist_ok=True)
                write_image(as_image(scan.voxels, scan), folder / written[uid].path)
                write_image(as_image(labels, scan), folder / "masks" / f"{uid}.nii.gz")
                views += shown[: max(1, SHOWN // len(headers))]
        unplaced = [f"{nodules.names[number]} found no place: {reason}" for number, reason in waiting.items() if reason]
        if not written:
            raise DataError(f"a nodule must find a place in {scans}; got none: {(unplaced + faults)[0]}")
        write_tables(folder, table, written)
        draw_insertions(folder / "insertions.png", views[:SHOWN])
    places = "anywhere in the lung (too few annotated nodules to measure)"
    if free_mm:
        places = f"as deep as {len(free_mm)} annotated nodules that lie off the pleura (median {np.median(free_mm):.0f} mm)"
    inserted = [record for one in written.values() for record in one.records]
    empty, unused = len(headers) - unreadable - len(written), len(waiting) - len(unplaced)
    lines = [
        f"{len(inserted)} nodules in {len(written)} scans: {out}",
        f"places: {places}, nodules with solid tissue at their cube's border at the pleura",
        f"{empty} scans got no nodule and are not in the folder" if empty else "",
        f"{unused} nodules were not needed: give more scans, or raise --per-scan" if unused else "",
    ]
    lines += [*faults, *unplaced, f"--data.source luna16 --data.root {out} uses them"]
    return inserted, [line for line in lines if line]


def _read(uid: str, header: Path, table: Table, faults: list[str]) -> Target:
    scan, voxels = read_scan(header)
    lungs = find_lungs(voxels, scan.frame)
    target = Target(uid, scan._replace(voxels=voxels), lungs, noises.measure(voxels, lungs), [])
    for row in (row for row in table.rows if row.file == uid):
        index = to_index(scan.frame, centre := np.array(row.centre_mm))
        if ((index >= -0.5) & (index <= np.array(voxels.shape) - 0.5)).all():
            target.occupied.append((centre, (row.diameter_mm or 0.0) / 2))
        else:
            faults.append(f"{ANNOTATIONS} line {row.number}: the nodule lies outside the scan {header.name}")
    return target


def _fill(
    nodules: Nodules,
    waiting: dict[int, str],
    target: Target,
    free_mm: list[float],
    per_scan: tuple[int, int],
    seed: list[int],
) -> tuple[list[InsertionRecord], UInt16[np.ndarray, "z y x"], list[InsertionView]]:
    """Nodules without a place wait for the next scan, with the reason."""
    uid, (voxels, frame, *_), _, noise, occupied = target
    width, spacing, rng = band_mm(frame), spacing_mm(frame), np.random.default_rng(seed)
    count = int(rng.integers(*per_scan, endpoint=True))
    records: list[InsertionRecord] = []
    views: list[InsertionView] = []
    labels = np.zeros(voxels.shape, np.uint16)
    for number in list(waiting)[: count + EXTRA_TRIES]:
        if len(records) == count:
            break
        del waiting[number]
        nodule = as_nodule(nodules, number)  # one at a time: a thousand take gigabytes
        placement = find_placement(rng, nodule, target, float(rng.choice(free_mm)) if free_mm else None)
        if isinstance(placement, str):
            waiting[number] = placement
            continue
        turn, region, hu, distance_mm, inside, depth_mm = placement
        label = len(records) + 1
        indices = np.argwhere(inside) + [part.start for part in region]
        middle, half = np.rint(indices.mean(0)).astype(int), np.ceil(SHOWN_EDGE_MM / 2 / spacing).astype(int)
        start = np.maximum(middle - half, 0)
        z, y, x = map(slice, start, middle + half + 1)
        shown, before = voxels[z, y, x].copy(), voxels[region].astype(float)
        # None if its own noise cannot be measured.
        own = noises.measure_inside(hu, distance_mm, noise.reach_pixels)
        added = 0.0 if own is None else math.sqrt(max(noise.sd_hu**2 - own**2, 0.0))
        hu = hu + added * noises.draw(rng, noise.reach_pixels, hu.shape)
        hu += dense(before, hu) * (before - hu)
        after = poisson(before, hu, distance_mm, width, spacing)
        shift_hu = (after - hu)[inside].mean()
        if voxels.dtype.kind in "iu":
            after = np.rint(after).clip(np.iinfo(voxels.dtype).min, np.iinfo(voxels.dtype).max)
        voxels[region][distance_mm < width] = after[distance_mm < width]
        labels[region][inside] = label
        points, half_voxel = to_world(frame, indices), np.abs(matrix_mm(frame)).sum(1) / 2
        low, high, centre = points.min(0) - half_voxel, points.max(0) + half_voxel, points.mean(0)
        occupied.append((centre, float(np.linalg.norm(high - low)) / 2))
        record = InsertionRecord(
            nodules.names[number],
            nodules.groups[number],
            nodules.categories[number],
            uid,
            label,
            *np.round(centre, 6).tolist(),
            diameter_mm=round(nodule.diameter_mm, 4),
            box_mm=tuple(np.concatenate([(low + high) / 2, high - low]).tolist()),
            voxels=len(indices),
            spacing_mm=frame.GetSpacing(),
            seed=seed[0],
            turn=turn_name(turn),
            pleura_mm=round(max(float(depth_mm[inside].min()), 0.0), 2),
            displaced_hu=round(float(np.median(before[inside])), 1),
            shift_hu=round(float(shift_hu), 1),
            noise_hu=round(added, 1),
            scan_noise_hu=round(noise.sd_hu, 1),
        )
        records.append(record)
        title = f"{record.nodule} {record.category}, {record.diameter_mm:.0f} mm, in …{uid[-12:]}"
        pictured = shown, voxels[z, y, x].copy(), labels[z, y, x] == label
        views.append(InsertionView(title, *pictured, tuple((middle - start).tolist()), spacing))
    return records, labels, views

"""The work of one worker process: it cuts all nodules of one scan. Neither this module nor its imports import jax.

A cube is aligned with the world's axes, for any direction matrix of the scan. Along an axis of S voxels, voxel i lies at
`centre + (i - (S - 1) / 2) · edge / S` of the longest axis, so voxels are cubic, also where the edges differ. Axes and
coordinates are those of `gmmae.data.extraction.scan`.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import SimpleITK as sitk
from jaxtyping import Bool, Float, Real

from gmmae.data.extraction.annotations import Fault, Item
from gmmae.data.extraction.arrays import array_names, open_array
from gmmae.data.extraction.scan import (
    Scan,
    as_image,
    index_of,
    make_frame,
    mask_region,
    of_array,
    origin,
    read,
    read_mask,
    region,
)
from gmmae.data.extraction.tasks import Cube, Reading, Task, place_of, stamps
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError, Point, error_line

WHOLE_SCAN_MM = 150.0
"""No volume that was cut around a nodule is as wide along x and y."""

MAX_REGION_VOXELS = 2**26
"""More scan voxels around one cube mean a diameter or a spacing in a wrong unit."""

Shape = tuple[int, ...]
"""Voxels of a cube along its volume's axes, which may be fewer than 3."""


def extract(task: Task, config: DataConfig) -> Reading | str:
    """Cuts all nodules of one scan. A broken file or nodule becomes a fault.

    Of a transient error (disk, network, memory, files changed since they were listed) the reason is returned.
    """
    cubes, faults = list[Cube](), list[Fault]()
    try:
        for item, scan, mask, source in nodules_of(task, config.min_ndim):
            try:
                cubes.append(_cut(item, scan, mask, config)._replace(origin=source))
            except DataError as error:
                faults.append(Fault("nodule", place_of(task, item), str(error), 1))
    except DataError as error:
        faults.append(Fault("unreadable", task.label, str(error), len(task.items) - len(cubes) - len(faults)))
    except (OSError, MemoryError) as error:
        return error_line(error)
    if stamps(stamp.path for stamp in task.stamps) != task.stamps:
        return "its files have changed, or have gone, since they were listed"
    return Reading(task, cubes, faults)


def nodules_of(task: Task, min_ndim: int) -> Iterator[tuple[Item, Scan, Path | np.ndarray | None, str]]:
    """Yields nodules, their scans, read once, their masks for `read_mask`, and the `origin` of the scan.

    Raises:
      DataError: the volume cannot be used, and so no nodule of it.
      OSError: the system failed, not the file.
    """
    path, names = task.file, array_names(task.file)
    stack = task.items[0].part is not None
    volumes = open_array(path, task.items[0].array) if stack else read(path)
    whole = origin(volumes) if isinstance(volumes, Scan) else ""
    inner = "masks" if stack else "mask"
    masks = open_array(path, inner) if inner in names else None
    for item in task.items:
        scan = volumes if isinstance(volumes, Scan) else of_array(volumes[item.part])
        mask = masks[item.part] if stack and masks is not None else item.mask or masks
        if scan.axes < min_ndim:
            raise DataError(f"a volume must have at least data.ndim = {min_ndim} axes; this one has {scan.axes}")
        if scan.bare and item.spacing_mm is not None:
            scan = scan._replace(frame=make_frame(_three(item.spacing_mm, scan, 1.0, "spacingX, spacingY, spacingZ")))
        yield item, scan, mask, whole or origin(scan)


def centre_mm(item: Item, scan: Scan) -> Point:
    """The world point of a nodule, by default the middle of its scan."""
    if item.centre_mm is None:
        return scan.frame.TransformContinuousIndexToPhysicalPoint([(n - 1) / 2 for n in scan.size])
    return _three(item.centre_mm, scan, 0.0, "coordX, coordY, coordZ")


def _three(known: tuple[float, ...], scan: Scan, rest: float, columns: str) -> Point:
    if len(known) < scan.axes:
        raise DataError(f"{columns} must be given for each of the volume's {scan.axes} axes; got {len(known)} of them")
    x, y, z = (*known[: scan.axes], rest, rest, rest)[:3]
    return (x, y, z)


def _cut(item: Item, scan: Scan, mask: Path | np.ndarray | None, config: DataConfig) -> Cube:
    shape, size = config.volume_shape[3 - scan.axes :], scan.voxels.shape[3 - scan.axes :]
    if scan.bare and item.spacing_mm is None and item.centre_mm is None and size == shape:
        edge = float(max(shape))  # the array is the cube already
    else:
        edge = edge_mm(config.crop, item.diameter_mm, scan, shape)
        x_mm, y_mm, _ = np.multiply(scan.size, scan.spacing_mm)
        if item.centre_mm is None and min(x_mm, y_mm) > max(WHOLE_SCAN_MM, 2 * edge):
            raise DataError(
                "a nodule of a whole scan must have a place, in columns coordX, coordY, coordZ; got none, and a scan of "
                f"{x_mm:.0f} × {y_mm:.0f} mm, from whose middle its cube would be cut"
            )
    centre, filled, outline = centre_mm(item, scan), 0.0, np.zeros(shape, np.uint8)
    finer = np.greater_equal(size, shape).all()
    if config.crop == "whole" and item.centre_mm is None and finer and _is_cube(scan, shape):
        # Each voxel is the mean of the part that it covers, so nothing is aliased.
        values = region(scan, config.hu).astype(np.float64)
        for axis, count in enumerate(shape, 3 - len(shape)):
            length = values.shape[axis]
            faces = np.arange(count + 1)[:, None] * length / count
            covered = np.diff(np.clip(faces - np.arange(length), 0, 1), axis=0)
            values = np.moveaxis(np.tensordot(covered * count / length, values, (1, axis)), 0, axis)
        values = stored(values.reshape(shape), config.hu)
    else:
        values, filled = cut(scan, centre, edge, shape, config.outside, config.hu)
    if mask is not None:
        own = read_mask(mask, scan, None if item.centre_mm is None else centre)
        shares, inside = _sample(own, centre, edge, shape, hu=None)
        outline = ((shares >= 0.5) & inside).astype(np.uint8)
    return Cube(item, values, outline, mask is not None, centre, edge, filled)


def edge_mm(edge: str, diameter_mm: float | None, scan: Scan, shape: Shape) -> float:
    """A cube's longest edge, from `data.crop`: "1.25x" the diameter, "20mm", or "whole" (the volume)."""
    if edge == "whole":
        return max(_edges_mm(scan, shape))
    if edge.endswith("mm"):
        return float(edge.removesuffix("mm"))
    if diameter_mm is None:
        raise DataError(
            f"data.crop = {edge} needs a diameter_mm; there is none: fill it in, name its column (--data.diameter-column), or "
            "give data.crop in mm, or whole"
        )
    return float(edge.removesuffix("x")) * diameter_mm


def _edges_mm(scan: Scan, shape: Shape) -> list[float]:
    """The longest edges of cubes that are as long as the volume along x, y or z."""
    edges = zip(scan.size, scan.spacing_mm, reversed(shape), strict=False)
    return [spacing * size * (max(shape) / count) for size, spacing, count in edges]


def _is_cube(scan: Scan, shape: Shape) -> bool:
    """Whether a volume is what a cube of its own edge holds."""
    edges, axes = _edges_mm(scan, shape), np.array(scan.frame.GetDirection()).reshape(3, 3)
    return np.allclose(edges, edges[0], 1e-3) and np.allclose(axes, np.eye(3), atol=1e-4)


def cut(
    scan: Scan, centre_mm: Point, edge_mm: float, shape: Shape, outside: float | None, hu: bool
) -> tuple[Real[np.ndarray, "*volume"], float]:
    """Resamples a cube by trilinear interpolation. Returns it and the share of its voxels that lie outside the scan.

    Args:
      scan: only its voxels around the cube are read.
      centre_mm: of the cube in the world.
      edge_mm: from outer face to outer face along the longest edge.
      shape: voxels along each axis.
      outside: the value outside of the scan; None: that of the nearest voxel.
      hu: whether voxels are checked and rounded HU (int16), or stay float32.
    """
    index_of(scan, centre_mm)
    values, inside = _sample(scan, centre_mm, edge_mm, shape, hu)
    values = stored(values, hu)
    if outside is not None:
        values[~inside] = outside
    return values, float(1 - inside.mean())


def stored(values: Real[np.ndarray, "*volume"], hu: bool) -> Real[np.ndarray, "*volume"]:
    """Values as `Nodules` has them."""
    return np.rint(values).astype(np.int16) if hu else values.astype(np.float32)


@np.errstate(over="ignore", invalid="ignore")  # an overflow is refused below
def _sample(
    scan: Scan, centre_mm: Point, edge_mm: float, shape: Shape, hu: bool | None
) -> tuple[Float[np.ndarray, "*volume"], Bool[np.ndarray, "*volume"]]:
    """`hu` is None for a mask."""
    spacing, sizes = edge_mm / max(shape), (1,) * (3 - len(shape)) + shape
    offsets = [(np.arange(n) - (n - 1) / 2) * edge_mm / max(shape) for n in sizes]
    points = np.stack(np.meshgrid(*offsets, indexing="ij")[::-1], -1)  # x, y, z from the centre
    # The map from points to indices is affine, so four points give it.
    corners = (centre_mm + np.eye(4, 3, -1)).tolist()
    middle, *ends = np.array([scan.frame.TransformPhysicalPointToContinuousIndex(corner) for corner in corners])
    indices = middle + points @ (np.stack(ends) - middle)
    first, last = np.floor(indices.min((0, 1, 2))), np.ceil(indices.max((0, 1, 2)))
    covered = np.prod(last - first + 1)
    if not covered <= MAX_REGION_VOXELS:  # also for an edge of NaN
        raise DataError(
            f"a cube may cover at most {MAX_REGION_VOXELS:.2g} voxels of its scan; {edge_mm:g} mm cover {covered:.2g}: "
            "are diameter, data.crop and spacing in mm?"
        )
    first, last, end = first.astype(int), last.astype(int), np.array(scan.size) - 1
    inner = np.clip([first, last], 0, end)
    part = mask_region(scan, *inner).astype(np.float32) if hu is None else region(scan, hu, *inner)
    # Interpolation beyond the scan continues its outermost voxels.
    lower, upper = np.maximum(-first, 0), np.maximum(last - end, 0)
    image = as_image(np.pad(part, np.stack([lower, upper], 1)[::-1], "edge"), scan, (inner[0] - lower).tolist())
    origin = (centre_mm - (np.array(sizes[::-1]) - 1) / 2 * spacing).tolist()
    grid = (origin, [spacing] * 3, np.eye(3).ravel().tolist())
    values = sitk.Resample(image, sizes[::-1], sitk.Transform(), sitk.sitkLinear, *grid, 0.0, sitk.sitkFloat64)
    inside = np.all((indices >= -0.5) & (indices <= end + 0.5), axis=-1)
    return sitk.GetArrayFromImage(values).reshape(shape), inside.reshape(shape)

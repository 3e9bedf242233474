"""Folders of small volumes with masks, sound or spoilt in one place."""

import csv
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import SimpleITK as sitk

from gmmae.data.extraction.scan import Scan, make_frame

SHAPE = (5, 16, 16)
SPACING = (0.7, 0.8, 2.0)
ORIGIN = (-20.0, 12.0, -150.0)
COLUMNS = ("file", "patient", "coordX", "coordY", "coordZ", "diameter_mm")


class Case(NamedTuple):
    """A volume and its mask as arrays, and the row of the CSV."""

    values: np.ndarray
    mask: np.ndarray
    row: list[object]


def image(values: np.ndarray, origin=ORIGIN, spacing=SPACING, direction=None) -> sitk.Image:
    """Returns an image of an array with a geometry."""
    image = sitk.GetImageFromArray(values)
    image.SetSpacing(spacing)
    image.SetOrigin(origin)
    if direction is not None:
        image.SetDirection(direction)
    return image


def scan_of(image: sitk.Image) -> Scan:
    """Returns an image as a scan."""
    frame = make_frame(image.GetSpacing(), image.GetOrigin(), image.GetDirection())
    return Scan(sitk.GetArrayFromImage(image), frame)


def world(index_zyx: Sequence[float]) -> tuple[float, ...]:
    """Returns the world point of an index, rounded as in a CSV."""
    return tuple(round(o + s * i, 4) for o, s, i in zip(ORIGIN, SPACING, index_zyx[::-1], strict=True))


def case(number: int, ending: str = ".mha") -> Case:
    """Returns a ball of tissue in noisy lung, off the middle. Its CSV row names the centre."""
    rng = np.random.default_rng(number)
    centre = np.array([2, 7, 8]) + rng.integers(-1, 2, 3)
    z, y, x = np.indices(SHAPE)
    mask = (4 * (z - centre[0]) ** 2 + (y - centre[1]) ** 2 + (x - centre[2]) ** 2) <= 7
    values = np.where(mask, -50, -850) + np.rint(rng.normal(0, 30, SHAPE))
    row = [f"n{number}{ending}", f"P{number}", *world(centre.tolist()), 4.0]
    return Case(values.astype(np.int16), mask.astype(np.uint8), row)


def write(root: Path, count: int = 4, ending: str = ".mha", spoil: Callable[[Case, int], Case | None] | None = None) -> Path:
    """Writes a folder of `count` volumes with `images/`, `masks/` and `nodules.csv`, each case changed by `spoil` first.

    If `spoil` returns None, it has written the files itself or left them out.
    """
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    rows: list[list[object]] = []
    for number in range(count):
        sound = case(number, ending)
        changed = spoil(sound, number) if spoil else sound
        rows.append((changed or sound).row)
        if changed is not None:
            sitk.WriteImage(image(changed.values), str(root / "images" / str(changed.row[0])))
            sitk.WriteImage(image(changed.mask), str(root / "masks" / str(changed.row[0])))
    write_rows(root / "nodules.csv", rows)
    return root


def write_rows(path: Path, rows: Sequence[Sequence[object]], columns: Sequence[str] = COLUMNS) -> None:
    """Writes a CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])


def patch(path: Path, layout: str, offset: int, *values: float) -> None:
    """Overwrites bytes of a file, such as a field of its header."""
    content = bytearray(path.read_bytes())
    struct.pack_into(layout, content, offset, *values)
    path.write_bytes(content)

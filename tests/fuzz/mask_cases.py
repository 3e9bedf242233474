"""Damaged and odd masks, and masks whose geometry is not that of their volume."""

from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree

import numpy as np
import SimpleITK as sitk

from tests.fuzz.cases import Both, Case, Change, Expect, Reading, left_out, on, reads, reads_or_leaves_out, refused
from tests.fuzz.csv_cases import Without, rows_changed
from tests.fuzz.folders import GRID, IDENTITY, Grid, write_image
from tests.fuzz.volume_cases import MASK, NAME, NODULE, damaged, instead, voxels

GONE = Without()
LOST = left_out(GONE, NAME)
PERHAPS = reads_or_leaves_out(GONE, NAME)


def mask(array: np.ndarray, grid: Grid = GRID) -> Change:
    """Another mask of the nodule n2."""
    return lambda folder: write_image(folder / MASK, array, grid)


def _near(expect: Expect) -> Expect:
    return Expect(expect.readings, expect.refuses, expect.names, near=True)


def _geometries() -> Iterator[tuple[str, Change, Expect]]:
    ball = NODULE.ball()
    first = np.array(GRID.origin) + GRID.matrix @ np.array([3, 3, 2])
    cropped = GRID._replace(shape=(6, 10, 8), origin=tuple(first.tolist()))
    yield "a part of the volume's grid", mask(ball[2:-2, 3:-3, 3:-3], cropped), PERHAPS
    moved = GRID._replace(origin=(10.0 + 2 * 0.8, -20.0, 30.0))
    yield "two voxels beside", mask(ball, moved), reads_or_leaves_out(GONE, NAME, like=mask(np.roll(ball, 2, 2)))
    half = GRID._replace(origin=(10.4, -20.0, 30.0))
    yield "half a voxel beside", mask(NODULE.ball(half), half), _near(PERHAPS)
    turned = GRID._replace(
        direction=(-1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 1.0), origin=(10.0 + 13 * 0.8, -20.0 + 15 * 0.9, 30.0)
    )
    yield "turned, at the same place", mask(ball[:, ::-1, ::-1], turned), PERHAPS
    yield "turned, at another place", mask(ball, turned._replace(origin=GRID.origin)), LOST
    finer = Grid((20, 32, 28), (0.4, 0.45, 0.75), (9.8, -20.225, 29.625))
    yield "of half the spacing", mask(NODULE.ball(finer), finer), _near(PERHAPS)
    yield "of half the spacing, but as many voxels", mask(ball, GRID._replace(spacing=(0.4, 0.45, 0.75))), LOST
    yield "without a geometry", mask(ball, Grid(GRID.shape, (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), IDENTITY)), LOST
    yield "a micrometre beside", mask(ball, GRID._replace(origin=(10.001, -20.001, 30.001))), reads(near=True)
    yield "of a spacing rounded", mask(ball, GRID._replace(spacing=(0.80001, 0.90001, 1.50001))), reads(near=True)
    yield "1 m away", mask(ball, GRID._replace(origin=(1010.0, -20.0, 30.0))), LOST


def _values() -> Iterator[tuple[str, Change, Expect]]:
    ball = NODULE.ball()
    yield "of 255", mask(255 * ball), reads()
    yield "of the label 7", mask(7 * ball), reads()
    for kind in (np.int16, np.int32, np.float32, np.float64):
        yield f"of the type {kind.__name__}", mask(ball.astype(kind)), reads()
    yield "of several labels", mask(ball * (1 + np.arange(ball.size).reshape(ball.shape) % 3).astype(np.uint8)), PERHAPS
    soft = np.where(ball, 0.9, 0.1).astype(np.float32)
    yield "of probabilities", mask(soft), PERHAPS
    yield "of -1 and 1", mask(2 * ball.astype(np.int16) - 1), PERHAPS
    yield "of logits", mask(np.where(ball, 3.0, -3.0).astype(np.float32)), PERHAPS
    yield "with NaN", mask(np.where(ball, 1, np.nan).astype(np.float32)), PERHAPS
    yield "everywhere", mask(np.ones_like(ball)), reads(mask(np.ones_like(ball)))
    yield "of one voxel", mask(_one()), reads(mask(_one()))


def _one() -> np.ndarray:
    one = np.zeros(GRID.shape, np.uint8)
    one[5, 8, 7] = 1
    return one


def _axes() -> Iterator[tuple[str, Change, Expect]]:
    def with_image(function: Callable[[sitk.Image], sitk.Image]) -> Change:
        return lambda folder: sitk.WriteImage(function(sitk.ReadImage(str(folder / MASK))), str(folder / MASK))

    yield "4 axes, one time", with_image(lambda image: sitk.JoinSeries([image])), PERHAPS
    yield "4 axes, three times", with_image(lambda image: sitk.JoinSeries([image] * 3)), LOST
    yield "2 axes", with_image(lambda image: image[:, :, 5]), LOST
    yield "vectors", with_image(lambda image: sitk.Compose([sitk.Cast(image, sitk.sitkFloat32)] * 3)), LOST
    yield "one slice", with_image(lambda image: image[:, :, :1]), LOST


def named(text: str, file: Callable[[Path], object] = lambda _: None) -> Change:
    """A column `mask` whose cell of n2 is a text; the mask is moved by `file`."""

    def column(rows: list[list[str]]) -> list[list[str]]:
        return [[*row, "mask" if i == 0 else text if i == 3 else ""] for i, row in enumerate(rows)]

    return Both(rows_changed(column), lambda folder: file(folder))


def _columns() -> Iterator[tuple[str, Change, Expect]]:
    yield "named by a column", named("masks/other.nii.gz", lambda f: (f / MASK).rename(f / "masks/other.nii.gz")), reads()
    line = "nodules.csv line 4"
    yield "named by a column, but missing", named("masks/other.nii.gz"), left_out(GONE, line)
    yield "a folder by its column", named("masks"), left_out(GONE, line)
    yield "outside of the folder", named("../n2.nii.gz"), left_out(GONE, line)
    yield "an absolute path", named("/etc/passwd"), left_out(GONE, line)


def _lacking() -> Iterator[Case]:
    without = instead(lambda _: None, MASK)
    zeros = voxels(np.zeros_like, name=MASK)
    elsewhere: dict[str, tuple[Change, Change]] = {
        "missing": (without, without),
        "of another name": (lambda folder: (folder / MASK).rename(folder / "masks/n2_mask.nii.gz"), without),
        "of the ending .nii": (lambda folder: (folder / MASK).rename(folder / "masks/n2.nii"), without),
    }
    for name, (change, like) in elsewhere.items():
        yield Case(
            f"mask: {name}", "cubes", change, on("prepare, evaluate", reads(like)) | on("segment, insert", refused("n2"))
        )
    empty = on("prepare", Expect((Reading(zeros), *LOST.readings), True, (NAME,))) | on(
        "segment, train unet, insert", refused("n2")
    )
    yield Case("mask: without a voxel", "cubes", zeros, empty)

    def no_folder(folder: Path) -> None:
        rmtree(folder / "masks")

    def a_file(folder: Path) -> None:
        no_folder(folder)
        (folder / "masks").write_text("none\n")

    for name, change in {"no folder masks": no_folder, "a file named masks": a_file}.items():
        expect = on("prepare, evaluate", reads(no_folder)) | on("segment, train unet", refused("n0.nii.gz"))
        yield Case(f"mask: {name}", "cubes", change, expect | on("insert", refused("masks")))


def cases() -> Iterator[Case]:
    """All cases of masks."""
    for name, change, kind in damaged(MASK):
        if kind == "missing":
            continue  # a volume may be without a mask: `_lacking`
        expect = {"": LOST, "perhaps": PERHAPS, "read": reads()}[kind]
        if name == "a folder":
            expect = Expect((*LOST.readings, Reading(instead(lambda _: None, MASK))), True, (NAME,))
        yield Case(f"mask: {name}", "cubes", change, on("prepare, segment", expect))
    for name, change, expect in (*_geometries(), *_values(), *_axes(), *_columns()):
        yield Case(f"mask: {name}", "cubes", change, on("prepare, segment", expect))
    yield from _lacking()

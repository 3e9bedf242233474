"""Folders shaped like TCIA's LIDC-IDRI: DICOM series of balls in lung, and XML files with the outlines of readers."""

import locale
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.ndimage
import SimpleITK as sitk

SHAPE = (40, 96, 80)
SPACING = (0.7, 0.6, 1.8)
ORIGIN = (-31.5, 40.25, -212.0)
SCORES = {
    "subtlety": 4,
    "internalStructure": 1,
    "calcification": 6,
    "sphericity": 4,
    "margin": 5,
    "texture": 5,
    "malignancy": 3,
}
CROSS = scipy.ndimage.generate_binary_structure(2, 1)


class Scan(NamedTuple):
    """The geometry and names of a series."""

    series: str = "1.2.826.0.1.3680043.8.498.1"
    patient: str = "LIDC-IDRI-0001"
    shape: tuple[int, int, int] = SHAPE
    spacing: tuple[float, float, float] = SPACING
    origin: tuple[float, float, float] = ORIGIN
    rows: tuple[float, float, float] = (1.0, 0.0, 0.0)
    columns: tuple[float, float, float] = (0.0, 1.0, 0.0)

    def positions(self) -> np.ndarray:
        """World x, y, z of all voxels, [z, y, x, 3]."""
        normal = np.cross(self.rows, self.columns)
        k, j, i = np.indices(self.shape)
        axes = (self.rows, self.columns, normal)
        steps = np.array(axes) * np.array(self.spacing)[:, None]
        return np.array(self.origin) + np.stack([i, j, k], -1) @ steps

    def ball(self, centre_mm: Sequence[float] | np.ndarray, diameter_mm: float) -> np.ndarray:
        """The voxels whose centres lie in a ball."""
        return np.linalg.norm(self.positions() - centre_mm, axis=-1) <= diameter_mm / 2

    def uid(self, k: int) -> str:
        """SOPInstanceUID of a slice."""
        return f"{self.series}.{k + 1}"


def write_series(folder: Path, scan: Scan, values: np.ndarray, slices: Sequence[int] | None = None, **tags: str) -> None:
    """Writes slices as DICOM files, in an order of names that is not that of their positions.

    `tags` are further ones, with names such as `t0008_0060` for (0008,0060).
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = locale.setlocale(locale.LC_ALL)
    normal = np.cross(scan.rows, scan.columns)
    for k in range(scan.shape[0]) if slices is None else slices:
        image = sitk.GetImageFromArray(values[k : k + 1].astype(np.int16 if tags.get("t0008_0060") is None else np.uint16))
        origin = np.array(scan.origin) + k * scan.spacing[2] * normal
        image.SetSpacing(scan.spacing)
        image.SetOrigin(origin.tolist())
        image.SetDirection(np.column_stack([scan.rows, scan.columns, normal]).ravel().tolist())
        words = {
            "0008|0060": "CT",
            "0008|0018": scan.uid(k),
            "0010|0020": scan.patient,
            "0020|000d": f"{scan.series}.0",
            "0020|000e": scan.series,
            "0020|0032": "\\".join(f"{mm:.6f}" for mm in origin),
            "0020|0037": "\\".join(f"{part:g}" for part in (*scan.rows, *scan.columns)),
            **({} if "t0008_0060" in tags else {"0028|1052": "-1024", "0028|1053": "1"}),
            **{name[1:].replace("_", "|"): value for name, value in tags.items()},
        }
        for key, value in words.items():
            image.SetMetaData(key, value)
        writer = sitk.ImageFileWriter()
        writer.KeepOriginalImageUIDOn()
        writer.SetFileName(str(folder / f"{scan.series[-1]}-{k * 7 % 10}-{k}.dcm"))
        writer.Execute(image)
    # GDCM's writer leaves the process in the locale C, where Python reads text as ASCII. Its reader does not.
    locale.setlocale(locale.LC_ALL, before)


def values_of(*masks: np.ndarray, seed: int = 0) -> np.ndarray:
    """HU of balls of tissue in noisy lung."""
    noise = np.random.default_rng(seed).normal(0, 20, masks[0].shape)
    return np.rint(np.where(np.any(masks, 0), 30, -850) + noise)


def rois(scan: Scan, mask: np.ndarray, hole: np.ndarray | None = None, uids: bool = True) -> str:
    """The outlines of a mask: on each slice the pixels just outside of it."""
    words = [_roi(scan, k, ring(plane), "TRUE", uids) for k, plane in enumerate(mask) if plane.any()]
    if hole is not None:
        words += [_roi(scan, k, ring(plane), "FALSE", uids) for k, plane in enumerate(hole) if plane.any()]
    return "".join(words)


def ring(plane: np.ndarray) -> np.ndarray:
    """The pixels x, y just outside of a convex mask, in order around it."""
    line = scipy.ndimage.binary_dilation(plane, CROSS) & ~plane
    y, x = np.nonzero(line)
    angle = np.arctan2(y - np.nonzero(plane)[0].mean(), x - np.nonzero(plane)[1].mean())
    return np.stack([x, y], 1)[np.argsort(angle)]


def point(scan: Scan, k: int, x: int, y: int) -> str:
    """The mark of a nodule below 3 mm."""
    return _roi(scan, k, np.array([[x, y]]), "TRUE", True)


def _roi(scan: Scan, k: int, points: np.ndarray, inclusion: str, uids: bool) -> str:
    z = scan.origin[2] + k * scan.spacing[2] * np.cross(scan.rows, scan.columns)[2]
    edges = "".join(f"<edgeMap><xCoord>{x}</xCoord><yCoord>{y}</yCoord></edgeMap>" for x, y in points)
    uid = f"<imageSOP_UID>{scan.uid(k)}</imageSOP_UID>" if uids else ""
    return f"<roi><imageZposition>{z:.4f} </imageZposition>{uid}<inclusion>{inclusion}</inclusion>{edges}</roi>"


def nodule(name: str, outlines: str, scores: Mapping[str, int] | None = None) -> str:
    """A reader's nodule."""
    words = "".join(f"<{key}>{value}</{key}>" for key, value in (scores or {}).items())
    characteristics = f"<characteristics>{words}</characteristics>" if words else ""
    return f"<unblindedReadNodule><noduleID>{name}</noduleID>{characteristics}{outlines}</unblindedReadNodule>"


def message(series: str, sessions: Sequence[Sequence[str]], namespace: str = "http://www.nih.gov") -> str:
    """A file of readings: the nodules of each reader."""
    parts = "".join(
        f"<readingSession><servicingRadiologistID>anon</servicingRadiologistID>{''.join(nodules)}"
        "<nonNodule><nonNoduleID>9</nonNoduleID></nonNodule></readingSession>"
        for nodules in sessions
    )
    space = f' xmlns="{namespace}"' if namespace else ""
    header = f"<ResponseHeader><Version>1.7</Version><SeriesInstanceUid>{series}</SeriesInstanceUid></ResponseHeader>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<LidcReadMessage uid="1"{space}>{header}{parts}</LidcReadMessage>\n'

"""Folders shaped like TCIA's LIDC-IDRI: DICOM series of balls in lung, and XML files with the outlines of readers."""

from typing import NamedTuple

import numpy as np
import pydicom
import scipy.ndimage
from pydicom.dataset import FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

SCORES = {
    "subtlety": 4,
    "internalStructure": 1,
    "calcification": 6,
    "sphericity": 4,
    "margin": 5,
    "texture": 5,
    "malignancy": 3,
}


class Scan(NamedTuple):
    """The geometry and names of a series."""

    series: str = "1.2.826.0.1.3680043.8.498.1"
    patient: str = "LIDC-IDRI-0001"
    shape: tuple[int, int, int] = (40, 96, 80)
    spacing: tuple[float, float, float] = (0.7, 0.6, 1.8)
    origin: tuple[float, float, float] = (-31.5, 40.25, -212.0)
    rows: tuple[float, float, float] = (1.0, 0.0, 0.0)
    columns: tuple[float, float, float] = (0.0, 1.0, 0.0)

    def axes(self):
        """Unit vectors of x, y, z, one in a row."""
        return np.array([self.rows, self.columns, np.cross(self.rows, self.columns)])

    def positions(self):
        """World x, y, z of all voxels, [z, y, x, 3]."""
        k, j, i = np.indices(self.shape)
        return np.array(self.origin) + (np.stack([i, j, k], -1) * self.spacing) @ self.axes()

    def ball(self, centre_mm, diameter_mm):
        """The voxels whose centres lie in a ball."""
        return np.linalg.norm(self.positions() - centre_mm, axis=-1) <= diameter_mm / 2


def write_series(folder, scan, values, slices=None, **tags):
    """Writes slices as DICOM files, in an order of names that is not that of their positions."""
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(scan.shape[0]) if slices is None else slices:
        origin = np.array(scan.origin) + k * scan.spacing[2] * scan.axes()[2]
        fields = {
            "SOPClassUID": CTImageStorage,
            "SOPInstanceUID": f"{scan.series}.{k + 1}",
            "SeriesInstanceUID": scan.series,
            "Modality": "CT",
            "PatientID": scan.patient,
            "ImagePositionPatient": [f"{mm:.6f}" for mm in origin],
            "ImageOrientationPatient": [*scan.rows, *scan.columns],
            "PixelSpacing": [scan.spacing[1], scan.spacing[0]],
            "Rows": scan.shape[1],
            "Columns": scan.shape[2],
            "BitsAllocated": 16,
            "BitsStored": 16,
            "HighBit": 15,
            "PixelRepresentation": 1,
            "SamplesPerPixel": 1,
            "PhotometricInterpretation": "MONOCHROME2",
            "RescaleIntercept": -1024,
            "RescaleSlope": 1,
        } | tags
        stored = (values[k] - fields["RescaleIntercept"]) // fields["RescaleSlope"]
        header = pydicom.Dataset()
        header.file_meta = FileMetaDataset()
        header.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        for name, value in fields.items():
            setattr(header, name, value)
        header.PixelData = stored.astype("<i2").tobytes()
        header.save_as(folder / f"{scan.series[-1]}-{k * 7 % 10}-{k}.dcm", enforce_file_format=True)


def values_of(*masks):
    """HU of balls of tissue in noisy lung."""
    noise = np.random.default_rng(0).normal(0, 20, masks[0].shape)
    return np.rint(np.where(np.any(masks, 0), 30, -850) + noise).astype(int)


def outlines(scan, mask, inclusion="TRUE", uids=True):
    """The outlines of a mask: on each slice the pixels just outside of it, in order around it."""
    words = ""
    for k, plane in enumerate(mask):
        line = scipy.ndimage.binary_dilation(plane, scipy.ndimage.generate_binary_structure(2, 1)) & ~plane
        y, x = np.nonzero(line)
        inside_y, inside_x = np.nonzero(plane)
        if len(y):
            order = np.argsort(np.arctan2(y - inside_y.mean(), x - inside_x.mean()))
            words += roi(scan, k, [(int(x[i]), int(y[i])) for i in order], inclusion, uids)
    return words


def roi(scan, k, points, inclusion="TRUE", uids=True):
    """A line on a slice; one point marks a nodule below 3 mm."""
    z = scan.origin[2] + k * scan.spacing[2] * scan.axes()[2, 2]
    edges = "".join(f"<edgeMap><xCoord>{x}</xCoord><yCoord>{y}</yCoord></edgeMap>" for x, y in points)
    uid = f"<imageSOP_UID>{scan.series}.{k + 1}</imageSOP_UID>" if uids else ""
    return f"<roi><imageZposition>{z:.4f} </imageZposition>{uid}<inclusion>{inclusion}</inclusion>{edges}</roi>"


def nodule(name, rois, **scores):
    """A reader's nodule."""
    words = "".join(f"<{key}>{value}</{key}>" for key, value in (SCORES | scores).items())
    words = f"<noduleID>{name}</noduleID><characteristics>{words}</characteristics>{rois}"
    return f"<unblindedReadNodule>{words}</unblindedReadNodule>"


def message(series, sessions, namespace="http://www.nih.gov"):
    """A file of readings, from the nodules of each reader."""
    parts = "".join(f"<readingSession>{nodules}<nonNodule/></readingSession>" for nodules in sessions)
    space = f' xmlns="{namespace}"' if namespace else ""
    header = f"<ResponseHeader><SeriesInstanceUid>{series}</SeriesInstanceUid></ResponseHeader>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<LidcReadMessage uid="1"{space}>{header}{parts}</LidcReadMessage>\n'

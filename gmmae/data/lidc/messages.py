"""The XML files in which LIDC-IDRI keeps the outlines of its readers.

A `LidcReadMessage` names a CT series, and has a `readingSession` for each reader. A session has an `unblindedReadNodule` for
each nodule: its outline on each slice as `roi`, and, if it is 3 mm or larger, its `characteristics`. A message on chest X-rays
names no CT series. Namespaces (`http://www.nih.gov`, `http://www.nih.gov/idri`, none) and capitals differ between files, and
are ignored.

Source: LIDC-IDRI, Armato et al. 2011, doi 10.1118/1.3528204.
"""

import math
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from gmmae.data.volumes import DataError

SCORES = (
    "subtlety",
    "internalStructure",
    "calcification",
    "sphericity",
    "margin",
    "lobulation",
    "spiculation",
    "texture",
    "malignancy",
)
"""The readers' scores: 1 to 5, calcification 1 to 6, internal structure 1 to 4."""


class Outline(NamedTuple):
    """A closed line on one slice, just outside the nodule or, where `inclusion` is false, just outside a hole in it."""

    uid: str  # SOPInstanceUID of the slice; empty where not given
    z_mm: float  # world z of the slice; NaN where not given
    inclusion: bool
    points: tuple[tuple[int, int], ...]  # pixels of the line, x and y from 0, in order


class ReadNodule(NamedTuple):
    """A nodule as one reader drew it. Those below 3 mm have outlines of a single point."""

    reader: int  # number of the session, from 0; readers have no other name
    name: str
    outlines: tuple[Outline, ...]
    scores: dict[str, int]  # by the names in `SCORES`; those that the reader left out are missing


class Message(NamedTuple):
    """The readings of one CT series."""

    series: str  # SeriesInstanceUID
    readers: int
    nodules: list[ReadNodule]  # of all readers
    faults: list[str]  # a line for each nodule that is unreadable


def read_message(path: Path) -> Message:
    """Reads an XML file.

    Raises:
      DataError: it is no XML, of another kind, or names no CT series.
      OSError: it cannot be read.
    """
    try:
        root = ElementTree.fromstring(path.read_bytes())
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise DataError(f"must be an XML file of LIDC-IDRI's readers; {error}") from error
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2].lower()
    series = root.findtext(".//seriesinstanceuid", "").strip()
    if not root.tag.endswith("readmessage") or not series:
        raise DataError("XML of another kind, or on chest X-rays: it is no LidcReadMessage with a SeriesInstanceUid")
    sessions = root.findall("readingsession")
    message = Message(series, len(sessions), [], [])
    for reader, session in enumerate(sessions):
        for element in session.findall("unblindedreadnodule"):
            name = element.findtext("noduleid", "").strip()
            try:
                outlines = tuple(map(_outline, element.findall("roi")))
            except ValueError as error:
                message.faults.append(f"nodule {name or 'without a name'} of reader {reader + 1}: {error}")
                continue
            given = {score: element.findtext(f"characteristics/{score.lower()}", "").strip() for score in SCORES}
            scores = {score: int(text) for score, text in given.items() if text in tuple("123456")}
            message.nodules.append(ReadNodule(reader, name, outlines, scores))
    return message


def _outline(roi: ElementTree.Element) -> Outline:
    """Reads an outline. Raises ValueError for what is no number, too."""
    uid, z_mm = (roi.findtext(tag, "").strip() for tag in ("imagesop_uid", "imagezposition"))
    if not uid and not z_mm:
        raise ValueError("an outline must name its slice, by imageZposition or imageSOP_UID")
    inclusion = roi.findtext("inclusion", "true").strip().lower()
    if inclusion not in ("true", "false"):
        raise ValueError(f"inclusion must be TRUE or FALSE; got {inclusion}")
    points = tuple((int(edge.findtext("xcoord", "")), int(edge.findtext("ycoord", ""))) for edge in roi.findall("edgemap"))
    if not points:
        raise ValueError("an outline must have points (edgeMap); it has none")
    return Outline(uid, float(z_mm) if z_mm else math.nan, inclusion == "true", points)

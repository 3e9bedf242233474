"""The XML files in which LIDC-IDRI keeps the outlines of its readers.

A `LidcReadMessage` names a CT series, and has a `readingSession` for each reader. A session has an `unblindedReadNodule` for
each nodule: its outline on each slice as `roi`, and, from 3 mm on, its `characteristics`. Namespaces and capitals differ
between files, and are ignored.
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
"""1 to 5, but calcification 1 to 6 and internal structure 1 to 4."""


class Outline(NamedTuple):
    """A closed line on one slice, just outside the nodule or, without `inclusion`, just outside a hole in it."""

    uid: str  # SOPInstanceUID of the slice, or empty
    z_mm: float  # world z of the slice, or NaN
    inclusion: bool
    points: tuple[tuple[int, int], ...]  # pixels x, y from 0, in order


class ReadNodule(NamedTuple):
    """A nodule as one reader drew it. Below 3 mm its outline is a single point."""

    reader: int  # number of the session
    name: str
    outlines: tuple[Outline, ...]
    scores: dict[str, int]  # those that the reader gave


class Message(NamedTuple):
    """The readings of one CT series."""

    series: str  # SeriesInstanceUID
    readers: int
    nodules: list[ReadNodule]  # of all readers
    faults: list[str]  # a line for each unreadable nodule


def read_message(path: Path) -> Message:
    """Reads an XML file.

    Raises:
      DataError: it is no XML, of another kind, or names no CT series.
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
                message.faults.append(f"nodule {name!r} of reader {reader + 1}: {error}")
                continue
            given = ((score, element.findtext(f"characteristics/{score.lower()}", "").strip()) for score in SCORES)
            scores = {score: int(text) for score, text in given if text in tuple("123456")}
            message.nodules.append(ReadNodule(reader, name, outlines, scores))
    return message


def _outline(roi: ElementTree.Element) -> Outline:
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

"""The XML files in which LIDC-IDRI keeps the outlines of its readers.

A `LidcReadMessage` names a CT series, and has a `readingSession` for each reader. A session has an `unblindedReadNodule` for
each nodule: its outline on each slice as `roi`, and, if it is 3 mm or larger, its `characteristics`. A message on chest X-rays
has `CXRreadingSession` instead. Namespaces differ between files (`http://www.nih.gov`, `http://www.nih.gov/idri`, none), and
are ignored.

Source: LIDC-IDRI, Armato et al. 2011, doi 10.1118/1.3528204.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Int

from gmmae.data.extraction.headers import as_number
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
    """A closed line on one slice, just outside the nodule or, where `inclusion` is false, just outside a hole in it.

    Attributes:
      uid: SOPInstanceUID of the slice; empty where not given.
      z_mm: world z of the slice.
      inclusion: whether the line is around the nodule.
      points: pixels of the line, x and y from 0, in order.
    """

    uid: str
    z_mm: float
    inclusion: bool
    points: Int[np.ndarray, "points 2"]


class ReadNodule(NamedTuple):
    """A nodule as one reader drew it.

    Attributes:
      reader: number of the session, from 0. Readers have no other name.
      name: of the nodule within the session.
      outlines: on the slices.
      scores: by the names in `SCORES`; those that the reader left out are missing.
    """

    reader: int
    name: str
    outlines: tuple[Outline, ...]
    scores: dict[str, int]

    @property
    def small(self) -> bool:
        """Whether it is one of the nodules below 3 mm, of which readers marked only a point."""
        return all(len(outline.points) == 1 for outline in self.outlines)


class Message(NamedTuple):
    """The readings of one CT series.

    Attributes:
      series: SeriesInstanceUID.
      readers: number of sessions.
      nodules: of all readers, those below 3 mm included.
      non_nodules: number of marks of other findings.
      faults: a line for each nodule that is unreadable.
    """

    series: str
    readers: int
    nodules: tuple[ReadNodule, ...]
    non_nodules: int
    faults: tuple[str, ...]


def read_message(path: Path) -> Message | str:
    """Reads an XML file. Returns its message on a CT series, or what else the file is, in words.

    Raises:
      DataError: it is no XML, or names no series.
      OSError: it cannot be read.
    """
    try:
        root = ElementTree.fromstring(path.read_bytes())
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise DataError(f"must be an XML file of LIDC-IDRI's readers; {error}") from error
    if not _tag(root).endswith("readmessage"):
        return "XML of another kind"
    sessions = _children(root, "readingsession")
    if not sessions and _children(root, "cxrreadingsession"):
        return "message on chest X-rays (CXR)"
    series = next((_text(item) for item in root.iter() if _tag(item) == "seriesinstanceuid"), "")
    if not series:
        raise DataError("must name its series; it has no SeriesInstanceUid")
    nodules: list[ReadNodule] = []
    faults: list[str] = []
    for number, session in enumerate(sessions):
        for element in _children(session, "unblindedreadnodule"):
            name = _child_text(element, "noduleid")
            try:
                nodules.append(_nodule(number, name, element))
            except DataError as error:
                faults.append(f"nodule {name or 'without a name'} of reader {number + 1}: {error}")
    others = sum(len(_children(session, "nonnodule")) for session in sessions)
    return Message(series, len(sessions), tuple(nodules), others, tuple(faults))


def same_readings(one: Message, other: Message) -> bool:
    """Returns whether two files say the same of a series."""
    return _key(one) == _key(other)


def _key(message: Message) -> tuple[object, ...]:
    nodules = [
        (item.reader, item.name, tuple(sorted(item.scores.items())), tuple(_outline_key(line) for line in item.outlines))
        for item in message.nodules
    ]
    return message.series, message.readers, message.faults, tuple(nodules)


def _outline_key(line: Outline) -> tuple[object, ...]:
    return line.uid, line.z_mm, line.inclusion, line.points.tobytes()


def _nodule(reader: int, name: str, element: ElementTree.Element) -> ReadNodule:
    outlines = tuple(map(_outline, _children(element, "roi")))
    if not outlines:
        raise DataError("must have an outline (roi); it has none")
    scores: dict[str, int] = {}
    for item in (child for part in _children(element, "characteristics") for child in part):
        known = next((score for score in SCORES if score.lower() == _tag(item)), None)
        value = as_number(_text(item))
        if known and value.is_integer() and 1 <= value <= 6:
            scores[known] = int(value)
    return ReadNodule(reader, name, outlines, scores)


def _outline(element: ElementTree.Element) -> Outline:
    z_mm = as_number(_child_text(element, "imagezposition"))
    uid = _child_text(element, "imagesop_uid")
    if not uid and not math.isfinite(z_mm):
        raise DataError("an outline must name its slice, by imageZposition or imageSOP_UID")
    inclusion = _child_text(element, "inclusion").lower() or "true"
    if inclusion not in ("true", "false"):
        raise DataError(f"inclusion must be TRUE or FALSE; got {inclusion}")
    points = [[as_number(_child_text(item, axis)) for axis in ("xcoord", "ycoord")] for item in _children(element, "edgemap")]
    if not points:
        raise DataError("an outline must have points (edgeMap); it has none")
    pixels = np.array(points)
    if not (np.isfinite(pixels) & (np.abs(pixels) < 2**15) & (pixels == np.rint(pixels))).all():
        raise DataError("xCoord and yCoord must be numbers of pixels")
    return Outline(uid, z_mm, inclusion == "true", pixels.astype(np.int64))


def _tag(element: ElementTree.Element) -> str:
    """Returns a tag in lower case and without its namespace. Files spell tags in several ways."""
    return element.tag.rpartition("}")[2].lower() if isinstance(element.tag, str) else ""


def _children(element: ElementTree.Element, tag: str) -> list[ElementTree.Element]:
    return [child for child in element if _tag(child) == tag]


def _child_text(element: ElementTree.Element, tag: str) -> str:
    return next((_text(child) for child in _children(element, tag)), "")


def _text(element: ElementTree.Element) -> str:
    return (element.text or "").strip()


def xml_files(root: Path) -> Iterator[Path]:
    """Yields the XML files in a folder and the folders in it, in order."""
    for path in sorted(root.rglob("*")):
        if path.suffix.lower() == ".xml" and not path.name.startswith(".") and path.is_file():
            yield path

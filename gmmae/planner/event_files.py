"""Scalars of TensorBoard's event files, read with the message types of tensorboardX, which writes them and reads none.

A file is a sequence of records: the length in 8 bytes, its checksum in 4, a serialised `Event`, and 4 bytes of checksum. The
package `tensorboard` has a reader, and needs grpc and a web server. So it is not required for a few scalars.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] made at run time
from tensorboardX.record_writer import masked_crc32c

from gmmae.system.errors import InputError

PATTERN = "*tfevents*"
"""The names of event files."""

HEADER = struct.Struct("<QI")
"""The length of a record and the checksum of the length's bytes."""

FOOTER_BYTES = 4

TENSOR_TYPES = {1: ("float_val", "<f4"), 2: ("double_val", "<f8")}
"""Field and type of NumPy of a tensor's numbers, by TensorFlow's number of the type. TensorFlow 2 writes scalars as tensors."""


def read_scalars(folder: Path, tags: tuple[str, ...]) -> dict[str, list[tuple[int, float]]]:
    """Returns the step and the value of each event by tag, for these tags only.

    The files are read in the order of their names, which begin with their time. Events of a later file replace those of earlier
    files from its first step on, as in TensorBoard after a run is resumed.

    Args:
      folder: folder with event files. Those in folders below it are not read.
      tags: names of the scalars.

    Raises:
      InputError: there is no event file, or one cannot be read, or a tag is missing. The message lists the tags.
    """
    files = sorted(path for path in folder.glob(PATTERN) if path.is_file())
    if not files:
        below = sorted({str(path.parent.relative_to(folder)) for path in folder.rglob(PATTERN)})
        there = f"; {', '.join(below)} below it has some" if below else ""
        raise InputError(f"a curve's folder must hold TensorBoard's event files ({PATTERN}); got {folder} without one{there}")
    known: set[str] = set()
    series: dict[str, list[tuple[int, float]]] = {tag: [] for tag in tags}
    for file in files:
        for tag, events in _file_scalars(file, known, tags).items():
            series[tag] = [event for event in series[tag] if event[0] < events[0][0]] + events
    for tag, events in series.items():
        if not events:
            there = ", ".join(sorted(known)) or "no scalar"
            raise InputError(f"{folder} must hold the scalar {tag!r}; it has {there}")
    return series


def _file_scalars(path: Path, known: set[str], tags: tuple[str, ...]) -> dict[str, list[tuple[int, float]]]:
    """Returns the events of one file by tag, and adds all its scalars' names to `known`."""
    series: dict[str, list[tuple[int, float]]] = {}
    try:
        for record in _records(path):
            event = Event.FromString(record)
            for value in event.summary.value:
                if (number := _number(value)) is not None:
                    known.add(value.tag)
                    if value.tag in tags:
                        series.setdefault(value.tag, []).append((int(event.step), number))
    except (OSError, ValueError, DecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path} must be a readable event file of TensorBoard; got {reason}") from error
    return series


def _records(path: Path) -> Iterator[bytes]:
    """Yields the whole records of a file. A part of one at the end is what a killed process has left."""
    with path.open("rb") as file:
        while len(header := file.read(HEADER.size)) == HEADER.size:
            length, checksum = HEADER.unpack(header)
            if masked_crc32c(header[:8]) != checksum:
                raise ValueError("a record with a wrong checksum")
            record = file.read(length + FOOTER_BYTES)
            if len(record) < length + FOOTER_BYTES:
                return
            yield record[:length]


def _number(value: Any) -> float | None:  # noqa: ANN401 a message whose class is made at run time
    """Returns the number of a value of a summary, or None if it is no scalar."""
    if value.WhichOneof("value") == "simple_value":
        return float(value.simple_value)
    if value.WhichOneof("value") != "tensor" or value.tensor.dtype not in TENSOR_TYPES:
        return None
    field, kind = TENSOR_TYPES[value.tensor.dtype]
    numbers = np.frombuffer(value.tensor.tensor_content, kind) if value.tensor.tensor_content else getattr(value.tensor, field)
    return float(numbers[0]) if len(numbers) == 1 else None

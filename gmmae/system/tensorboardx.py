"""What gmmae uses of tensorboardX, imported without PyTorch, which it would import where it can: two seconds of each start."""

import logging
import sys
from typing import Any

already = sys.modules.setdefault("torch", None)  # pyright: ignore[reportArgumentType] None lets its import fail
from tensorboardX import SummaryWriter, summary  # noqa: E402
from tensorboardX.event_file_writer import EventsWriter  # noqa: E402
from tensorboardX.proto import event_pb2  # noqa: E402
from tensorboardX.record_writer import masked_crc32c  # noqa: E402

if already is None:
    del sys.modules["torch"]

__all__ = ["Event", "EventsWriter", "SessionLog", "SummaryWriter", "masked_crc32c", "summary"]

logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)  # it would warn of each NaN, which here is a result

Event: Any = getattr(event_pb2, "Event")  # noqa: B009 – protobuf makes it at import
SessionLog: Any = getattr(event_pb2, "SessionLog")  # noqa: B009

"""What gmmae uses of tensorboardX, imported without PyTorch, which it would import where it can: two seconds of each start."""

import sys
from typing import Any

already = sys.modules.setdefault("torch", None)  # pyright: ignore[reportArgumentType] None lets its import fail
from tensorboardX import SummaryWriter  # noqa: E402
from tensorboardX.proto import event_pb2  # noqa: E402
from tensorboardX.record_writer import masked_crc32c  # noqa: E402
from tensorboardX.summary import hparams  # noqa: E402

if already is None:
    del sys.modules["torch"]

__all__ = ["Event", "SummaryWriter", "hparams", "masked_crc32c"]

Event: Any = event_pb2.Event  # pyright: ignore[reportAttributeAccessIssue] made at run time

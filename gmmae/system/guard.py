"""Runs a command so that an error that a user can fix becomes one line on standard error and an exit code."""

import os
from collections.abc import Callable

from gmmae.system.errors import InputError, StorageError, report, report_interrupt
from gmmae.system.streams import outlasting

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
"""What XLA's errors begin with where a device's memory is full."""


def memory_line(error: str) -> str:
    """What to do about a device's full memory, in a line."""
    found = " ".join(error[error.index(OUT_OF_MEMORY) :].split())
    return (
        f"the device's memory must hold data, model and a batch beside what other programs have there; got {found[:200]}: end "
        "the others (nvidia-smi lists them), or use more devices, a smaller --parallel.micro-batch-size or fewer samples"
    )


def guarded(command: Callable[..., int], *arguments: object) -> int:
    """Runs a command; an `InputError`, or an interrupt, becomes one line on standard error and its exit code."""
    try:
        with outlasting():
            return _ended(command, *arguments)
    except StorageError as error:
        code = report(error)
        os._exit(code)  # at its own end, TensorBoard's writer would try the failing disk again, and print how it fared


def _ended(command: Callable[..., int], *arguments: object) -> int:
    try:
        return command(*arguments)
    except StorageError:
        raise
    except InputError as error:
        return report(error)
    except MemoryError as error:
        rule = "memory must hold what is asked for"
        return report(InputError(f"{rule}; got {error or 'too little'}: ask for less, or use a machine with more"))
    except RuntimeError as error:
        if OUT_OF_MEMORY not in str(error):
            raise
        return report(InputError(memory_line(str(error))))
    except KeyboardInterrupt as error:
        return report_interrupt(error)

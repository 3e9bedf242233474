"""Runs a command so that an error that a user can fix becomes one line and an exit code."""

import atexit
import errno
import gc
import os
import sys
import traceback
from collections.abc import Callable

from gmmae.system.errors import InputError, StorageError, exit_code, report, write_error
from gmmae.system.streams import outlasting

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
"""How XLA's errors begin where a device's memory is full."""


START_OF_JAX = ("jax/_src/config.py", "jax/_src/xla_bridge.py")
"""Where JAX reads its variables and looks for devices."""


def guarded(command: Callable[..., int], *arguments: object) -> int:
    """Returns the exit code."""
    atexit.register(gc.freeze)  # no last collection: the system takes back the memory at once
    hook = sys.unraisablehook
    # What TensorStore still has to say of a checkpoint that failed comes late, and no line may stand beside that of the error.
    sys.unraisablehook = lambda unraisable: "Event loop is closed" in str(unraisable.exc_value) or hook(unraisable)
    try:
        with outlasting():
            try:
                return command(*arguments)
            except StorageError:
                raise
            except KeyboardInterrupt as error:
                write_error("; ".join(filter(None, ("interrupted", str(error)))) + "\n")
                return exit_code(error)
            except Exception as error:
                if (known := as_input_error(error)) is None:
                    raise
                return report(known)
    except StorageError as error:
        os._exit(report(error))  # at its own end, TensorBoard's file would try the failing disk again, and say so
    finally:
        sys.unraisablehook = hook


def as_input_error(error: BaseException) -> InputError | None:
    """An error that a user can fix as one of gmmae's; None for a fault of the program."""
    text = str(error)
    if isinstance(error, InputError):
        return error
    loop = isinstance(error, RuntimeError) and text.startswith("Symlink loop")  # of `Path.resolve`, before Python 3.13
    if loop or (isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG):
        given = text if loop else f"{getattr(error, 'filename', None)} (too long)"
        return InputError(f"a path must be of names that the file system takes; got {given}: name another")
    if isinstance(error, MemoryError):
        return InputError(
            f"memory must hold what is asked for; got {text or 'too little'}: ask for less, or use a machine with more"
        )
    of_jax = isinstance(error, AssertionError | RuntimeError | ValueError)
    if of_jax and traceback.extract_tb(error.__traceback__)[-1].filename.endswith(START_OF_JAX):
        given = ", ".join(f"{name}={value}" for name, value in os.environ.items() if name.startswith(("JAX_", "XLA_")))
        return InputError(
            f"JAX must start with the variables of the environment; got {text or 'no such device'} of {given or 'none'}: "
            "correct or unset them"
        )
    if not of_jax or OUT_OF_MEMORY not in text:
        return None
    fault = " ".join(text[text.index(OUT_OF_MEMORY) :].split())[:200]
    return InputError(
        f"the device's memory must hold data, model and a batch beside what other programs have there; got {fault}: end the "
        "others (nvidia-smi lists them), or use more devices, a smaller --parallel.micro-batch-size or fewer samples"
    )

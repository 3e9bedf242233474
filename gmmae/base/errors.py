"""The exceptions that a user is meant to see.

Every error that a user can cause and mend is raised as an `InputError`, or a subclass, whose message is a single line: what
must hold, what came, what to change. The command line prints that line and exits with the error's code; anything else is a bug
and keeps its traceback.
"""

import sys
from contextlib import suppress


class InputError(Exception):
    """Bad input: the message states the rule, what was received and the way out."""

    exit_code = 2


class StorageError(InputError):
    """The work directory failed in the middle of a run: a full disk, a folder that went away. No input was bad."""

    exit_code = 74  # EX_IOERR of sysexits.h


LOST_PEER = 75
"""The exit code of a process that ended because another one was lost: EX_TEMPFAIL of sysexits.h, try again."""


def report(error: InputError) -> int:
    """Prints an error as one line on standard error; returns the exit code."""
    with suppress(OSError):  # the terminal may be closed; the exit code says it too
        sys.stderr.write(f"error: {error}\n")  # in one piece: other threads may write there
        sys.stderr.flush()
    return error.exit_code

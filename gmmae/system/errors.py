"""The exceptions for users.

An error that a user can cause and fix is an `InputError`, a line with the rule, the input and the remedy. Any other error is a
bug and keeps its traceback.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn


class InputError(Exception):
    """Bad input."""

    exit_code = 2


class StorageError(InputError):
    """A full disk, or a folder that went away."""

    exit_code = 74  # EX_IOERR of sysexits.h


SIGINT_CODE = 130
"""128 and the signal's number."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP, with the state of the output in words."""

    def __init__(self, words: str = "", code: int = SIGINT_CODE) -> None:
        super().__init__(words)
        self.code = code


def raise_interrupted(number: int, _: object) -> NoReturn:
    """Handles a signal as Python handles Ctrl-C."""
    raise Interrupted(code=128 + number)


def exit_code(error: KeyboardInterrupt) -> int:
    """The exit code of an interrupted command."""
    return getattr(error, "code", SIGINT_CODE)


@contextmanager
def at_interrupt(words: str) -> Iterator[None]:
    """Within it, an interrupt has these words, unless it has its own."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(str(error) or words, exit_code(error)) from None


LOST_PEER = 75
"""The exit code of a run that has lost a process: EX_TEMPFAIL of sysexits.h, try again."""


def report(error: InputError) -> int:
    """Prints an error on standard error, and returns the exit code."""
    write_error(f"error: {printable(str(error))}\n")
    return error.exit_code


def printable(text: str) -> str:
    r"""A text with what no terminal shows, such as a file name's line end, written as Python does.

    >>> printable("a\nb/ü.csv"), printable("\u202etfel")
    ('a\\nb/ü.csv', '\\u202etfel')
    """
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def write_error(text: str) -> None:
    """Writes text to standard error, if anybody can read it."""
    with suppress(OSError, StorageError):  # the terminal may be closed
        sys.stderr.write(text)  # in one piece: other threads may write there
        sys.stderr.flush()

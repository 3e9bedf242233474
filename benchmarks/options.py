"""Parses the command lines of the benchmarks. Every error is one line."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from gmmae.system.errors import InputError, report


class Parser(argparse.ArgumentParser):
    """Parser whose errors are one line, as those of the command `gmmae`."""

    def __init__(self, doc: str | None, prog: str | None = None, *, allow_abbrev: bool = True):
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(prog, description=doc, formatter_class=formatter, allow_abbrev=allow_abbrev)

    def error(self, message: str) -> NoReturn:
        """Prints one line and exits with code 2."""
        sys.exit(report(InputError(message)))


def at_least(least: int) -> Callable[[str], int]:
    """Returns a reader of whole numbers that are not below another.

    >>> at_least(1)("0")
    Traceback (most recent call last):
        ...
    argparse.ArgumentTypeError: must be a whole number of at least 1; got '0'
    """

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}; got {text!r}")
        return int(text)

    return read


def new_file(text: str) -> Path:
    """Reads the path of a file to write, whose folder need not exist yet."""
    path = Path(text)
    if path.is_dir() or not is_folder_to_be(path.parent):
        raise argparse.ArgumentTypeError(f"must be a file in a folder; got {text!r}")
    return path


def new_folder(text: str) -> Path:
    """Reads the path of a folder to write into, which need not exist yet."""
    if not is_folder_to_be(Path(text)):
        raise argparse.ArgumentTypeError(f"must be a folder; got {text!r}")
    return Path(text)


def is_folder_to_be(path: Path) -> bool:
    """Returns whether a path is a folder, or nothing stands in the way of making one."""
    return next(parent for parent in (path, *path.absolute().parents) if parent.exists()).is_dir()


def guarded(main: Callable[[], None]) -> None:
    """Runs a benchmark's `main`; an `InputError` becomes one line on standard error and its exit code."""
    try:
        main()
    except InputError as error:
        sys.exit(report(error))

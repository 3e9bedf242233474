"""Standard input, output and error that are closed, or without a reader."""

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, TextIO, cast

from gmmae.system.errors import StorageError


class Outlasting:
    """A text stream that is silent once its terminal was closed, or the reader of its pipe ended.

    A run must not die of that before the checkpoint that SIGHUP asks for; a full disk is another matter.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes text, or nothing without a reader."""
        self._silent_once_gone(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Flushes, if there is a reader."""
        self._silent_once_gone(self._stream.flush)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._stream, name)

    def _silent_once_gone(self, call: Callable[..., object], *arguments: str) -> None:
        try:
            call(*arguments)
        except OSError as error:
            with suppress(io.UnsupportedOperation):
                silence(self._stream.fileno())
            if error.errno not in (errno.EIO, errno.EPIPE):
                name = getattr(self._stream, "name", "the output")
                raise StorageError(
                    f"{name} must stay writable; writing it failed ({error.strerror or error}): make room or send it "
                    "elsewhere, and give the same command again"
                ) from error


def silence(descriptor: int) -> None:
    """Discards what is written to a descriptor, also what Python still holds for it when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


@contextmanager
def outlasting() -> Iterator[None]:
    """Within it, standard output and error may lose their readers (`| head`).

    Opens those of the three streams that are closed (`>&-`): otherwise the next opened file would be one of them.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    output, error = (cast(TextIO, Outlasting(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(output), redirect_stderr(error):
        try:
            yield
        finally:
            output.flush()

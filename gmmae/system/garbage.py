"""Garbage collection of a program that imports much and ends soon: it passes over all modules dozens of times."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection_of_imports() -> Iterator[None]:
    """No later collection passes over modules imported within it. This saves a run of a second a quarter of a second."""
    before = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > before:
            gc.freeze()
        gc.enable()

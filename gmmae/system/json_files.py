"""JSON files that one command writes and another reads, refused in a line that names the file."""

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from gmmae.system.annotations import MISFITS, fitted, words_of
from gmmae.system.errors import InputError

T = TypeVar("T")

MAX_FAULT_LENGTH = 200
"""Characters of a fault in a message."""


def read(path: Path, what: str, change: str, convert: Callable[[dict[str, Any]], T]) -> T:
    """Converts the object of a JSON file.

    `what` is the rule in words that follow "must", `change` the advice. A ValueError, TypeError or KeyError of `convert`
    refuses the file, and FileNotFoundError passes.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise TypeError(f"a JSON value that is no object, {data!r}")
        return convert(data)
    except (FileNotFoundError, NotADirectoryError) as error:  # a file, such as an exported model, is no folder
        raise FileNotFoundError(*error.args, str(path)) from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        fault = f"no {error}" if isinstance(error, KeyError) else getattr(error, "strerror", None) or str(error)
        fault = "JSON that is nested too deep" if isinstance(error, RecursionError) else " ".join(fault.split())
        fault = fault if len(fault) <= MAX_FAULT_LENGTH else f"{fault[: MAX_FAULT_LENGTH - 1]}…"
        raise InputError(f"{path} must {what}; got {fault}: {change}") from error


def checked(kind: type[T], values: Mapping[str, Any], any_number: Collection[str] = ()) -> T:
    """A dataclass or named tuple of values by field, checked by the annotations; `any_number` may be NaN or infinite."""
    hints, new = get_type_hints(kind, include_extras=True), {}
    for name, value in values.items():
        try:
            new[name] = fitted(value, hints.get(name, Any), name not in any_number)
        except MISFITS as error:
            raise ValueError(f"{name} = {value!r}, which is not {words_of(hints[name])}") from error
    return kind(**new)

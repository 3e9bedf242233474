"""JSON files that a command has written and another reads: checked as a whole, and refused in a line that names the file."""

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from gmmae.system.annotations import MISFITS, fitted, words_of
from gmmae.system.errors import InputError

T = TypeVar("T")

MAX_FAULT_LENGTH = 200
"""Characters of what is said of a fault."""


def read(path: Path, what: str, change: str, convert: Callable[[dict[str, Any]], T]) -> T:
    """Reads the object of a JSON file and converts it.

    Args:
      path: the file.
      what: the rule for the file, in words that follow "must".
      change: the advice where it does not hold.
      convert: its ValueError, TypeError or KeyError refuses the file.

    Raises:
      FileNotFoundError: there is no file.
      InputError: it cannot be read, is no JSON, or nothing can be made of it.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise TypeError(f"a JSON value that is no object, {data!r}")
        return convert(data)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} must {what}; got {_fault(error)}: {change}") from error


def _fault(error: Exception) -> str:
    r"""Returns an error in a few words.

    >>> _fault(KeyError("scaling")), _fault(ValueError("a line\nand another")), _fault(RecursionError())
    ("no 'scaling'", 'a line and another', 'JSON that is nested too deep')
    """
    if isinstance(error, RecursionError):
        return "JSON that is nested too deep"
    text = f"no {error}" if isinstance(error, KeyError) else getattr(error, "strerror", None) or str(error)
    text = " ".join(text.split())
    return text if len(text) <= MAX_FAULT_LENGTH else f"{text[: MAX_FAULT_LENGTH - 1]}…"


def checked(kind: type[T], values: Mapping[str, Any], any_number: Collection[str] = ()) -> T:
    """Returns a dataclass or a named tuple of values by field, checked by the types of its fields. A number of float is finite.

    Args:
      kind: its fields are annotated as `fitted` knows.
      values: by field.
      any_number: fields whose numbers may be NaN or infinite.

    Raises:
      ValueError, TypeError: a field is missing or not known, or a value has another type.
    """
    hints, new = get_type_hints(kind, include_extras=True), {}
    for name, value in values.items():
        try:
            new[name] = fitted(value, hints.get(name, Any), name not in any_number)
        except MISFITS as error:
            raise ValueError(f"{name} = {value!r}, which is not {words_of(hints[name])}") from error
    return kind(**new)

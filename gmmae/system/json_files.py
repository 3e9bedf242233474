"""JSON files that a command has written and another reads: checked as a whole, and refused in a line that names the file."""

import inspect
import json
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

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
      convert: converts the object; its ValueError, TypeError or KeyError refuses the file.

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
    """Returns a dataclass or a named tuple of values, after a check of the types of its fields. A number of float is finite.

    Args:
      kind: its fields are annotated with plain types, and with lists, dictionaries and unions of them.
      values: by field.
      any_number: fields whose numbers may be NaN or infinite.

    Raises:
      ValueError, TypeError: a field is missing or not known, or a value has another type.
    """
    fields = inspect.signature(kind).parameters
    if missing := [name for name, field in fields.items() if field.default is field.empty and name not in values]:
        raise ValueError(f"no {', '.join(missing)}")
    if unknown := [name for name in values if name not in fields]:
        raise ValueError(f"the unknown {', '.join(unknown)}")
    hints = get_type_hints(kind)
    for name, value in values.items():
        if not _is(value, hints[name], name not in any_number):
            raise ValueError(f"{name} = {value!r}, which is no {_named(hints[name])}")
    return kind(**values)


def _is(value: object, hint: object, finite: bool) -> bool:  # noqa: PLR0911 a line for each kind of type
    """Returns whether a value has a type.

    >>> _is(1, float, True), _is(True, int, True), _is("1", int | None, True)
    (True, False, False)
    >>> _is({"a": [1.0]}, dict[str, list[float]], True)
    True
    >>> _is(math.nan, float, True), _is(math.nan, float, False)
    (False, True)
    """
    origin, of = get_origin(hint) or hint, get_args(hint)
    if origin is Any:
        return True
    if origin is UnionType:
        return any(_is(value, each, finite) for each in of)
    if origin is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and (math.isfinite(value) or not finite)
    if origin is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is list:
        return isinstance(value, list) and all(_is(each, of[0], finite) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(_is(each, of[1], finite) for each in value.values())
    return isinstance(value, cast(type, origin))


def _named(hint: object) -> str:
    """Returns a type's name.

    >>> _named(float), _named(int | None), _named(dict[str, float])
    ('float', 'int | None', 'dict[str, float]')
    """
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)

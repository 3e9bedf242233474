"""The one checker of values from TOML, JSON, the command line and Python, by their annotations.

These have plain types, `Literal`, lists, tuples, dictionaries and unions. `Annotated` adds rules.

>>> Share = Annotated[float, Rule("at least 0 and below 1", lambda value: 0 <= value < 1)]
>>> words_of(Share | Literal["auto"])
'a number, at least 0 and below 1, or auto'
>>> fitted(0, Share), fitted([1, "a"], tuple[int, str]), fitted("none", Share | None)
(0.0, (1, 'a'), None)
"""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path", NoneType: "none"}

MISFITS = (TypeError, ValueError, OverflowError)
"""What `fitted` raises."""


class Rule(NamedTuple):
    """Words that go on after "must be", and their test."""

    words: str
    holds: Callable[[Any], bool]


def words_of(kind: Any) -> str:  # noqa: ANN401
    """Words that go on after "must be".

    >>> words_of(Path | None), words_of(tuple[int, ...]), words_of(Literal["a", "b"])
    ('a path, or none', 'a list of values, each a whole number', 'one of a, b')
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return ", ".join([words_of(parts[0]), *(mark.words for mark in parts[1:] if isinstance(mark, Rule))])
    if origin in (Union, UnionType):
        return ", or ".join(map(words_of, parts))
    if origin is Literal:
        return "one of " * (len(parts) > 1) + ", ".join(map(str, parts))
    if origin in (tuple, list, dict):
        number = f"{len(parts)} " if origin is tuple and ... not in parts else ""
        each = " or ".join(dict.fromkeys(words_of(part) for part in parts[origin is dict :] if part is not ...))
        return f"{'a table' if origin is dict else 'a list'} of {number}values, each {each}"
    return NAMES.get(kind, getattr(kind, "__name__", "one of the values that it allows"))


def words_for(value: Any, kind: Any) -> str:  # noqa: ANN401
    """The same for a misfit: the rules alone where the type is right."""
    if get_origin(kind) is Annotated:
        plain, *marks = get_args(kind)
        with suppress(*MISFITS):
            fitted(value, plain)
            return ", ".join(mark.words for mark in marks if isinstance(mark, Rule))
    return words_of(kind)


def fitted(value: Any, kind: Any, finite: bool = True) -> Any:  # noqa: ANN401, C901
    """A value as its annotation has it: a list or an array as a tuple, text as a path, a whole number as a float.

    The text "none" is None where that is allowed, `True` is no number, and text has no NUL, which no path can have. Numbers
    must be `finite`.

    Raises:
      MISFITS: it does not fit, or breaks a rule.
    """
    value = value.tolist() if hasattr(value, "tolist") else value  # NumPy's and JAX's numbers and arrays
    origin, parts = get_origin(kind) or kind, get_args(kind)
    fit = partial(fitted, finite=finite)
    if origin is Annotated:
        value = fit(value, parts[0])
        fits = value is None or all(mark.holds(value) for mark in parts[1:] if isinstance(mark, Rule))
    elif origin in (Union, UnionType):
        for part in sorted(parts, key=lambda part: part is not NoneType):
            with suppress(*MISFITS):
                return fit(value, part)
        fits = False
    elif origin is Literal:
        fits = (type(value), value) in [(type(part), part) for part in parts]
    elif origin in (tuple, list):
        fits, kinds = isinstance(value, list | tuple), parts
        if origin is list or not parts or ... in parts:
            kinds = (parts or (Any,))[:1] * len(value)
        value = origin(fit(each, part) for each, part in zip(value, kinds, strict=True))
    elif origin is dict:
        fits, value = isinstance(value, dict), {key: fit(each, (parts or (Any, Any))[1]) for key, each in dict(value).items()}
    elif origin is NoneType:
        fits, value = value in (None, "none"), None
    elif origin in (str, Path):
        fits, value = isinstance(value, str | Path) and "\0" not in str(value) and (origin is str or value != ""), origin(value)
    elif origin is float:
        fits, value = isinstance(value, int | float) and not isinstance(value, bool), float(value)
        fits = fits and (math.isfinite(value) or not finite)
    else:
        fits = origin is Any or (isinstance(value, origin) and (origin is bool or not isinstance(value, bool)))
    if not fits:
        raise ValueError(kind)
    return value

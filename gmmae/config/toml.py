"""Configurations as TOML: a table is checked against the dataclasses that declare the keys, and written back."""

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin

from gmmae.config.rules import ConfigError, alternatives
from gmmae.config.schema import flatten, leaves, replaced
from gmmae.system.errors import InputError

T = TypeVar("T")

KINDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "none"}
"""The types of single values and their names in messages."""


def find(name: str, below: str = "") -> Path:
    """Returns the TOML file of that path, or of that name in the project's `configs` or in a folder below it.

    Raises:
      InputError: there is none.
    """
    package = Path(__file__).parents[1]
    folders = (package.parent / "configs" / below, package / "configs" / below)
    for path in (Path(name), *(folder / f"{name}.toml" for folder in folders)):
        if path.is_file():
            return path
    names = sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
    option = f"--{below}" if below else "--config"
    raise InputError(f"{option} must be a TOML file or one of {', '.join(names)}; got {name!r}")


def read_table(path: Path) -> dict[str, Any]:
    """Returns the table of a TOML file.

    Raises:
      InputError: the file cannot be read, or is not TOML.
    """
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text)
    except OSError as error:
        raise InputError(f"--config must be a readable file; got {path} ({error.strerror})") from error
    except ValueError as error:
        bare = re.search(r"^[^#\n]*=\s*(none|all|auto)\s*(#.*)?$", text, re.MULTILINE)
        hint = f'; put {bare[1]} in quotes: "{bare[1]}"' if bare else ""
        raise InputError(f"{path} must be TOML: {error}{hint}") from error


def flatten_table(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the keys of a nested table with their values, as `flatten` does for a configuration.

    >>> dict(flatten_table({"seed": 1, "data": {"size": 8}}))
    {'seed': 1, 'data.size': 8}
    """
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flatten_table(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def updated(default: T, values: Mapping[str, Any]) -> T:
    """Returns a configuration with some values changed.

    Args:
      default: any dataclass of values and dataclasses.
      values: new values by key, such as `stop.max_epochs`. A hyphen means an underscore.

    Raises:
      ConfigError: an unknown key, or a value of another type than the key's.

    >>> from gmmae.config.schema import Config
    >>> updated(Config(), {"stop.max-epochs": 5}).stop.max_epochs
    5
    """
    known = {key: item for key, item, _ in leaves(default)}
    checked: dict[str, Any] = {}
    for key, value in values.items():
        key = key.replace("-", "_")
        if key not in known:
            raise ConfigError(f"unknown key {key!r}{_suggestion(key, known)}")
        checked[key] = _converted(key, known[key].type, value)
    return replaced(default, checked)


def _converted(key: str, kind: Any, value: Any) -> Any:
    """Returns a value of TOML as one of a field's type."""
    options = _options(kind)
    if NoneType in options and value in (None, "none"):
        return None
    lengths = list(dict.fromkeys(_length(option) for option in options))
    if not any(_fits_length(length, value) for length in lengths):
        names = {None: "a single value", ...: "a list"}
        _refuse(key, " or ".join(names.get(length, f"a list of {length}") for length in lengths), value)
    if any("\0" in str(each) for each in (value if isinstance(value, list | tuple) else [value])):
        _refuse(key, "without a NUL character, which no path can have", value)
    for option in options:
        if _is_of(option, value):
            return _as(option, value)
    _refuse(key, type_text(kind), value)


def type_text(kind: Any) -> str:
    """Returns the types that an annotation allows, in words.

    >>> type_text(float | None)
    'a number or none'
    """
    return " or ".join(dict.fromkeys(_name(option) for option in _options(kind)))


def _refuse(key: str, rule: str, value: Any) -> NoReturn:
    raise ConfigError(f"{key} must be {rule}; got {value!r}")


def _options(kind: Any) -> list[Any]:
    """Returns the types that a field's annotation allows."""
    return [option for option, _ in alternatives(kind)]


def _length(option: Any) -> Any:
    """Returns how many values a type takes: None for a single one, `...` for a list of any length."""
    if get_origin(option) is not tuple:
        return None
    parts = get_args(option)
    return ... if ... in parts else len(parts)


def _fits_length(length: Any, value: Any) -> bool:
    if isinstance(value, list | tuple):
        return length is ... or length == len(value)
    return length is None


def _is_of(option: Any, value: Any) -> bool:
    """Returns whether a value has a type; a whole number is a number too."""
    if get_origin(option) is tuple:
        parts = [part for part in get_args(option) if part is not ...]
        kinds = parts * len(value) if isinstance(value, list | tuple) and len(parts) == 1 else parts
        return _fits_length(_length(option), value) and all(
            any(_is_of(inner, each) for inner in _options(part)) for part, each in zip(kinds, value, strict=True)
        )
    if get_origin(option) is Literal:
        return value in get_args(option)
    if option is Any:
        return not isinstance(value, list | tuple)
    if isinstance(value, bool):
        return option is bool
    if option in (Path, str):
        return isinstance(value, str | Path)
    return isinstance(value, int | float if option is float else option)


def _as(option: Any, value: Any) -> Any:
    if get_origin(option) is tuple:
        parts = get_args(option)
        kinds = [parts[0]] * len(value) if ... in parts else parts
        return tuple(
            _as(next(inner for inner in _options(part) if _is_of(inner, each)), each)
            for part, each in zip(kinds, value, strict=True)
        )
    return option(value) if option in (float, Path, str) else value


def _name(option: Any) -> str:
    if get_origin(option) is tuple:
        inner = dict.fromkeys(_name(each) for part in get_args(option) if part is not ... for each in _options(part))
        return f"a list of values that are each {' or '.join(inner)}"
    if get_origin(option) is Literal:
        return ", ".join(map(str, get_args(option)))
    return KINDS.get(option, "a path" if option is Path else "one of the values that it allows")


def _suggestion(key: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    section = key.rpartition(".")[0]
    siblings = [name for name in known if name.rpartition(".")[0] == section] or list(known)
    return f"; did you mean {near[0]!r}?" if near else f"; valid keys: {', '.join(siblings)}"


def differences(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Returns in words which keys of a saved configuration have other values; empty where none has.

    >>> differences({"seed": 0, "devices": [1, 2]}, {"seed": 3, "devices": (1, 2)})
    'seed was 0, now 3'
    """
    texts = [(key, _text(saved.get(key)), _text(value)) for key, value in wanted.items()]
    changes = [f"{key} was {old}, now {new}" for key, old, new in texts if old != new]
    more = f"; and {len(changes) - 3} more" if len(changes) > 3 else ""
    return "; ".join(changes[:3]) + more


def _text(value: object) -> str:
    """Returns a value as TOML spells it."""
    return json.dumps("none" if value is None else value, ensure_ascii=False)


def to_toml(config: Any) -> str:
    """Returns the whole configuration as TOML text; reading it back gives an equal configuration."""
    sections: dict[str, list[str]] = {"": []}
    for key, value in flatten(config):
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {_text(value)}")
    return "\n\n".join("\n".join([f"[{name}]"] * bool(name) + lines) for name, lines in sections.items()) + "\n"

"""Configurations as TOML: checked against the dataclasses that declare the keys, and written back."""

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gmmae.config.rules import ConfigError, checked_value
from gmmae.config.schema import flatten, leaves, replaced
from gmmae.system.errors import InputError

T = TypeVar("T")


def find(name: str | Path, below: str = "") -> Path:
    """The file of that path, or of that name in the project's `configs` or a folder below it."""
    package = Path(__file__).parents[1]
    folders = (package.parent / "configs" / below, package / "configs" / below)
    for path in (Path(name), *(folder / f"{name}.toml" for folder in folders)):
        if path.is_file():
            return path
    names = sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
    option = f"--{below}" if below else "--config"
    raise InputError(f"{option} must be a TOML file or one of {', '.join(names)}; got {str(name)!r}")


def read_table(path: Path) -> dict[str, Any]:
    """The table of a TOML file."""
    text = ""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return tomllib.loads(text)
    except OSError as error:
        raise InputError(f"{path} must be a readable file; got {error.strerror}: name another") from error
    except ValueError as error:
        bare = re.search(r"^[^#\n]*=\s*(none|all|auto)\s*(#.*)?$", text, re.MULTILINE)
        hint = f'; put {bare[1]} in quotes: "{bare[1]}"' if bare else ""
        raise InputError(f"{path} must be TOML: {error}{hint}") from error


def flatten_table(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of a nested table with their values, as `flatten` for a configuration."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flatten_table(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def updated(default: T, values: Mapping[str, Any]) -> T:
    """A configuration with values changed by key. A hyphen means an underscore."""
    known = {key: item for key, item, _ in leaves(default)}
    new: dict[str, Any] = {}
    for key, value in values.items():
        key = key.replace("-", "_")
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            section = key.rpartition(".")[0]
            siblings = [name for name in known if name.rpartition(".")[0] == section] or known
            hint = f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(siblings)}"
            raise ConfigError(f"unknown key {key!r}; {hint}")
        new[key] = checked_value(key, value, known[key].type)
    return replaced(default, new)


def differences(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Which keys of a saved configuration have other values, in words.

    >>> differences({"seed": 0, "devices": [1, 2]}, {"seed": 3, "devices": (1, 2)})
    'seed was 0, now 3'
    """
    texts = [(key, _text(saved.get(key)), _text(value)) for key, value in wanted.items()]
    changes = [f"{key} was {old}, now {new}" for key, old, new in texts if json.loads(old) != json.loads(new)]  # 3 is 3.0
    more = f"; and {len(changes) - 3} more" if len(changes) > 3 else ""
    return "; ".join(changes[:3]) + more


def _text(value: object) -> str:
    return json.dumps("none" if value is None else value, ensure_ascii=False)


def to_toml(config: Any) -> str:
    """A configuration as TOML; reading it back gives an equal one."""
    sections: dict[str, list[str]] = {"": []}
    for key, value in flatten(config):
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name if name.isascii() else _text(name)} = {_text(value)}")
    return "\n\n".join("\n".join([f"[{name}]"] * bool(name) + lines) for name, lines in sections.items()) + "\n"

"""Configurations from TOML files and command lines: command line over file over defaults.

The values of a file pass through the same parser as the command line's, so types, choices and errors are declared once.
"""

import contextlib
import difflib
import io
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from gmmae.config import Config, ConfigError, flatten
from gmmae.errors import InputError

T = TypeVar("T")

_TYRO = (tyro.conf.FlagConversionOff,)


@dataclass(frozen=True)
class TrainArguments:
    config: str = "quickstart"  # TOML file, or the name of one in configs/
    workdir: Path | None = None  # the run's folder; default: runs/ and the name of the TOML file
    run: Annotated[Config, tyro.conf.arg(name="")] = Config()


def parse_train(arguments: Sequence[str], prog: str) -> tuple[Config, Path]:
    """The configuration and the work directory of `train`.

    Raises:
      InputError: an unknown key or a bad value, on the command line or in the file.
      SystemExit: help was asked for, and has been printed.
    """
    path = config_path(_config_argument(arguments))
    defaults = TrainArguments(config=str(path), run=read_config(path))
    description = "Train a Gaussian-mixture autoencoder. The defaults shown are those of the TOML file."
    parsed = _parse(TrainArguments, defaults, arguments, prog, description)
    return parsed.run, parsed.workdir or Path("runs") / path.stem


def config_path(name: str) -> Path:
    """The TOML file of that path, or of that name in the project's `configs`.

    Raises:
      InputError: there is none.
    """
    package = Path(__file__).parent
    folders = (package.parent / "configs", package / "configs")
    for path in (Path(name), *(folder / f"{name}.toml" for folder in folders)):
        if path.is_file():
            return path
    names = sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
    raise InputError(f"--config must be a TOML file or one of {', '.join(names)}; got {name!r}")


def read_config(path: Path) -> Config:
    """The configuration in a TOML file; keys that it does not name have their defaults.

    Raises:
      InputError: not TOML, an unknown key or a bad value; the message names the file.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config must be a readable file; got {path} ({error.strerror})") from error
    except ValueError as error:
        raise InputError(f"{path} must be TOML: {error}") from error
    try:
        return _parse(Config, Config(), _as_arguments(table), prog=str(path))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _config_argument(arguments: Sequence[str]) -> str:
    """The value of `--config`, which decides on the defaults of all other arguments."""
    name = TrainArguments.config
    for i, argument in enumerate(arguments):
        if argument == "--config":
            if i + 1 == len(arguments):
                raise InputError("--config must be followed by a TOML file")
            name = arguments[i + 1]
        elif argument.startswith("--config="):
            name = argument.partition("=")[2]
    return name


def _as_arguments(table: dict[str, Any]) -> list[str]:
    known = dict(flatten(Config()))
    arguments: list[str] = []
    for key, value in _leaves(table):
        key = key.replace("-", "_")
        if key not in known:
            raise ConfigError(f"unknown key {key!r}{_suggest(key, known)}")
        many = isinstance(known[key], tuple)
        if many != isinstance(value, list):
            raise ConfigError(f"{key} must be {'a list' if many else 'a single value'}; got {value!r}")
        arguments += [f"--{key.replace('_', '-')}", *map(str, value if many else [value])]
    return arguments


def _leaves(table: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        pairs += _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return pairs


def _suggest(key: str, known: dict[str, Any]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    section = key.rpartition(".")[0]
    siblings = [name for name in known if name.rpartition(".")[0] == section] or list(known)
    return f"; did you mean {near[0]!r}?" if near else f"; valid keys: {', '.join(siblings)}"


def _parse(kind: type[T], default: T, arguments: Sequence[str], prog: str, description: str | None = None) -> T:
    """tyro's parser, its framed message turned into one line."""
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            return tyro.cli(kind, prog=prog, description=description, default=default, args=arguments, config=_TYRO)
    except SystemExit as error:
        if not error.code:
            raise
        raise InputError(_one_line(message.getvalue())) from None


def _one_line(framed: str) -> str:
    """The first paragraph of a message that tyro has drawn a frame around, and its suggestion if it makes one."""
    lines = [line.strip("│╭╮╰╯─ \t") for line in framed.splitlines()]
    body = lines[1:] if len(lines) > 1 else lines
    end = body.index("") if "" in body else len(body)
    text = " ".join(body[:end]).rstrip(".")
    if "Perhaps you meant:" in body:
        text += f"; did you mean {body[body.index('Perhaps you meant:') + 1].split()[0]}?"
    return text[:1].lower() + text[1:]

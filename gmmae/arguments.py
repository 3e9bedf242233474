"""Configurations from TOML files and command lines: command line over file over defaults.

The values of a file pass through the same parser as the command line's, so types, choices and errors are declared once.
"""

import contextlib
import difflib
import io
import itertools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from gmmae.config import Config, ConfigError, DataConfig, flatten, flatten_table
from gmmae.errors import InputError

T = TypeVar("T")

_TYRO = (tyro.conf.FlagConversionOff,)

FIXED_LENGTH = {"data.hu_window": 2}
"""Lists that have one length only."""


@dataclass(frozen=True)
class TrainArguments:
    config: str = "quickstart"  # TOML file, or the name of one in configs/
    workdir: Path | None = None  # the run's folder; default: runs/ and the name of the TOML file
    run: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


def parse_train(arguments: Sequence[str], prog: str) -> tuple[Config, Path]:
    """The configuration and the work directory of `train`.

    Raises:
      InputError: an unknown key or a bad value, on the command line or in the file.
      SystemExit: help was asked for, and has been printed.
    """
    path = config_path(_config_argument(arguments, TrainArguments.config) or "")
    defaults = TrainArguments(config=str(path), run=read_config(path))
    description = "Train a Gaussian-mixture autoencoder. The defaults shown are those of the TOML file."
    parsed = _parse(TrainArguments, defaults, arguments, prog, description)
    return parsed.run, parsed.workdir or Path("runs") / path.stem


@dataclass(frozen=True)
class PrepareArguments:
    config: str | None = None  # TOML file, or the name of one in configs/, whose data section is used
    out: Path | None = None  # folder for copies of summary.json and contact_sheet.png
    data: DataConfig = field(default_factory=DataConfig)


@dataclass(frozen=True)
class InspectArguments:
    which: Annotated[
        str, tyro.conf.Positional, tyro.conf.arg(metavar="NODULE")
    ]  # the nodule's name, a part that only it has, or its number from 0
    config: str | None = None  # TOML file, or the name of one in configs/, whose data section is used
    out: Path = Path("nodule.png")  # the picture to write
    data: DataConfig = field(default_factory=DataConfig)


@dataclass(frozen=True)
class SynthArguments:
    root: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]  # the folder to write; empty, or made
    scans: int = 10  # scans to write
    nodules: tuple[int, int] = (0, 3)  # the fewest and the most nodules in a scan
    seed: int = 0  # another seed, other scans
    slices: int = 120  # along z, 2.5 mm apart
    pixels: int = 256  # along x and y each; together they are 360 mm wide
    compressed: bool = False  # write .zraw rather than .raw


def parse_prepare(arguments: Sequence[str], prog: str) -> PrepareArguments:
    """The arguments of `data prepare`. Errors as `parse_train`."""
    defaults = PrepareArguments(data=_data_section(arguments))
    return _parse(PrepareArguments, defaults, arguments, prog, "Cut the nodules out of their scans, once, into the cache.")


def parse_inspect(arguments: Sequence[str], prog: str) -> InspectArguments:
    """The arguments of `data inspect`. Errors as `parse_train`."""
    defaults = InspectArguments(tyro.MISSING, data=_data_section(arguments))
    return _parse(InspectArguments, defaults, arguments, prog, "Show what is known of one nodule, and its central slices.")


def parse_synth(arguments: Sequence[str], prog: str) -> SynthArguments:
    """The arguments of `data synth`. Errors as `parse_train`."""
    defaults = SynthArguments(tyro.MISSING)
    return _parse(SynthArguments, defaults, arguments, prog, "Write a folder of synthetic scans in LUNA16's shape.")


def _data_section(arguments: Sequence[str]) -> DataConfig:
    name = _config_argument(arguments, default=None)
    return read_config(config_path(name)).data if name else DataConfig()


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


def _config_argument(arguments: Sequence[str], default: str | None) -> str | None:
    """The value of `--config`, which decides on the defaults of all other arguments."""
    name = default
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
    for key, value in flatten_table(table):
        key = key.replace("-", "_")
        if key not in known:
            raise ConfigError(f"unknown key {key!r}{_suggest(key, known)}")
        many = isinstance(known[key], tuple)
        pair = key in FIXED_LENGTH and isinstance(value, list) and len(value) != FIXED_LENGTH[key]
        if many != isinstance(value, list) or pair:
            rule = f"a list of {FIXED_LENGTH[key]}" if key in FIXED_LENGTH else "a list" if many else "a single value"
            raise ConfigError(f"{key} must be {rule}; got {value!r}")
        arguments += [f"--{key.replace('_', '-')}", *map(str, value if many else [value])]
    return arguments


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
    """The first paragraph of a message that tyro has drawn a frame around, and its suggestion if it makes one.

    Where standard error cannot show a frame, its rules are hyphens and its sides are missing.
    """
    lines = [line.strip("│ ") for line in framed.splitlines()]
    title, *rest = [line if line.strip("─╭╮╰╯-") else "" for line in lines]
    body = list(itertools.takewhile(bool, itertools.dropwhile(lambda line: not line, rest))) or [title]
    text = " ".join(body).rstrip(".")
    if "Perhaps you meant:" in rest:
        text += f"; did you mean {rest[rest.index('Perhaps you meant:') + 1].split()[0]}?"
    return text[:1].lower() + text[1:]

"""Configurations from TOML files and command lines: command line over file over defaults.

The values of a file pass through the same parser as the command line's, so types, choices and errors are declared once.
"""

import contextlib
import io
import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import tyro

from gmmae.base.config import Config, changed
from gmmae.base.errors import InputError
from gmmae.base.rules import INLINE, Options
from gmmae.base.workdir import WorkDir
from gmmae.commands import words
from gmmae.data.config import DataConfig
from gmmae.sweep.grid import SweepConfig
from gmmae.workloads import registry

T = TypeVar("T")

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NODULE")]

Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
"""An argument without a name."""

Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
"""The work directory of a run that the user trusts: it may name Python that is executed. It is an argument without a name."""

Files = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
"""One or more arguments without a name."""

Real = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="REAL")]
Generated = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="GENERATED")]

Scans = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SCANS")]
"""A folder shaped like LUNA16's, as an argument without a name."""

MISSING: Any = tyro.MISSING
"""The default of an argument that must be given."""


@dataclass(frozen=True)
class TrainArguments(Options):
    """Train a workload. The defaults shown are those of the TOML file.

    Exit code 0: finished, whether the target was reached or missed (record.json says which). 3: diverged or collapsed. 2: bad
    input. 1: a fault of the program. 143, 130, 129: interrupted, with a checkpoint. 74: the work directory failed. 75: another
    process was lost.
    """

    config: str = "quickstart"  # TOML file, or the name of one in configs/; with --workload alone: none
    workdir: Path | None = None  # the run's folder; default: runs/ and the name of the TOML file, or of the workload
    run: Annotated[Config, INLINE, tyro.conf.arg(name="")] = field(default_factory=Config)


def parse_train(arguments: Sequence[str], prog: str) -> tuple[Config, Path]:
    """The configuration and the work directory of `train`.

    Raises:
      InputError: an unknown key or a bad value, on the command line or in the file.
      SystemExit: help was asked for, and has been printed.
    """
    parsed, config, name = parse_with_config(TrainArguments, arguments, prog)
    return config, parsed.workdir or Path("runs") / name


Trained = TypeVar("Trained", bound=TrainArguments)


def parse_with_config(kind: type[Trained], arguments: Sequence[str], prog: str) -> tuple[Trained, Config, str]:
    """The arguments of a command like `train`, the configuration, and the name of its file or workload. Errors likewise."""
    workload = _option(arguments, "--workload", None)
    name = _option(arguments, "--config", None if workload else TrainArguments.config)
    path = None if name is None else config_path(name)
    run = _default({}, workload) if path is None else read_config(path, workload)
    parsed = parse(kind(config=str(path or ""), run=_typed(run)), arguments, prog)
    return parsed, _plain(parsed.run, run.workload), (path or Path(run.workload)).stem


def parse_on_run(kind: type[T], arguments: Sequence[str], prog: str) -> tuple[T, Config]:
    """The arguments of a command on a trained run, whose first one is the run's work directory.

    Args:
      kind: the command's own arguments, a dataclass with defaults throughout whose first field is a `Run`.

    Returns:
      Those arguments; and the run's configuration, with those settings of its workload changed that the command line gives.

    Raises:
      InputError: as `parse_train`, or the first argument is no run.
    """
    asks_help = arguments[:1] in ([], ["-h"], ["--help"])
    run = registry.configuration() if asks_help else _run_config(Path(arguments[0]))
    parts = [
        ("own", Annotated[kind, INLINE, tyro.conf.arg(name="")], field(default_factory=kind)),
        ("settings", Annotated[type(run.settings), INLINE, tyro.conf.arg(name="")], field(default=run.settings)),
    ]
    both: Any = make_dataclass(kind.__name__, parts, frozen=True)
    both.__doc__ = kind.__doc__
    parsed = parse(both(), arguments, prog)
    return parsed.own, replace(run, settings=parsed.settings)


def without_own_csv(config: Config, own: Config) -> Config:
    """For nodules of another folder than the run's: a CSV of the run's that lies at a place of its own does not list them.

    Args:
      config: what is asked for.
      own: the run's own configuration.
    """
    asked, csv = (_of_data(of, "csv") for of in (config, own))
    return changed(config, data__csv="") if asked == csv and Path(csv).is_absolute() else config


def on_its_data(config: Config, own: Config) -> Config:
    """A run's configuration with changes, the run's own CSV left out where they name another folder of data.

    Args:
      config: what is asked for.
      own: the run's own configuration.
    """
    return config if _of_data(config, "root") == _of_data(own, "root") else without_own_csv(config, own)


def _of_data(config: Config, name: str) -> str:
    return getattr(getattr(config.settings, "data", None), name, "")


def _run_config(root: Path) -> Config:
    path = WorkDir(root).config
    if not path.is_file():
        raise InputError(f"the first argument must be the work directory of a run; got {root}, which has no {path.name}")
    return read_config(path)


@dataclass(frozen=True)
class SweepArguments(Options):
    """Compare scaling strategies: arms × device counts × seeds, each cell in a process of its own, then a report.

    Exit code 0: every cell has a result, and a missed target is one. 4: a cell crashed or timed out. 2: bad input. 1: a fault
    of the program. 143, 130, 129: interrupted.
    """

    config: str = "sweep_quick"  # TOML file, or the name of one in configs/
    workdir: Path | None = None  # the sweep's folder; default: runs/ and the name of the TOML file
    dry_run: bool = False  # print the grid, with batches, learning rates and steps, and end
    retry: bool = False  # compute crashed and timed-out cells again
    sweep: Annotated[SweepConfig, INLINE, tyro.conf.arg(name="")] = field(default_factory=SweepConfig)


class SweepRequest(NamedTuple):
    """What `sweep` was asked for."""

    config: SweepConfig
    workdir: Path
    dry_run: bool
    retry: bool


def parse_sweep(arguments: Sequence[str], prog: str) -> SweepRequest:
    """The arguments of `sweep`. Errors as `parse_train`."""
    path = config_path(_option(arguments, "--config", SweepArguments.config) or "")
    sweep = read_sweep(path, _option(arguments, "--run.workload", None))
    defaults = SweepArguments(config=str(path), sweep=replace(sweep, run=_typed(sweep.run)))
    parsed = parse(defaults, arguments, prog)
    sweep = replace(parsed.sweep, run=_plain(parsed.sweep.run, sweep.run.workload))
    return SweepRequest(sweep, parsed.workdir or Path("runs") / path.stem, parsed.dry_run, parsed.retry)


@dataclass(frozen=True)
class ReportArguments(Options):
    """Write a sweep's tables, figures and verdict, finished or not."""

    root: Folder  # the work directory of a sweep that you trust: the Python that it names is executed
    clusters: tuple[str, ...] = ()  # TOML files, or names of those in configs/clusters, projected to; default: the sweep's
    plan: Path | None = None  # plan.json of `gmmae plan`, shown beside the outcome; default: that of the sweep's folder


def parse_report(arguments: Sequence[str], prog: str) -> ReportArguments:
    """The arguments of `report`. Errors as `parse_train`."""
    return parse(ReportArguments(MISSING), arguments, prog)


def data_section(arguments: Sequence[str], default: DataConfig = DataConfig()) -> DataConfig:  # noqa: B008
    """The section `data` of the file that `--config` names; the default without one.

    Raises:
      InputError: the file cannot be read, or has no such section.
    """
    name = _option(arguments, "--config", None)
    if not name:
        return default
    settings = read_config(config_path(name)).settings
    data = getattr(settings, "data", None)
    if not isinstance(data, DataConfig):
        raise InputError(f"--config must be of a workload whose data are volumes or images, such as nodules; got {name!r}")
    return data


def config_path(name: str, below: str = "") -> Path:
    """The TOML file of that path, or of that name in the project's `configs`, or in a folder below it.

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


def read_config(path: Path, workload: str | None = None) -> Config:
    """The configuration in a TOML file; keys that it does not name have their defaults.

    Args:
      path: the file.
      workload: instead of the file's.

    Raises:
      InputError: not TOML, an unknown key or a bad value; the message names the file.
    """
    table = _table(path)
    return _plain(_read(path, _typed(_default(table, workload)), table))


def read_sweep(path: Path, workload: str | None = None) -> SweepConfig:
    """The sweep in a TOML file; its `run` begins with the training configuration that its key `base` names.

    A workload of its own replaces that one's, and must have its settings.

    Raises:
      InputError: as `read_config`.
    """
    table = _table(path)
    base = table.pop("base", None)
    if base is not None and not isinstance(base, str):
        raise InputError(f"{path}: base must be a TOML file, or the name of one in configs/; got {base!r}")
    own = table.get("run", {})
    own = own if isinstance(own, dict) else {}
    try:
        run = _default(own, workload) if workload or "workload" in own or not base else None
        if base:
            run = read_config(config_path(base), run and run.workload)
    except InputError as error:
        raise InputError(f"{path}: base: {error}") from error
    assert run is not None
    read = _read(path, SweepConfig(run=_typed(run)), table)
    return replace(read, run=_plain(read.run))


def _default(table: dict[str, Any], workload: str | None) -> Config:
    """The defaults for a table, whose workload decides which keys there are."""
    named = table.get("workload", Config.workload)
    if not isinstance(named, str):
        raise InputError(f"workload must be a name, a file or a module; got {named!r}")
    name = workload or named
    absolute = os.path.realpath(name) if registry.is_file(name) else name  # a sweep's cells may begin in another folder
    table["workload"] = absolute
    return registry.configuration(absolute)


def _typed(config: Config) -> Config:
    """The same configuration, of a type that says what its settings are, so that they are arguments too."""
    kind: Any = type(config.settings)

    @dataclass(frozen=True)
    class Run(Config):
        settings: Annotated[kind, INLINE, tyro.conf.arg(name="")] = field(default_factory=kind)  # pyright: ignore[reportInvalidTypeForm]

    return Run(**{item.name: getattr(config, item.name) for item in fields(Config)})


def _plain(config: Config, workload: str = "") -> Config:
    values: dict[str, Any] = {item.name: getattr(config, item.name) for item in fields(Config)}
    values["workload"] = workload or config.workload
    return Config(**values)


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config must be a readable file; got {path} ({error.strerror})") from error
    except ValueError as error:
        raise InputError(f"{path} must be TOML: {error}") from error


def _read(path: Path, default: T, table: dict[str, Any]) -> T:
    try:
        return parse(default, words.of_table(table, default), prog=str(path))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _option(arguments: Sequence[str], option: str, default: str | None) -> str | None:
    """The value of an option that decides on the defaults of others."""
    value = default
    for i, argument in enumerate(arguments):
        if argument == option:
            if i + 1 == len(arguments):
                raise InputError(f"{option} must be followed by a value")
            value = arguments[i + 1]
        elif argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
    return value


def parse(default: T, arguments: Sequence[str], prog: str) -> T:
    """tyro's parser of a dataclass, whose docstring is the help's first line; its framed message becomes one line."""
    if wrong := next((word for word in arguments if "\0" in word), None):
        raise InputError(f"a value must have no NUL character, which no path can have; got {wrong!r}: remove it")
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            return tyro.cli(type(default), prog=prog, default=default, args=arguments)
    except SystemExit as error:
        if not error.code:
            raise
        raise InputError(words.switch_with_a_value(default, arguments) or words.one_line(message.getvalue())) from None

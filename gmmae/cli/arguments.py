"""Configurations from TOML files and command lines. The command line takes precedence over the file.

Types, choices and rules of an option are declared once, with its field.
"""

import contextlib
import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from gmmae.cli import words
from gmmae.config import toml
from gmmae.config.rules import INLINE, Section
from gmmae.config.schema import Config, absolute, leaves
from gmmae.data.settings import DataConfig
from gmmae.scaling.strategies import require_known
from gmmae.sweep.grid import SweepConfig, read_sweep
from gmmae.system.annotations import words_of
from gmmae.system.errors import InputError
from gmmae.training.workdir import WorkDir
from gmmae.workloads import configuration, registry

T = TypeVar("T")

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NODULE")]

Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
"""A positional argument."""

Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
"""The work directory of a trusted run, as a positional argument. It may name Python that is executed."""

Runs = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
"""Further runs, as positional arguments."""

Files = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
"""Positional arguments, one or more."""

Real = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="REAL")]
Generated = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="GENERATED")]

Scans = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SCANS")]
"""A folder shaped like LUNA16's, as a positional argument."""

MISSING: Any = tyro.MISSING
"""The default of a required argument."""

OPTION_TYPES = ConstructorRegistry()
"""Types of options beside tyro's own."""


@OPTION_TYPES.primitive_rule
def _none(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[None] | None:
    """Writes None as `none`, which tyro spells like Python."""
    if info.type is not type(None):
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="{none}",
        instance_from_str=lambda _: None,
        is_instance=lambda value: value is None,
        str_from_instance=lambda _: ["none"],
        choices=("none",),
    )


@dataclass(frozen=True)
class Options(Section):
    """The arguments of a command: as a section, but a field is called as on the command line.

    >>> from gmmae.config.rules import PositiveInt
    >>> @dataclass(frozen=True)
    ... class Drawing(Options):
    ...     count: PositiveInt = 10
    >>> Drawing(count=0)
    Traceback (most recent call last):
        ...
    gmmae.config.rules.ConfigError: --count must be a whole number, at least 1; got 0
    """

    @classmethod
    def key(cls, name: str) -> str:
        """Returns a field's option."""
        return words.option_of(name)

    def __post_init__(self) -> None:
        if MISSING not in vars(self).values():  # tyro says what is missing
            super().__post_init__()


@dataclass(frozen=True)
class TrainArguments(Options):
    """Train a workload. The defaults shown are those of the TOML file.

    Exit code 0: finished. The target was reached or missed, as in record.json. Exit code 3: diverged or collapsed. 2: bad
    input. 1: a fault of the program. 143, 130, 129: interrupted, with a checkpoint. 74: the work directory failed. 75:
    another process was lost.
    """

    config: str | None = "quickstart"  # TOML file, or the name of one in configs/; none: the defaults of --workload
    workdir: Path | None = None  # the run's folder; default: runs/ and the name of the TOML file, or of the workload
    run: Annotated[Config, INLINE, tyro.conf.arg(name="")] = field(default_factory=Config)


def parse_train(arguments: Sequence[str], prog: str) -> tuple[Config, Path]:
    """Returns the configuration and the work directory of `train`.

    Raises:
      InputError: an unknown key or a bad value, on the command line or in the file.
      SystemExit: after the help is printed.
    """
    parsed, config, name = parse_with_config(TrainArguments, arguments, prog)
    return config, parsed.workdir or Path("runs") / name


Trained = TypeVar("Trained", bound=TrainArguments)


def parse_with_config(kind: type[Trained], arguments: Sequence[str], prog: str) -> tuple[Trained, Config, str]:
    """Returns the arguments of a command like `train`, the configuration, and the name of its file or workload.

    Raises:
      InputError: as `parse_train`.
      SystemExit: as `parse_train`.
    """
    path, workload = _file_and_workload(arguments, "--workload", TrainArguments.config)
    run = configuration.default({}, workload) if path is None else configuration.read_config(path, workload)
    parsed = parse(kind(config=None if path is None else str(path), run=_typed(run)), arguments, prog)
    return parsed, _plain(parsed.run, run.workload), (path or Path(run.workload)).stem


def parse_on_run(kind: type[T], arguments: Sequence[str], prog: str) -> tuple[T, Config]:
    """Returns the arguments of a command on a trained run, and the run's configuration with changes from the command line.

    Args:
      kind: the command's own arguments: a dataclass with defaults throughout, whose first field is a `Run`.
      arguments: words of the command line. The first one is the run's work directory.
      prog: name of the command.

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
    config = replace(run, settings=parsed.settings)
    files = getattr(parsed.own, "files", ())  # they are read whatever the run's source is
    return parsed.own, config if files else configuration.require_source(config, own=run)


def _run_config(root: Path) -> Config:
    path = WorkDir(root).config
    if not path.is_file():
        raise InputError(f"the first argument must be the work directory of a run; got {root}, which has no {path.name}")
    return configuration.read_config(path)


@dataclass(frozen=True)
class SweepArguments(Options):
    """Compare scaling strategies: one run for each strategy, device count and seed, then a report.

    Workers compute one run after the other. A missed target is a result.
    Exit code 0: every run has a result. 4: a run crashed or timed out. 2: bad input. 1: a fault of the program. 143, 130, 129:
    interrupted. 74: the work directory failed.
    """

    config: str | None = "sweep_quick"  # TOML file, or the name of one in configs/; none: the defaults of --run.workload
    workdir: Path | None = None  # the sweep's folder; default: runs/ and the name of the TOML file, or of the workload
    dry_run: bool = False  # print batches, learning rates and steps of all runs, then exit
    retry: bool = False  # repeat crashed and timed-out runs
    verbose: bool = False  # show the epochs of the running runs too
    sweep: Annotated[SweepConfig, INLINE, tyro.conf.arg(name="")] = field(default_factory=SweepConfig)


class SweepRequest(NamedTuple):
    """The parsed arguments of `sweep`."""

    config: SweepConfig
    workdir: Path
    dry_run: bool
    retry: bool
    verbose: bool


def parse_sweep(arguments: Sequence[str], prog: str) -> SweepRequest:
    """Returns the arguments of `sweep`. Raises as `parse_train`."""
    path, workload = _file_and_workload(arguments, "--run.workload", SweepArguments.config)
    sweep = SweepConfig(run=configuration.default({}, workload)) if path is None else read_sweep(path, workload)
    defaults = SweepArguments(config=path and str(path), sweep=replace(sweep, run=_typed(sweep.run)))
    parsed = parse(defaults, arguments, prog)
    sweep = replace(parsed.sweep, run=absolute(_plain(parsed.sweep.run, sweep.run.workload)))
    workdir = parsed.workdir or Path("runs") / (path or Path(sweep.run.workload)).stem
    return SweepRequest(sweep, workdir, parsed.dry_run, parsed.retry, parsed.verbose)


def _file_and_workload(arguments: Sequence[str], option: str, default: str | None) -> tuple[Path | None, str | None]:
    """Returns the TOML file and the workload that the arguments name. A workload has no file by default."""
    workload = _option(arguments, option, None)
    name = _option(arguments, "--config", None if workload else default)
    return None if name in (None, "none") else toml.find(name), workload


def data_section(arguments: Sequence[str], default: DataConfig = DataConfig()) -> DataConfig:  # noqa: B008
    """Returns the section `data` of the file that `--config` names, or the default without one.

    Raises:
      InputError: the file cannot be read, or has no such section.
    """
    name = _option(arguments, "--config", None)
    if name in (None, "none"):
        return default
    return data_of(configuration.read_config(toml.find(name)), "--config", name)


def data_of(config: Config, option: str, value: str) -> DataConfig:
    """Returns the section `data` of a configuration, which an option with a value names.

    Raises:
      InputError: its data are not volumes or images.
    """
    data = getattr(config.settings, "data", None)
    if not isinstance(data, DataConfig):
        raise InputError(f"{option} must be of a workload whose data are volumes or images, such as nodules; got {value!r}")
    return data


def _typed(config: Config) -> Config:
    """Returns the configuration with a type that declares its settings, so that they are options too."""
    kind: Any = type(config.settings)

    @dataclass(frozen=True)
    class Run(Config):
        settings: Annotated[kind, INLINE, tyro.conf.arg(name="")] = field(default_factory=kind)  # pyright: ignore[reportInvalidTypeForm]

        def __post_init__(self) -> None:
            super().__post_init__()
            require_known(self)

    return Run(**{item.name: getattr(config, item.name) for item in fields(Config)})


def _plain(config: Config, workload: str = "") -> Config:
    values: dict[str, Any] = {item.name: getattr(config, item.name) for item in fields(Config)}
    values["workload"] = workload or config.workload
    return configuration.require_source(Config(**values))


def _option(arguments: Sequence[str], option: str, default: str | None) -> str | None:
    """Returns the value of an option that decides on the defaults of others."""
    value = default
    for i, argument in enumerate(arguments):
        if argument == option:
            if i + 1 == len(arguments):
                raise InputError(f"{option} must be followed by a value")
            value = arguments[i + 1]
        elif argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
    if value == "":
        raise InputError(f"{option} must not be empty; got '': leave it out")
    return value


def _require_paths(default: object, arguments: Sequence[str]) -> None:
    """Refuses an empty path, which would be the current folder."""
    paths = {words.option_of(key) for key, item, _ in leaves(default) if words_of(item.type).startswith("a path")}
    for before, word in itertools.pairwise(["", *arguments]):
        option, equals, value = word.partition("=")
        if (not word and (before in paths or not before.startswith("--"))) or (option in paths and equals and not value):
            raise InputError(f"{option or before or 'a path'} must not be empty; got '': leave it out")


def parse(default: T, arguments: Sequence[str], prog: str) -> T:
    """Parses the arguments of a dataclass with tyro, and turns its framed message into one line."""
    _require_paths(default, arguments)
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            return tyro.cli(type(default), prog=prog, default=default, args=arguments, registry=OPTION_TYPES)
    except SystemExit as error:
        if not error.code:
            raise
        line = words.one_line(message.getvalue())
        better = words.switch_with_a_value(default, arguments) or words.bad_value(default, arguments, line)
        raise InputError(better or line) from None

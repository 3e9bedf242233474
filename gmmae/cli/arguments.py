"""Configurations from TOML files and command lines, which take precedence over the file."""

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from tyro.conf import Positional, arg
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from gmmae.config import toml
from gmmae.config.rules import INLINE, Section
from gmmae.config.schema import Config, absolute
from gmmae.data.settings import DataConfig
from gmmae.scaling.strategies import require_known
from gmmae.sweep.grid import SweepConfig, read_sweep
from gmmae.system.compilation_cache import keep
from gmmae.system.environment import update_jax
from gmmae.system.errors import InputError
from gmmae.training.workdir import WorkDir
from gmmae.workloads import configuration, registry

T = TypeVar("T")

Folder = Annotated[Path, Positional, arg(metavar="FOLDER")]
Run = Annotated[Path, Positional, arg(metavar="RUN")]

MISSING: Any = tyro.MISSING
"""The default of a required argument."""

OPTION_TYPES = ConstructorRegistry()

ASKED: Any = object()
"""Marks a type that tyro itself is to read."""


@OPTION_TYPES.primitive_rule
def _none(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[None] | None:
    """Tyro spells None like Python."""
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


@OPTION_TYPES.primitive_rule
def _checked_later(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """The rules of a section refuse words that are no value of their type, in one line."""
    if info.type is bool or ASKED in info.markers:
        return None
    spec = ConstructorRegistry.get_primitive_spec(replace(info, markers=info.markers | {ASKED}))
    if not isinstance(spec, PrimitiveConstructorSpec):
        return None

    def value(words: list[str]) -> object:
        for these in (words, [word.capitalize() if word in ("true", "false") else word for word in words]):
            with suppress(ValueError):
                if "" not in words:  # which would be the current folder
                    return spec.instance_from_str(these)
        return words[0] if len(words) == 1 else words

    return replace(spec, instance_from_str=value, choices=None)


@dataclass(frozen=True)
class Options(Section):
    """The arguments of a command, a section whose fields are called as on the command line."""

    @classmethod
    def key(cls, name: str) -> str:
        """A field's option."""
        return f"--{name.replace('_', '-')}"

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
    run: Annotated[Config, INLINE, arg(name="")] = field(default_factory=Config)


def parse(default: T, arguments: Sequence[str], prog: str) -> T:
    """The arguments of a command."""
    return tyro.cli(type(default), prog=prog, default=default, args=arguments, registry=OPTION_TYPES)


def parse_train(arguments: Sequence[str], prog: str) -> tuple[Config, Path]:
    """Configuration and work directory of `train`."""
    parsed, config, name = parse_with_config(TrainArguments, arguments, prog)
    return config, parsed.workdir or Path("runs") / name


Trained = TypeVar("Trained", bound=TrainArguments)


def parse_with_config(kind: type[Trained], arguments: Sequence[str], prog: str) -> tuple[Trained, Config, str]:
    """Arguments of a command like `train`, configuration, and the name of its file or workload."""
    path, workload = _file_and_workload(arguments, "--workload", TrainArguments.config)
    run = configuration.default({}, workload) if path is None else configuration.read_config(path, workload)
    parsed = parse(kind(config=path and str(path), run=_typed(run)), arguments, prog)
    return parsed, _plain(parsed.run, run.workload), _name(path, run.workload)


def _name(path: Path | None, workload: str) -> str:
    return workload if path is None and not registry.is_file(workload) else (path or Path(workload)).stem


def parse_on_run(kind: type[T], arguments: Sequence[str], prog: str) -> tuple[T, Config]:
    """Arguments of a command on a trained run, and the run's configuration with changes from the command line.

    The first word is the run's work directory, and the first field of `kind` a `Run`.
    """
    if arguments[:1] in ([], ["-h"], ["--help"]):
        run = registry.configuration()
    elif (path := WorkDir(Path(arguments[0])).config).is_file():
        run = configuration.read_config(path)
    else:
        raise InputError(
            f"the first argument must be the work directory of a run; got {arguments[0]}, which has no {path.name}"
        )
    parts = [
        ("own", Annotated[kind, INLINE, arg(name="")], field(default_factory=kind)),
        ("settings", Annotated[type(run.settings), INLINE, arg(name="")], field(default=run.settings)),
    ]
    both: Any = make_dataclass(kind.__name__, parts, frozen=True)
    both.__doc__ = kind.__doc__
    parsed = parse(both(), arguments, prog)
    config = replace(run, settings=parsed.settings)
    keep(config.compilation_cache)
    update_jax()  # which a workload may have imported
    # Files are read whatever the run's source is.
    return parsed.own, config if getattr(parsed.own, "files", ()) else configuration.require_source(config, own=run)


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
    sweep: Annotated[SweepConfig, INLINE, arg(name="")] = field(default_factory=SweepConfig)


def parse_sweep(arguments: Sequence[str], prog: str) -> tuple[SweepConfig, Path, bool, bool, bool]:
    """Configuration, work directory and switches of `sweep`."""
    path, workload = _file_and_workload(arguments, "--run.workload", SweepArguments.config)
    sweep = SweepConfig(run=configuration.default({}, workload)) if path is None else read_sweep(path, workload)
    parsed = parse(SweepArguments(config=path and str(path), sweep=replace(sweep, run=_typed(sweep.run))), arguments, prog)
    sweep = replace(parsed.sweep, run=absolute(_plain(parsed.sweep.run, sweep.run.workload)))
    workdir = parsed.workdir or Path("runs") / _name(path, sweep.run.workload)
    return sweep, workdir, parsed.dry_run, parsed.retry, parsed.verbose


def data_section(arguments: Sequence[str], default: DataConfig) -> DataConfig:
    """The section `data` of the file of `--config`."""
    name = _given(arguments, "--config")
    if name in (None, "none"):
        return default
    return data_of(configuration.read_config(toml.find(name)), "--config", name)


def data_of(config: Config, option: str, value: str) -> DataConfig:
    """The section `data` of a configuration, which an option with a value names."""
    data = getattr(config.settings, "data", None)
    if not isinstance(data, DataConfig):
        raise InputError(f"{option} must be of a workload whose data are volumes or images, such as nodules; got {value!r}")
    return data


def _file_and_workload(arguments: Sequence[str], option: str, default: str | None) -> tuple[Path | None, str | None]:
    workload = _given(arguments, option)
    name = _given(arguments, "--config", None if workload else default)
    return None if name in (None, "none") else toml.find(name), workload


def _given(arguments: Sequence[str], option: str, default: str | None = None) -> str | None:
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--") else [word])]
    return dict(itertools.pairwise(words)).get(option, default)  # the last one counts


def _typed(config: Config) -> Config:
    """Declares the type of the settings, so that they are options too."""
    kind: Any = type(config.settings)

    @dataclass(frozen=True)  # not by `make_dataclass`, which would lose the comments that are the help
    class Run(Config):
        settings: Annotated[kind, INLINE, arg(name="")] = None  # pyright: ignore[reportInvalidTypeForm]

    return Run(**vars(config))


def _plain(config: Config, workload: str) -> Config:
    values: dict[str, Any] = vars(config) | {"workload": workload}
    return configuration.require_source(require_known(Config(**values)))

"""Workloads by name, and the checks of what they return."""

import ast
import dataclasses
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path
from types import ModuleType

from gmmae.config.schema import Config
from gmmae.scaling.strategies import STRATEGIES
from gmmae.workloads import settings
from gmmae.workloads.interface import Splits, Workload, WorkloadError

BUILT_IN = {"nodules": settings.NodulesConfig, "segmentation": settings.SegmentationConfig}
"""The settings of built-in workloads, read without their modules, which import JAX."""

BLANK = {"", "none", "nan"}
"""What a table without a name gives."""

SOURCE_HASH, OWN_FILES = "__gmmae_source_hash__", "__gmmae_own_files__"

OPTIONS = {
    *("config", "help", "workdir", "clusters", "devices", "scale_compute", "run", "runs", "folder", "files", "out", "split"),
    *("refine", "blocks", "seeds", "label_column", "label_at_most", "label_at_least"),
}
"""Options of commands that take a configuration too."""

OWNERS: dict[str, str] = {}
"""The files of the strategies that are not gmmae's."""


def is_file(name: str) -> bool:
    """Whether a workload is a file."""
    return name.endswith(".py") or os.sep in name


@cache
def load(name: str) -> ModuleType:
    """The module of a workload: a built-in name, a file (`path/to/mine.py`), or a module (`package.module`).

    Errors inside of a user's module keep their traceback.
    """
    before = dict(STRATEGIES)
    try:
        with _files_found("import", name):
            place = f"{__package__}.{name}" if name in BUILT_IN else name
            module = _from_file(Path(name)) if is_file(name) else _from_name(place)
        file = os.path.realpath(module.__file__ or name)
        for strategy, known in before.items():  # the next run of the other one would follow the rule of this one
            if STRATEGIES.get(strategy) is not known and (owner := OWNERS.get(strategy, "gmmae")) != file:
                raise WorkloadError(
                    f"a strategy of a workload must have a name of its own; got {strategy} in {name}, as in {owner}: rename it"
                )
    except BaseException:
        STRATEGIES.clear()
        STRATEGIES.update(before)
        raise
    OWNERS.update(dict.fromkeys(STRATEGIES.keys() - before.keys(), file))
    for attribute in ("Config", "build"):
        if not callable(getattr(module, attribute, None)):
            raise WorkloadError(f"workload must be a module with Config and build; got {name}, which has no {attribute}")
    if not (isinstance(module.Config, type) and dataclasses.is_dataclass(module.Config)):
        raise WorkloadError(f"workload must have a dataclass as its Config; got {module.Config!r} in {name}")
    taken = {*Config.__annotations__, *OPTIONS}
    fields = dataclasses.fields(module.Config)
    if wrong := [item.name for item in fields if item.name in taken or item.default is item.default_factory]:
        raise WorkloadError(
            f"Config of a workload must have fields of its own, each with a default; got {', '.join(wrong)} in {name}: rename "
            "what gmmae has itself, and give defaults"
        )
    return module


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise WorkloadError(f"workload file not found: {path}; give its place with --workload, or gmmae.load(…, workload=…)")
    path = path.resolve()
    name = f"gmmae_workload_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    sys.path.append(str(path.parent))  # for modules beside it
    files = _own_files(path)
    sources = [file.read_bytes() for file in files]
    module.__dict__.update({SOURCE_HASH: _digest(b"".join(sources)), OWN_FILES: files})
    exec(compile(sources[0], path, "exec"), module.__dict__)  # these bytes, and not those of a cached file of the same second
    return module


def _own_files(path: Path) -> list[Path]:
    """A file, and the modules and packages beside it that it imports, also by way of each other.

    Refuses an import that would give another module of this name, such as that of another project.
    """
    files, seen = [path], set[str]()
    for file in files:
        nodes = [*ast.walk(ast.parse(file.read_bytes(), file))]
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
        for name in sorted({name.partition(".")[0] for name in names} - seen):
            seen.add(name)
            folder, alone = path.with_name(name), path.with_name(f"{name}.py")
            own = next(filter(Path.is_file, (folder / "__init__.py", alone)), None)  # a package comes first
            if not own and not folder.is_dir():
                continue
            found = sys.modules.get(name) or importlib.util.find_spec(name)
            place = getattr(found, "__file__", None) or getattr(found, "origin", None) or "a module of Python"
            if own and Path(place).resolve() != own.resolve():
                raise WorkloadError(
                    f"a module beside a workload must have a name of its own; got {own}, but `import {name}` gives {place}:"
                    " rename it, or use the two in processes of their own"
                )
            folders = getattr(found, "__path__", None) or getattr(found, "submodule_search_locations", None) or ()
            inside = own or folder.resolve() in [Path(each).resolve() for each in folders]
            files += [alone] if own == alone else sorted(folder.rglob("*.py")) if inside else []
    return files


def _from_name(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if not name.startswith(error.name or "\0"):  # a package that one on the way imports
            raise
        spec = None
    except ValueError:
        spec = None
    if spec is None:
        raise WorkloadError(
            f"workload must be one of {', '.join(BUILT_IN)}, "
            f"a file (path/to/mine.py) or a module (package.module); got {name!r}"
        )
    return importlib.import_module(name)


@cache
def file_hash(name: str) -> str:
    """Of a workload's file as this process has imported it, if it is not gmmae's."""
    if name in BUILT_IN or not (module := load(name)).__file__:
        return ""
    if SOURCE_HASH in module.__dict__:
        return module.__dict__[SOURCE_HASH]
    file = Path(module.__file__)
    return _digest_of([file, *sorted(file.parent.rglob("*.py"))] if "." in name else _own_files(file))


def _digest_of(files: list[Path]) -> str:
    return _digest(b"".join(file.read_bytes() for file in files if file.is_file()))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def configuration(name: str = Config.workload, **values: object) -> Config:
    """A configuration of a workload, with these values or the defaults."""
    if is_file(name) and Path(name).is_file():
        own = load(name).__dict__[OWN_FILES]
        if file_hash(name) != _digest_of(own):  # as between trainings of a notebook
            load.cache_clear()
            file_hash.cache_clear()
            beside = {file.relative_to(own[0].parent).parts[0].removesuffix(".py") for file in own[1:]}
            for key in [key for key in sys.modules if key.partition(".")[0] in beside]:
                del sys.modules[key]
    settings_type = BUILT_IN.get(name) or load(name).Config
    return Config(**{"workload": name, "settings": settings_type(), **values})


def build(config: Config) -> Workload:
    """Builds the workload of a configuration. Its `load` checks the data against the interface."""
    module = load(config.workload)
    with _files_found("build", config.workload), _in_precision(config):
        workload = module.build(config.settings)
    if not isinstance(workload, Workload):
        raise WorkloadError(f"build of a workload must return a Workload; got {type(workload).__name__} from {config.workload}")
    return workload._replace(load=partial(_checked, workload.load, config))


def _in_precision(config: Config) -> AbstractContextManager[None]:
    import jax  # it must not start where only a configuration is read

    return jax.enable_x64(config.precision == "float64")


@contextmanager
def _files_found(function: str, name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        file = error.filename or error
        raise WorkloadError(
            f"{function} of a workload must find the files that it reads; got {file} in {name}, which is not there: "
            "correct the path, or start from the folder that it begins at"
        ) from error
    except SystemExit as error:
        raise WorkloadError(f"{function} of a workload must not exit; got {error!r} in {name}: raise another error") from error


def _checked(load_data: Callable[[], Splits], config: Config) -> Splits:
    name = config.workload
    with _files_found("load", name), _in_precision(config):
        data = load_data()
    from gmmae.workloads import sources  # JAX must not start where only a configuration is read

    if not isinstance(data, Splits):
        raise WorkloadError(f"load of a workload must return Splits; got {type(data).__name__} from {name}")
    for split in ("train", "validation", *["test"] * (data.test is not None)):
        try:
            checked = sources.checked(getattr(data, split), f"the {split} samples of {name}", config.int_bytes)
        except (TypeError, ValueError) as error:  # a typed key of JAX; a dictionary with keys of two types
            raise WorkloadError(f"the {split} samples of {name} must be a pytree of numbers or arrays; got {error}") from error
        data, samples = dataclasses.replace(data, **{split: checked}), sources.count(checked, f"the {split} samples of {name}")
        columns = {f"columns, {key!r},": {split: values} for key, values in (data.columns or {}).get(split, {}).items()}
        of_each = {"names": data.names, "groups": data.groups, "origins": data.origins, **columns}
        for words, of_samples in of_each.items():
            if not isinstance(of_samples, Mapping | None):
                raise WorkloadError(
                    f"{words} of a workload must be by split, {{'train': …}}; got {type(of_samples).__name__} in {name}"
                )
            if of_samples is not None and (given := len(of_samples.get(split, ()))) != samples:
                raise WorkloadError(
                    f"{words} of a workload must be as many as its samples; got {given} for {samples} {split} samples of {name}"
                )
        if data.groups and not BLANK.isdisjoint(str(group).strip().casefold() for group in data.groups[split]):
            raise WorkloadError(f"groups of a workload must have names; got a blank one among the {split} samples of {name}")
    return data

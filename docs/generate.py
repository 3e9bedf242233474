"""Makes the reference of the site from the code, as Markdown: configuration keys, commands, and written files."""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import tyro

from gmmae.cli import describe, evaluate, main, options
from gmmae.config.rules import FINGERPRINTED, INLINE, marked
from gmmae.config.schema import Config, leaves
from gmmae.generation import folder as generated_folder
from gmmae.generation.insertion.folder import InsertionRecord
from gmmae.generation.judging.novelty import Novelty
from gmmae.generation.judging.two_samples import Comparison
from gmmae.planner import prediction
from gmmae.scaling.cost import Cluster
from gmmae.scaling.identity import identity_fields
from gmmae.sweep.grid import SweepConfig
from gmmae.sweep.report import csv_files
from gmmae.sweep.step_times import Timing, Timings
from gmmae.system.annotations import words_of
from gmmae.training import records
from gmmae.workloads.registry import BUILT_IN, configuration

Row = tuple[str, ...]

PLAN_KEYS = {
    "config": "name of the configuration",
    "precision": "precision of the measured runs",
    "clusters": "the predictions by the name of the cluster",
    "rule": "the numbers that decide between dividing the batch and growing it",
    "target": "value of the metric to reach",
    "metric": "name of the metric",
    "curves": "loss curves of the measured runs",
    "measured": "the measurements, their cost, the versions and the commit",
}
"""The keys of `plan.json` with their meanings."""

CLUSTER_KEYS = {
    "answer": "the lines of the answer",
    "cells": "the prediction for every strategy and number of devices",
    "best": "the recommended one of them; null without step times",
    "best_batch": "batch of the strategy best-batch by number of devices",
    "best_batches": "best batches on 1, 2, 4, … devices, the values of `optim.best_batches`",
    "compute_scale": "seconds of computation on the cluster's device for one second measured",
    "scaled_by_user": "whether `--scale-compute` gave that factor",
    "times_of": "the device and the precision that the times are for",
}
"""The keys of one cluster in `plan.json` with their meanings."""

SPENT_KEYS = {
    "device_s": "device-seconds: n times the median seconds",
    "cost_USD": "their cost in the currency of the cluster's `price_per_device_hour`, if it has one",
    "energy_Wh": "their energy by the cluster's `watts_per_device`, if it has that",
}
"""Further keys of a prediction in `plan.json`."""

CURVES_KEYS = {
    "mode": "whether lower (min) or higher (max) values are better",
    "target_given": "whether `--target` gave the target",
    "cannot_say": "questions that the curves leave open",
}
"""Further keys of `plan_curves.json`, which has no `config`, `precision` and `curves`. Its `measured` has the curves."""


def table(columns: Iterable[str], rows: Iterable[Row]) -> str:
    r"""Returns a Markdown table. A bar in a cell is escaped.

    >>> print(table(("a", "b"), [("1", "x|y")]))
    | a | b |
    |---|---|
    | 1 | x\|y |
    """
    head, *lines = [" | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in row) for row in (tuple(columns), *rows)]
    return "\n".join([f"| {head} |", "|---" * (head.count(" | ") + 1) + "|", *(f"| {line} |" for line in lines)])


def comments(kind: type) -> dict[str, str]:
    """Returns the meaning of each field of a dataclass or a NamedTuple: the comment behind it or the lines above it.

    Fields without a comment have the text under "Attributes:" in the docstring, if there is one.
    """
    found = _attributes(inspect.getdoc(kind) or "")
    for parent in reversed([each for each in kind.__mro__ if _is_declared(each)]):
        found |= _source_comments(textwrap.dedent(inspect.getsource(parent)))
    return found


def _is_declared(kind: type) -> bool:
    """Returns whether a class stands in a module of the project, and was not made by a function."""
    return kind.__module__.startswith("gmmae.") and getattr(sys.modules[kind.__module__], kind.__name__, None) is kind


def _source_comments(source: str) -> dict[str, str]:
    texts = {
        token.start[0]: (token.string.lstrip("# "), not token.line[: token.start[1]].strip())
        for token in tokenize.generate_tokens(StringIO(source).readline)
        if token.type == tokenize.COMMENT and "noqa" not in token.string
    }
    [declared] = ast.parse(source).body
    assert isinstance(declared, ast.ClassDef)
    found = {}
    for node in declared.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above, line = [], node.lineno - 1
            while line in texts and texts[line][1]:
                above.insert(0, texts[line][0])
                line -= 1
            behind = texts.get(node.end_lineno or node.lineno, ("", False))[0]
            if text := behind or " ".join(above):
                found[node.target.id] = text
    return found


def _attributes(docstring: str) -> dict[str, str]:
    r"""Returns the meanings under "Attributes:".

    >>> _attributes("Head.\n\nAttributes:\n  a, b: one\n    line.\n  c: two.\n\nMore.")
    {'a': 'one line.', 'b': 'one line.', 'c': 'two.'}
    """
    section = docstring.partition("Attributes:\n")[2].partition("\n\n")[0]
    entries = re.split(r"\n(?=  \S)", section.rstrip()) if section else []
    found: dict[str, str] = {}
    for entry in entries:
        names, _, text = entry.strip().partition(": ")
        found |= dict.fromkeys((name.strip() for name in names.split(",")), " ".join(text.split()))
    return found


def value_text(value: object) -> str:
    """Returns a default as a file or a command line has it.

    >>> value_text(None), value_text(()), value_text((1, 2)), value_text(True)
    ('`none`', 'empty', '`1 2`', '`true`')
    """
    if value is tyro.MISSING:
        return "required"
    if isinstance(value, list | tuple):
        return f"`{' '.join(map(str, value))}`" if value else "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "`none`" if value is None else f"`{value}`" if str(value) else "empty"


class Key(NamedTuple):
    """A key of a configuration: its name in files, its default, and the field that declares it."""

    name: str
    default: object
    item: dataclasses.Field[Any]
    meaning: str


def keys(config: Any, prefix: str = "") -> Iterator[Key]:
    """Yields the keys of one section, without those of the sections inside it."""
    meanings = comments(type(config))
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if not dataclasses.is_dataclass(value) and not marked(item, INLINE):
            yield Key(prefix + item.name, value, item, meanings.get(item.name, ""))


def sections(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the sections of a configuration with their prefixes, the top first."""
    yield prefix, config
    for item in dataclasses.fields(config):
        if dataclasses.is_dataclass(value := getattr(config, item.name)) and not marked(item, INLINE):
            yield from sections(value, f"{prefix}{item.name}.")


def on_resume() -> dict[str, str]:
    """Returns for each key of a run whether it may change when the run is resumed, by the identity of runs."""
    answers = {}
    for name in BUILT_IN:
        weak, strong = _identity(name, "weak"), _identity(name, "strong")
        for key, item, _ in leaves(configuration(name)):
            answers[key] = "no" if key in strong else "with `strong`" if key in weak else "yes"
            if marked(item, FINGERPRINTED):
                answers[key] = "if the data are the same"
    return answers


def _identity(workload: str, scaling: str) -> dict[str, Any]:
    return identity_fields(dataclasses.replace(configuration(workload), scaling=scaling))


def _key_rows(config: Any, prefix: str, resume: Mapping[str, str] | None) -> Iterator[Row]:
    for key in keys(config, prefix):
        may_change = () if resume is None else (resume[key.name],)
        yield (f"`{key.name}`", key.meaning, value_text(key.default), words_of(key.item.type), *may_change)


def _section_text(config: Any, prefix: str, resume: Mapping[str, str] | None, level: str) -> str:
    columns = ("key", "meaning", "default", "values", *(() if resume is None else ("may change on resume",)))
    name = f"`{prefix.rstrip('.')}`" if prefix else "Top level"
    rows = list(_key_rows(config, prefix, resume))
    return f"{level} {name}\n\n{first_sentence(type(config))}\n\n{table(columns, rows)}\n" if rows else ""


def first_sentence(kind: type) -> str:
    """Returns the first paragraph of a docstring."""
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())


def run_keys() -> str:
    """Returns the keys of a run's configuration that every workload has."""
    resume = on_resume()
    return "\n".join(_section_text(section, prefix, resume, "###") for prefix, section in sections(Config()))


def workload_keys() -> str:
    """Returns the settings of the built-in workloads."""
    resume, parts = on_resume(), []
    for name in BUILT_IN:
        parts.append(f"### Workload `{name}`\n")
        parts += [_section_text(each, prefix, resume, "####") for prefix, each in sections(configuration(name).settings)]
    return "\n".join(parts)


def sweep_keys() -> str:
    """Returns the keys of a sweep. Its section `run` is the configuration of a run."""
    parts = [(prefix, each) for prefix, each in sections(SweepConfig()) if not prefix.startswith("run.")]
    return "\n".join(_section_text(each, prefix, None, "###") for prefix, each in parts)


class _Parsed(BaseException):
    """The default that a command gives to tyro."""

    def __init__(self, default: object) -> None:
        self.default = default


def arguments_of(command: str) -> Any:
    """Returns the default arguments of a command, as its parser has them."""

    def stop(*_: object, default: object, **__: object) -> None:
        raise _Parsed(default)

    with mock.patch.object(tyro, "cli", stop):
        try:
            options.PARSERS[command]([], f"gmmae {command}")
        except _Parsed as parsed:
            return parsed.default
    raise AssertionError(f"{command} has no options")


def _arguments(default: Any) -> tuple[list[Row], list[str]]:
    """Returns a row for each option of a command's own, and the keys of the configuration that it also has."""
    rows: list[Row] = []
    further: list[str] = []
    meanings = comments(type(default))
    for item in dataclasses.fields(default):
        value = getattr(default, item.name)
        if value is tyro.MISSING:
            rows.append(_row(item, value, meanings))
        elif isinstance(value, Config):
            further.append("every key of a run")
        elif isinstance(value, SweepConfig):
            further.append("every key of a sweep")
        elif item.name == "settings":
            further.append("the settings of the run's workload")
        elif dataclasses.is_dataclass(value) and not marked(item, INLINE):
            further.append(f"the keys `{item.name}.*`")
        elif dataclasses.is_dataclass(value):
            inner, more = _arguments(value)
            rows, further = rows + inner, further + more
        else:
            rows.append(_row(item, value, meanings))
    return rows, further


def _row(item: dataclasses.Field[Any], value: object, meanings: Mapping[str, str]) -> Row:
    default = Path(value).stem if item.name == "config" and isinstance(value, str) else value  # not where the file lies here
    return _option(item, value), meanings.get(item.name, ""), value_text(default), words_of(item.type)


def _option(item: dataclasses.Field[Any], value: object) -> str:
    metavars = [mark.metavar for mark in getattr(item.type, "__metadata__", ()) if getattr(mark, "metavar", None)]
    if metavars:
        return f"`{metavars[0]}`"
    return f"`--{'no-' if value is True else ''}{item.name.replace('_', '-')}`"


def commands() -> str:
    """Returns the options of every command."""
    parts = []
    for name in main.COMMANDS:
        parts.append(_command_text(f"gmmae {name}", arguments_of(name)))
        if name == "plan":
            parts.append(_command_text("gmmae plan --curves", arguments_of("plan_curves")))
    return "\n".join(parts)


def _command_text(line: str, default: Any) -> str:
    rows, further = _arguments(default)
    about = dataclasses.fields(default)[0].default_factory if dataclasses.fields(default)[0].name == "own" else type(default)
    assert callable(about)
    text = f"## `{line}`\n\n{first_sentence(about)}\n\n"  # pyright: ignore[reportArgumentType]
    text += table(("argument", "meaning", "default", "values"), rows) + "\n" if rows else ""
    if further:
        text += f"\nIt also has {' and '.join(dict.fromkeys(further))}: see [configuration keys](configuration.md).\n"
    return text


def exit_codes() -> str:
    """Returns the table of exit codes, from the docstring of the module that decides on them."""
    from gmmae.system import exit_codes as module

    lines = (module.__doc__ or "").splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))


class File(NamedTuple):
    """A file that a command writes. `columns` has the meaning of each column or key."""

    name: str
    written_by: str
    about: str
    columns: Mapping[str, str]
    kind: type | None = None  # the record type, for the types of the values


def _record(kind: type, without: Iterable[str] = ()) -> dict[str, str]:
    meanings, left_out = comments(kind), set(without)
    names = kind._fields if hasattr(kind, "_fields") else [item.name for item in dataclasses.fields(kind)]
    return {name: meanings.get(name, "") for name in names if name not in left_out}


def files() -> list[File]:
    """Returns the described files."""
    metric = {"val_NAME": "a metric of the workload after these steps, one column each"}
    of_plan = "Numbers that are not finite are null."
    return [
        File("record.json", "train", first_sentence(records.Record), _record(records.Record), records.Record),
        File(
            "history.csv", "train", first_sentence(records.Epoch), _record(records.Epoch, ["metrics"]) | metric, records.Epoch
        ),
        File("report/runs.csv", "sweep", "One row for each run and each failed process.", csv_files.RUNS_COLUMNS),
        File("step_times/*.json", "sweep", first_sentence(Timings), _record(Timings), Timings),
        File("an entry of train, validation", "sweep", first_sentence(Timing), _record(Timing), Timing),
        File("plan.json", "plan", of_plan, PLAN_KEYS),
        File("clusters.NAME", "plan", "The predictions for one cluster.", CLUSTER_KEYS),
        File(
            "an entry of cells",
            "plan",
            first_sentence(prediction.Prediction),
            _record(prediction.Prediction) | SPENT_KEYS,
            prediction.Prediction,
        ),
        File("rule", "plan", first_sentence(prediction.BatchRule), _record(prediction.BatchRule), prediction.BatchRule),
        File("plan_curves.json", "plan --curves", f"As plan.json, with these keys too. {of_plan}", CURVES_KEYS),
        File("evaluation*.csv", "evaluate", "One row for each sample.", evaluate.COLUMNS),
        File("mixtures.csv", "describe", "One row for each component of each volume.", describe.COMPONENT_COLUMNS),
        File("nodules.csv", "describe", "One row for each volume. The folder can be read as cubes.", describe.NODULE_COLUMNS),
        File("nodules.csv", "generate", "One row for each nodule.", generated_folder.COLUMNS),
        File("donors.csv", "generate", "One row for each training nodule that is a donor.", generated_folder.DONOR_COLUMNS),
        File("insertions.csv", "insert", first_sentence(InsertionRecord), _record(InsertionRecord), InsertionRecord),
        File(
            "generated, real_vs_real",
            "judge",
            "The parts of judgement.json. An estimate is a list of value, low and high.",
            _record(Comparison),
            Comparison,
        ),
        File("novelty", "judge", first_sentence(Novelty), _record(Novelty), Novelty),
    ]


def file_tables() -> str:
    """Returns the columns and keys of every file, by command."""
    parts, command = [], ""
    for file in files():
        if file.written_by != command:
            command = file.written_by
            parts.append(f"## `gmmae {command}`\n")
        rows = [(f"`{name}`", _field_type(file.kind, name), text) for name, text in file.columns.items()]
        parts.append(f"### `{file.name}`\n\n{file.about}\n\n{table(('name', 'type', 'meaning'), rows)}\n")
    return "\n".join(parts)


def _field_type(kind: type | None, name: str) -> str:
    annotation = {} if kind is None else inspect.get_annotations(kind)
    return f"`{inspect.formatannotation(annotation[name])}`" if name in annotation else ""


def cluster_keys() -> str:
    """Returns the keys of a cluster's TOML file."""
    rows = []
    meanings = comments(Cluster)
    for item in dataclasses.fields(Cluster):
        default = "required" if item.default is dataclasses.MISSING else value_text(item.default)
        rows.append((f"`{item.name}`", meanings[item.name], default, words_of(item.type)))
    return table(("key", "meaning", "default", "values"), rows)


PARTS: Mapping[str, Callable[[], str]] = {
    part.__name__: part for part in (run_keys, workload_keys, sweep_keys, commands, exit_codes, file_tables, cluster_keys)
}
"""The parts that pages name in the directive `generated`."""

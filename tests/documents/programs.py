"""The real parsers of all programs of the project: they parse, and nothing runs."""

import argparse
import contextlib
import importlib
import io
import os
import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import tyro

from docs import generate
from gmmae.cli import arguments, main
from gmmae.config import toml
from gmmae.config.schema import leaves
from gmmae.config.toml import to_toml
from gmmae.system.errors import InputError
from gmmae.workloads import configuration, registry
from tests.commands import as_words
from tests.documents.reading import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
PASSED_ON = {"BENCH": "benchmarks", "REPORT": "benchmarks.gpu_report"}
"""Variables of the Makefile that hold options of a program."""

OTHERS = {"head", "tensorboard", "unzip", "source", "ssh", "git", "pre-commit", "md5sum"}
"""Programs of others, which are not looked into."""

ON_A_RUN = {"evaluate", "describe", "classify", "predict", "export"}
"""Commands whose options are those of the run that they are given."""


class Parsed(BaseException):
    """The command line was found to be right: nothing may run after that."""


class Wrong(Exception):
    """A command line that its program refuses, and what it says."""


def listed(default: Any):
    """Returns the options of a dataclass of arguments."""
    return {
        as_words(key, value)[0]
        for key, _, given in leaves(default)
        for value in ((True, False) if isinstance(given, bool) else ("",))
    }


def _training():
    """Returns the options of `train` with each of our workloads."""
    return set().union(*(listed(arguments.TrainArguments(run=registry.configuration(name))) for name in registry.BUILT_IN))


def check(words: Sequence[str]):
    """Parses a command line of the documents, which is not run: what parses it raises `Parsed` where it is right.

    Raises:
      Wrong: it is refused, or nobody knows its program.
    """
    said, parse, parse_known = io.StringIO(), tyro.cli, argparse.ArgumentParser.parse_known_args

    def cli_parses(kind, *, prog, **more):
        found = parse(kind, prog=prog, **more)
        if prog.endswith(".toml"):
            return found
        raise Parsed

    def argparse_parses(self, args=None, namespace=None):
        self.allow_abbrev = False  # documents give whole names
        if rest := parse_known(self, args, namespace)[1]:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        raise Parsed

    def argparse_parses_known(self, args=None, namespace=None):
        arguments.parse_train(parse_known(self, args, namespace)[1], "train.py")  # whatever is left is meant for it
        raise Parsed

    try:
        with (
            mock.patch.object(tyro, "cli", cli_parses),
            mock.patch.multiple(argparse.ArgumentParser, parse_args=argparse_parses, parse_known_args=argparse_parses_known),
            mock.patch.dict(os.environ),
            contextlib.redirect_stderr(said),
            contextlib.redirect_stdout(said),
        ):
            _started(words)
    except Parsed:
        return
    except InputError as error:
        raise Wrong(str(error)) from error
    except SystemExit as error:
        if error.code:
            raise Wrong(said.getvalue().strip() or str(error)) from error


def modules():
    """Returns the names of the studies and benchmarks that have options."""
    files = [file for folder in ("experiments", "benchmarks") for file in sorted((ROOT / folder).glob("*.py"))]
    return [
        f"{file.parent.name}.{file.stem}".removesuffix(".__main__") for file in files if "add_argument(" in file.read_text()
    ]


def options(words: Sequence[str]):
    """Returns the options that a command has.

    Raises:
      Wrong: nobody knows the program.
    """
    match list(words):
        case ["python" | "python3", "-m", module, *_]:
            text = _file_of(module).read_text()
            return set(re.findall(r'"(--[\w-]+)"', text)) | (_training() if "parse_known_args" in text else set())
        case ["gmmae", *rest] if rest:
            pass
        case ["python" | "python3", "train.py" | "sweep.py" as file, *_]:
            rest = [file.removesuffix(".py")]
        case _:
            raise Wrong(f"{words[0]} has no options")
    name = next((name for name in main.COMMANDS if name.split() == rest[: len(name.split())]), "")
    if not name:
        raise Wrong(f"no command of that name: {' '.join(rest)}")
    if "--curves" in rest:
        return listed(generate.arguments_of("plan_curves"))
    own = listed(generate.arguments_of(name)) | {"--help", "-h"}
    return own | _training() if name in ("train", "sweep", "plan") else own


def named(words: Sequence[str]):
    """Checks the program or the command that is named, without options.

    Raises:
      Wrong: there is none of that name.
    """
    if words[1] == "-m":
        _file_of(words[2])
    elif words[0] == "gmmae" and words[1] not in {name.split()[0] for name in main.COMMANDS}:
        raise Wrong(f"no command of that name: {words[1]}")


def _started(words: Sequence[str]):
    """Starts a program, of which nothing but the parser is to run."""
    match list(words):
        case ["python" | "python3", "-c", text, *_]:
            compile(text, "-c", "exec")
        case ["python" | "python3", "-m", module, *rest]:
            _module(module, rest)
        case ["python" | "python3", "train.py" | "sweep.py" as file, *rest]:
            main.COMMANDS[file.removesuffix(".py")](rest, f"python {file}")
        case ["python" | "python3", file, *rest] if (ROOT / file).is_file():
            _module(file.removesuffix(".py").replace("/", "."), rest)
        case ["gmmae", *rest]:
            _gmmae(rest)
        case ["make", *rest]:
            _make(rest)
        case ["pip", *rest]:
            _pip(rest)
        case ["docker" | "apptainer" as name, verb, *rest]:
            _container(name, verb, rest)
        case ["sbatch", *rest]:
            file, command = ("sweep", "sweep") if "launch/sweep.sbatch" in rest else ("slurm", "train")
            _launched([word.replace("%a", "0") for word in rest], f"launch/{file}.sbatch", command)
        case ["launch/mpirun.sh" | "launch/hosts.sh" as file, *rest]:
            _exists(file)
            _launched(rest, "--")
        case [name, *_] if name in OTHERS:
            pass
        case _:
            raise Wrong(f"no program of that name: {' '.join(words)}")


def _module(name: str, words: Sequence[str]):
    file = _file_of(name)
    if "Parser(" not in file.read_text():
        if words:
            raise Wrong(f"{name} has no options; got {' '.join(words)}")
        return
    main: Callable[[], object] = importlib.import_module(f"{name}.__main__" if file.stem == "__main__" else name).main
    with mock.patch.object(sys, "argv", [name, *words]):
        main()


def _file_of(module: str):
    """Returns the program that `python -m` runs."""
    path = ROOT / module.replace(".", "/")
    for file in (path.with_suffix(".py"), path / "__main__.py"):
        if file.is_file():
            return file
    raise Wrong(f"no module {module}")


def _gmmae(words: Sequence[str]):
    if len(words) > 1 and words[0] in ON_A_RUN:
        as_a_run(Path(words[1]))
    main.dispatch(words)


def as_a_run(folder: Path):
    """Makes a run of the work directory that a command names, as far as parsing goes."""
    if not folder.is_absolute() and not (folder / "config.toml").exists():
        folder.mkdir(parents=True, exist_ok=True)
        config = configuration.read_config(toml.find("luna16_nodules"))
        (folder / "config.toml").write_text(to_toml(config))


def _make(words: Sequence[str]):
    for word in words:
        name, given, value = word.partition("=")
        if not given and word not in TARGETS:
            raise Wrong(f"no target {word} in the Makefile")
        if given and f"$({name})" not in MAKEFILE:
            raise Wrong(f"the Makefile has no variable {name}")
        if name in PASSED_ON:
            _module(PASSED_ON[name], value.split())


def _pip(words: Sequence[str]):
    for word in words:
        _extras(re.findall(r"^\.\[(.*)\]$", word))
        if word.endswith(".txt"):
            _exists(word)


def _container(name: str, verb: str, words: Sequence[str]):
    """Checks the recipe and the extra of an image. The words after an image's name are those of `gmmae`."""
    match name, verb:
        case "docker", "build":
            _exists("Dockerfile")
        case "apptainer", "build":
            _exists(words[-1])
        case _, "run":
            image = next((i for i, word in enumerate(words) if re.match(r"gmmae(:|\.sif|-\w+\.sif|$)", word)), None)
            if image is None:
                raise Wrong(f"no image of this project: {' '.join(words)}")
            return _gmmae(words[image + 1 :])
        case _:
            raise Wrong(f"no verb of {name} that is known here: {verb}")
    _extras(re.findall(r"(?:EXTRA=|package=\.\[)([\w-]+)", " ".join(words)))


def _extras(names: Sequence[str]):
    if unknown := set(names) - set(PROJECT["project"]["optional-dependencies"]):
        raise Wrong(f"pyproject.toml has no extra {unknown}")


def _launched(words: Sequence[str], after: str, command: str = "train"):
    """The words after one are options of `train.py`, or of another command."""
    if after not in words:
        raise Wrong(f"{after} is missing: {' '.join(words)}")
    if after != "--":
        _exists(after)
    main.COMMANDS[command](words[words.index(after) + 1 :], f"python {command}.py")


def _exists(file: str):
    if not (ROOT / file).is_file():
        raise Wrong(f"no file {file}")

"""The command `gmmae` and its subcommands."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from gmmae import __version__
from gmmae.system.errors import InputError, at_interrupt
from gmmae.system.garbage import no_collection_of_imports
from gmmae.system.guard import guarded

RESUMES = "the same command goes on where it was"
RESTARTS = "nothing was written; the same command begins again"


@dataclass(frozen=True)
class Command:
    """A subcommand, and the state of its output after an interrupt.

    The name's first word is its module below `gmmae.cli`, which is imported after the options are parsed, because it may import
    JAX; the second one the function, by default `command`.
    """

    name: str
    summary: str
    on_interrupt: str = RESTARTS

    def __call__(self, arguments: Sequence[str], prog: str) -> int:
        """Returns the exit code."""
        from_curves = self.name == "plan" and "--curves" in {word.partition("=")[0] for word in arguments}
        name = "plan_curves" if from_curves else self.name
        module, _, function = name.replace("-", "_").partition(" ")
        with at_interrupt(self.on_interrupt):
            with no_collection_of_imports():
                try:
                    options = import_module("gmmae.cli.options")  # the first module that needs a package
                except ModuleNotFoundError as error:
                    raise InputError(
                        f"Python must have the packages of gmmae; {sys.executable} lacks {error.name}: activate gmmae's "
                        "environment (in a clone `source .venv/bin/activate`, or first `make train`)"
                    ) from error
                parsed = options.PARSERS[name](arguments, prog)
                imported = import_module(f"gmmae.cli.{module}")
            return getattr(imported, function or "command")(*parsed) or 0


GROUPS = {
    "Train and compare": (
        Command("train", "train a workload on one or several devices", RESUMES),
        Command("sweep", "compare scaling strategies over device counts and seeds", RESUMES),
        Command(
            "report", "write the tables, figures and page of a sweep", "no file is half written; the same command begins again"
        ),
        Command("plan", "predict the fastest strategy, from runs or from loss curves", RESUMES),
        Command("measure-cluster", "time the links between devices for a plan"),
    ),
    "Use a trained model": (
        Command("evaluate", "compute loss and metrics for each sample"),
        Command("describe", "describe volumes as mixtures"),
        Command("classify", "classify volumes by what the model finds in them"),
        Command("predict", "classify other nodules by what classify fitted"),
        Command("export", "write the model to one file that JAX alone can load"),
        Command("generate", "make new nodules"),
        Command("insert", "put nodules into CT scans"),
        Command("judge", "compare generated nodules with real ones"),
    ),
    "Data": (
        Command("data prepare", "cut the nodules of a folder once, into a cache", RESUMES),
        Command("data inspect", "show one nodule of a folder"),
        Command("data lidc", "cut the nodules of LIDC-IDRI's DICOM files into cubes"),
        Command("data synth", "write synthetic CT scans shaped like LUNA16"),
    ),
}
COMMANDS = {command.name: command for commands in GROUPS.values() for command in commands}


def dispatch(arguments: Sequence[str]) -> int:
    """Runs the command that the first words name, or lists them all by group."""
    words = [word for word in arguments if word not in ("-h", "--help")]
    if words[:1] != list(arguments[:1]):  # help of a command whose name follows
        arguments = [*words, "--help"]
    for length in (1, 2):
        name = " ".join(arguments[:length])
        if name in COMMANDS:
            return COMMANDS[name](arguments[length:], f"gmmae {name}")
    if words not in ([], ["data"]):
        given = " ".join(words[: 1 + (words[0] == "data")])
        raise InputError(f"the command after 'gmmae' must be one of {', '.join(COMMANDS)}; got {given!r}")
    print("usage: gmmae COMMAND ...")
    for group, commands in GROUPS.items():
        print("", f"{group}:", *(f"  {command.name:<15}  {command.summary}" for command in commands), sep="\n")
    print("\n`gmmae COMMAND --help` lists a command's options.\n`gmmae --version` prints the version.")
    return 0


def main() -> int:
    """The installed command."""
    if sys.argv[1:] == ["--version"]:
        print(f"gmmae {__version__}")
        return 0
    # Figures are files. A notebook sets a backend for its commands that this environment may not have.
    os.environ["MPLBACKEND"] = "agg"
    return guarded(dispatch, sys.argv[1:])

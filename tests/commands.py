"""Commands of the program in this process."""

import csv
from pathlib import Path

import pytest

from gmmae.cli import main
from gmmae.system import guard
from gmmae.system.errors import InputError


def run_gmmae(*words: object) -> int:
    """Runs a command, and returns its exit code."""
    return guard.guarded(main.dispatch, [str(word) for word in words])


def refusal(capsys, *words: object) -> str:
    """Runs a command that refuses its input, and returns the one line of the error."""
    capsys.readouterr()  # what a fixture has printed on a busy machine
    assert run_gmmae(*words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


def last_refusal(capsys, *words: object) -> str:
    """Runs a command that refuses its input, and returns the last line of the error. Lines on reading files come before."""
    capsys.readouterr()
    assert run_gmmae(*words) == 2
    return capsys.readouterr().err.splitlines()[-1]


def one_line(call, *arguments: object, **options: object) -> str:
    """Calls a function that refuses its input, and returns the one line of the error."""
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def lines_of(capsys, *words: object) -> list[str]:
    """Runs a command, and returns the lines that it prints."""
    capsys.readouterr()
    assert run_gmmae(*words) == 0
    return capsys.readouterr().out.splitlines()


def rows(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV by column."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def as_words(key: str, value: object) -> list[str]:
    """Returns a key and its value as words of a command line. A boolean is a switch, one word.

    >>> as_words("data.shape", (16, 24)), as_words("data.allow_seen", True), as_words("data.allow_seen", False)
    (['--data.shape', '16', '24'], ['--data.allow-seen'], ['--data.no-allow-seen'])
    """
    section, point, name = key.replace("_", "-").rpartition(".")
    if isinstance(value, bool):
        return [f"--{section}{point}{'' if value else 'no-'}{name}"]
    values = value if isinstance(value, list | tuple) else ["none" if value is None else value]
    return [f"--{section}{point}{name}", *map(str, values)]

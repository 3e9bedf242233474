"""Commands of the program in this process."""

import csv
from pathlib import Path

from gmmae.cli import main
from gmmae.system import guard


def run_gmmae(*words: object) -> int:
    """Runs a command, and returns its exit code."""
    return guard.guarded(main.dispatch, [str(word) for word in words])


def refusal(capsys, *words: object) -> str:
    """Runs a command that refuses its input, and returns the one line of the error."""
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


def lines_of(capsys, *words: object) -> list[str]:
    """Runs a command, and returns the lines that it prints."""
    capsys.readouterr()
    assert run_gmmae(*words) == 0
    return capsys.readouterr().out.splitlines()


def rows(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV by column."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))

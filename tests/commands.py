"""Commands of the program in this process."""

from unittest import mock

from gmmae.cli import main
from gmmae.cli.train import train
from gmmae.system import guard


def run_gmmae(*words: object) -> int:
    """Runs a command, and returns its exit code. Training has no parent process here."""
    with mock.patch.dict(main.COMMANDS, train=train):
        return guard.guarded(main.dispatch, [str(word) for word in words])


def refusal(capsys, *words: object) -> str:
    """Runs a command that refuses its input, and returns the one line of the error."""
    assert run_gmmae(*words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error

"""The command `gmmae` and its subcommands; `train.py` is its `train`."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gmmae.errors import InputError

BAD_INPUT = 2


def train(arguments: Sequence[str], prog: str = "gmmae train") -> int:
    """Trains, draws the figures, and says where everything is. Returns the exit code."""
    from gmmae import terminal
    from gmmae.arguments import parse_train
    from gmmae.stopping import EXIT_CODES, INTERRUPTED

    config, root = parse_train(arguments, prog)
    from gmmae.loop import run  # JAX is imported after the command line has been found to be right

    display = terminal.display()
    record = run(config, root, display)
    assert record.stop_reason is not None
    display.say(_outcome(record))
    if record.stop_reason in INTERRUPTED:
        display.say(f"checkpoint written; to resume: {prog} {' '.join(arguments)}")
        return EXIT_CODES[record.stop_reason]
    from gmmae.pictures import draw
    from gmmae.workdir import WorkDir

    workdir = WorkDir(root)
    places = {
        "figures": "  ".join(map(str, draw(config, record, workdir))),
        "record": str(workdir.record),
        "history": str(workdir.history),
        "checkpoint": str(workdir.checkpoints),
    }
    if config.log.tensorboard:
        places["logs"] = f"tensorboard --logdir {workdir.tensorboard}"
    for name, place in places.items():
        display.say(f"{name:<10}  {place}")
    return EXIT_CODES[record.stop_reason]


def _outcome(record) -> str:
    reached = f", time to target {record.time_to_target_s:.1f} s" if record.time_to_target_s is not None else ""
    best = f"{record.best_val_loss:.4g} at epoch {record.best_epoch}" if record.best_epoch else "never finite"
    return f"{record.stop_reason} after {record.epochs} epochs: best validation loss {best}{reached}"


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"train": train}


def guarded(command: Callable[..., int], *arguments: object) -> int:
    """Runs a command; an `InputError` becomes one line on standard error and exit code 2."""
    try:
        return command(*arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


def main() -> int:
    """Entry point of the installed command."""
    name, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("--help", [])
    if name in COMMANDS:
        return guarded(COMMANDS[name], arguments)
    print(f"usage: gmmae {{{','.join(COMMANDS)}}} ...\n\n`gmmae COMMAND --help` explains a command's options.")
    if name in ("-h", "--help"):
        return 0
    print(f"error: the command must be one of {', '.join(COMMANDS)}; got {name!r}", file=sys.stderr)
    return BAD_INPUT

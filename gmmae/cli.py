"""The command `gmmae` and its subcommands; `train.py` is its `train`."""

import sys
from collections.abc import Callable, Sequence

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


def data(arguments: Sequence[str], prog: str = "gmmae data") -> int:
    """`data prepare`, `data inspect` and `data synth`. Returns the exit code."""
    return _dispatch(DATA_COMMANDS, arguments, prog)


def _prepare(arguments: Sequence[str], prog: str) -> int:
    from gmmae.arguments import parse_prepare
    from gmmae.data_commands import prepare_data

    parsed = parse_prepare(arguments, prog)
    print(prepare_data(parsed.data, parsed.out))
    return 0


def _inspect(arguments: Sequence[str], prog: str) -> int:
    from gmmae.arguments import parse_inspect
    from gmmae.data_commands import inspect_data

    parsed = parse_inspect(arguments, prog)
    print(inspect_data(parsed.data, parsed.which, parsed.out))
    return 0


def _synth(arguments: Sequence[str], prog: str) -> int:
    from gmmae.arguments import parse_synth
    from gmmae.data_commands import synth_data

    p = parse_synth(arguments, prog)
    print(synth_data(p.root, p.scans, p.nodules, p.seed, p.slices, p.pixels, p.compressed))
    return 0


Command = Callable[[Sequence[str], str], int]
COMMANDS: dict[str, Command] = {"train": train, "data": data}
DATA_COMMANDS: dict[str, Command] = {"prepare": _prepare, "inspect": _inspect, "synth": _synth}


def _dispatch(commands: dict[str, Command], arguments: Sequence[str], prog: str) -> int:
    name, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if name in commands:
        return commands[name](rest, f"{prog} {name}")
    if name not in ("-h", "--help"):
        raise InputError(f"the command after {prog!r} must be one of {', '.join(commands)}; got {name!r}")
    print(f"usage: {prog} {{{','.join(commands)}}} ...\n\n`{prog} COMMAND --help` explains a command's options.")
    return 0


def guarded(command: Callable[..., int], *arguments: object) -> int:
    """Runs a command; an `InputError` becomes one line on standard error and exit code 2."""
    try:
        return command(*arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


def main() -> int:
    """Entry point of the installed command."""
    return guarded(_dispatch, COMMANDS, sys.argv[1:], "gmmae")

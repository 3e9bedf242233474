"""The command `gmmae` and its subcommands; `train.py` is its `train`."""

import importlib
import shlex
import sys
from collections.abc import Callable, Sequence

from gmmae import __version__
from gmmae.multihost.watchdog import NO_WATCHDOG, Watchdog, run_with_watchdog
from gmmae.system.errors import InputError, at_interrupt
from gmmae.system.guard import guarded

GOES_ON = "the same command goes on where it was"
BEGINS = "nothing was written; the same command begins again"
ALL_WHOLE = "no file is half written; the same command begins again"
"""What holds when a command is interrupted."""


@at_interrupt(GOES_ON)
def start_training(arguments: Sequence[str], prog: str = "gmmae train") -> int:
    """`train` in a process with a parent, which is this one. Returns, in that process, the exit code."""
    return train(arguments, prog, run_with_watchdog())


def train(arguments: Sequence[str], prog: str = "gmmae train", parent: Watchdog = NO_WATCHDOG) -> int:
    """Trains, draws the figures, and says where everything is. Returns the exit code."""
    from gmmae.cli.arguments import parse_train
    from gmmae.system.null_object import IDLE
    from gmmae.system.stop_reasons import EXIT_CODES, INTERRUPTED
    from gmmae.training import terminal

    config, root = parse_train(arguments, prog)
    from gmmae.multihost.distributed import joined

    command = shlex.join([*prog.split(), *arguments])
    with joined(config, command, parent) as group:
        from gmmae.training.loop import run  # JAX is imported after the command line has been found to be right

        display = terminal.display() if group.primary else IDLE
        record = run(config, root, display, group)
    assert record.stop_reason is not None
    display.say(_outcome(record))
    if record.stop_reason in INTERRUPTED:
        display.say(f"checkpoint written; to resume: {command}")
    if record.stop_reason in INTERRUPTED or not group.primary:
        return EXIT_CODES[record.stop_reason]
    from gmmae.training.figures import draw
    from gmmae.training.workdir import WorkDir

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
    best = f"{record.best_value:.4g} at epoch {record.best_epoch}" if record.best_epoch else "never finite"
    return f"{record.stop_reason} after {record.epochs} epochs: best validation {record.monitor} {best}{reached}"


@at_interrupt(GOES_ON)
def sweep(arguments: Sequence[str], prog: str = "gmmae sweep") -> int:
    """Runs what is missing of a sweep, then writes its report. Returns the exit code."""
    from gmmae.cli.arguments import parse_sweep

    asked = parse_sweep(arguments, prog)
    clusters = _clusters(asked.config.clusters)
    from gmmae.sweep.display import grid_table, sweep_display
    from gmmae.workloads.registry import training_samples

    samples = training_samples(asked.config.run) if asked.dry_run or asked.config.mode == "virtual" else 0
    if asked.dry_run:
        from gmmae.sweep.grid import dry_run, left_out

        print(grid_table(dry_run(asked.config, samples)), *left_out(asked.config), sep="\n")
        return 0
    from gmmae.sweep.engine import interrupted
    from gmmae.sweep.engine import sweep as run

    display = sweep_display()
    references = {cluster.reference_batch for cluster in clusters}
    code = run(asked.config, asked.workdir, display, samples=samples, retry=asked.retry, reference_batches=references)
    if not interrupted(code):
        _report(asked.config, asked.workdir, clusters, display.say)
    return code


@at_interrupt(ALL_WHOLE)
def report(arguments: Sequence[str], prog: str = "gmmae report") -> int:
    """Writes the report of a sweep. Returns the exit code."""
    from gmmae.cli.arguments import parse_report, read_sweep
    from gmmae.sweep.runs import SweepDir

    asked = parse_report(arguments, prog)
    place = SweepDir(asked.root).config
    if not place.is_file():
        raise InputError(f"FOLDER must be the work directory of a sweep; got {asked.root}, which has no {place.name}")
    config = read_sweep(place)
    _report(config, asked.root, _clusters(asked.clusters or config.clusters), print, asked.plan)
    return 0


def _report(config, root, clusters, say: Callable[[str], None], plan=None) -> None:
    from gmmae.planner.outcome import write_report

    for path in write_report(config, root, clusters, plan):
        say(str(path))


def _clusters(names: Sequence[str]) -> list:
    from gmmae.config.toml import find
    from gmmae.scaling.cost import read_cluster

    return [read_cluster(find(name, "clusters")) for name in names]


def data(arguments: Sequence[str], prog: str = "gmmae data") -> int:
    """`data prepare`, `data inspect` and `data synth`. Returns the exit code."""
    return _dispatch(DATA_COMMANDS, DATA_HELP, arguments, prog)


@at_interrupt(GOES_ON)
def _prepare(arguments: Sequence[str], prog: str) -> int:
    from gmmae.cli.data import parse_prepare, prepare_data

    parsed = parse_prepare(arguments, prog)
    print(prepare_data(parsed.data, parsed.out, parsed.refresh))
    return 0


@at_interrupt(BEGINS)
def _inspect(arguments: Sequence[str], prog: str) -> int:
    from gmmae.cli.data import inspect_data, parse_inspect

    parsed = parse_inspect(arguments, prog)
    print(inspect_data(parsed.data, parsed.which, parsed.out))
    return 0


@at_interrupt(BEGINS)
def _synth(arguments: Sequence[str], prog: str) -> int:
    from gmmae.cli.data import parse_synth, synth_data

    p = parse_synth(arguments, prog)
    print(synth_data(p.root, p.scans, p.nodules, p.seed, p.slices, p.pixels, p.compressed))
    return 0


Command = Callable[[Sequence[str], str], int]


def _module(name: str, interrupted: str) -> Command:
    """The function `command` of a module beside this one, which is imported when it is called."""

    @at_interrupt(interrupted)
    def command(arguments: Sequence[str], prog: str) -> int:
        return importlib.import_module(f"gmmae.cli.{name}").command(arguments, prog)

    return command


COMMANDS: dict[str, Command] = {
    **{"train": start_training, "sweep": sweep, "report": report, "data": data, "plan": _module("plan", GOES_ON)},
    **{name: _module(name, BEGINS) for name in ("evaluate", "describe", "export", "generate", "insert", "judge")},
}
DATA_COMMANDS: dict[str, Command] = {"prepare": _prepare, "inspect": _inspect, "synth": _synth}

HELP = """\
usage: gmmae COMMAND ...

Train and compare:
  train      train a workload on one or several devices
  sweep      compare scaling strategies over device counts and seeds
  report     write the tables, figures and page of a sweep
  plan       predict the fastest scaling strategy from runs on one device

Use a trained model:
  evaluate   compute loss and metrics for each sample
  describe   describe volumes as mixtures
  export     write the model to one file that JAX alone can load
  generate   make new nodules
  insert     put nodules into CT scans
  judge      compare generated nodules with real ones

Data:
  data       prepare, inspect or synthesise volumes

`gmmae COMMAND --help` lists a command's options. `gmmae --version` prints the version.
"""
DATA_HELP = """\
usage: gmmae data COMMAND ...

  prepare    cut the nodules of a folder once, into a cache
  inspect    show the nodules of a folder
  synth      write synthetic CT scans shaped like LUNA16

`gmmae data COMMAND --help` lists a command's options.
"""


def _dispatch(commands: dict[str, Command], help_text: str, arguments: Sequence[str], prog: str) -> int:
    name, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if name in commands:
        return commands[name](rest, f"{prog} {name}")
    if name not in ("-h", "--help"):
        raise InputError(f"the command after {prog!r} must be one of {', '.join(commands)}; got {name!r}")
    print(help_text, end="")
    return 0


def main() -> int:
    """Entry point of the installed command."""
    if sys.argv[1:] == ["--version"]:
        print(f"gmmae {__version__}")
        return 0
    return guarded(_dispatch, COMMANDS, HELP, sys.argv[1:], "gmmae")

"""`gmmae train`."""

from pathlib import Path

from gmmae.config.schema import Config
from gmmae.multihost.distributed import join_processes
from gmmae.system.garbage import no_collection_of_imports
from gmmae.system.null_object import IDLE
from gmmae.system.stop_reasons import EXIT_CODES, INTERRUPTED
from gmmae.training import terminal
from gmmae.training.workdir import WorkDir


def command(config: Config, root: Path, command_line: str) -> int:
    """Trains, draws the figures, and prints where everything is."""
    with join_processes(config) as group:
        with no_collection_of_imports():
            from gmmae.training.loop import RunCache, run  # it imports JAX, which reads the environment that is set here

        display, cache = terminal.display() if group.primary else IDLE, RunCache()
        record = run(config, root, display, group, cache)
    assert record.stop_reason is not None
    reached = f", time to target {record.time_to_target_s:.1f} s" if record.time_to_target_s is not None else ""
    best = "never finite: look for samples that are not finite, or lower --optim.learning-rate"
    if record.best_epoch:
        best = f"{record.best_value:.4g} at epoch {record.best_epoch}"
    epochs = f"{record.epochs} epoch{'s' * (record.epochs != 1)}"
    display.say(f"{record.stop_reason} after {epochs}: best validation {record.monitor} {best}{reached}")
    if record.stop_reason in INTERRUPTED:
        display.say(f"checkpoint written; to resume: {command_line}")
    elif group.primary:
        with no_collection_of_imports():
            from gmmae.cli.verdict import verdict
            from gmmae.training.figures import draw  # matplotlib is imported after the training

        workdir = WorkDir(root)
        for line in verdict(config, record, workdir, cache):
            display.say(line)
        places = {
            "figures": "  ".join(map(str, draw(config, record, workdir))),
            "record": workdir.record,
            "history": workdir.history,
            "checkpoint": workdir.checkpoints,
        }
        if config.log.tensorboard:
            places["logs"] = f"tensorboard --logdir {workdir.tensorboard}"
        for name, place in places.items():
            display.say(f"{name:<11}  {place}")
    return EXIT_CODES[record.stop_reason]

"""The program of a sweep's subprocess. It computes one run, or the step times on one number of devices.

Each task of a cluster's job is such a process, and they work together. Only the first one writes and prints.

python -m gmmae.sweep.worker train CONFIG.toml WORKDIR
python -m gmmae.sweep.worker time CONFIG.toml TIMING.json OUT.json
"""

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from gmmae.multihost.watchdog import NO_WATCHDOG, Watchdog, run_with_watchdog
from gmmae.sweep.supervisor import die_with_parent
from gmmae.system.guard import guarded

RESUME = "the sweep's command does it"
"""How a run is resumed, for the message when another task is lost."""


def train(parent: Watchdog, config: str, root: str) -> int:
    """Trains as `train.py` does, with plain output and without figures. Returns the exit code."""
    from gmmae.multihost.distributed import join_processes
    from gmmae.system.null_object import IDLE
    from gmmae.system.stop_reasons import EXIT_CODES
    from gmmae.training.terminal import Plain, standard_output
    from gmmae.workloads.configuration import read_config

    run_config = read_config(Path(config))
    with join_processes(run_config, RESUME, parent) as group:
        from gmmae.training.loop import run

        record = run(run_config, Path(root), Plain(standard_output()) if group.primary else IDLE, group)
    assert record.stop_reason is not None
    return EXIT_CODES[record.stop_reason]


def time(parent: Watchdog, config: str, request: str, out: str) -> int:
    """Measures the step times that a JSON file requests. Returns the exit code."""
    from gmmae.multihost.distributed import join_processes
    from gmmae.sweep.grid import TimingConfig
    from gmmae.workloads.configuration import read_config

    arguments = json.loads(Path(request).read_text(encoding="utf-8"))
    run_config = read_config(Path(config))
    with join_processes(run_config, RESUME, parent) as group:
        from gmmae.sweep.throughput import measure, write

        timings = measure(run_config, arguments["batches"], arguments["validation"], TimingConfig(**arguments["timing"]))
    if group.primary:
        write(Path(out), timings)
    return 0


def main(arguments: Sequence[str], parent: Watchdog = NO_WATCHDOG) -> int:
    """Runs one of the two commands. Errors are reported as on the command line."""
    return guarded({"train": train, "time": time}[arguments[0]], parent, *arguments[1:])


if __name__ == "__main__":
    # Slurm may send it to all processes of a job. Only the parent handles it, and then sends SIGTERM.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    sys.exit(main(sys.argv[1:], run_with_watchdog(die_with_parent)))

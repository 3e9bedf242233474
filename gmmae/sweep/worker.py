"""The program of a sweep's subprocess. It computes one run, or the step times on one number of devices.

Each task of a cluster's job is such a process, and they work together. Only the first one writes and prints.

python -m gmmae.sweep.worker train CONFIG.toml WORKDIR
python -m gmmae.sweep.worker time CONFIG.toml TIMING.json OUT.json
"""

import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from gmmae.multihost.watchdog import NO_WATCHDOG, Watchdog, run_with_watchdog
from gmmae.sweep.supervisor import die_with_parent
from gmmae.system.guard import guarded


def main(arguments: Sequence[str], parent: Watchdog = NO_WATCHDOG) -> int:
    """Runs one of the two commands. Errors are reported as on the command line."""
    return guarded(_run, parent, *arguments)


def _run(parent: Watchdog, command: str, *files: str) -> int:
    """Imports the commands in the child of the watchdog only, because they are large."""
    return getattr(import_module("gmmae.sweep.worker_commands"), command)(parent, *files)


if __name__ == "__main__":
    # Slurm may send it to all processes of a job. Only the parent handles it, and then sends SIGTERM.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    sys.exit(main(sys.argv[1:], run_with_watchdog(die_with_parent)))

"""The program of a sweep's subprocess: one run, or the step times on one number of devices.

python -m gmmae.cell train CONFIG.toml WORKDIR
python -m gmmae.cell time CONFIG.toml TIMING.json OUT.json
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gmmae import environment
from gmmae.cli import guarded
from gmmae.supervisor import die_with_parent


def train(config: str, root: str) -> int:
    """Trains as `train.py` does, in plain lines and without the figures. Returns the exit code."""
    from rich.console import Console

    from gmmae.arguments import read_config
    from gmmae.loop import run
    from gmmae.stopping import EXIT_CODES
    from gmmae.terminal import Plain

    asked = read_config(Path(config))
    environment.prepare(asked.parallel)
    record = run(asked, Path(root), Plain(Console()))
    assert record.stop_reason is not None
    return EXIT_CODES[record.stop_reason]


def time(config: str, request: str, out: str) -> int:
    """Measures the step times that a JSON file asks for. Returns the exit code."""
    from gmmae.arguments import read_config
    from gmmae.grid import TimingConfig
    from gmmae.throughput import measure, write

    timed, asked = read_config(Path(config)), json.loads(Path(request).read_text(encoding="utf-8"))
    environment.prepare(timed.parallel)
    write(Path(out), measure(timed, asked["batches"], asked["validation"], TimingConfig(**asked["timing"])))
    return 0


def main(arguments: Sequence[str]) -> int:
    """Runs one of the two; errors as the command line's."""
    return guarded({"train": train, "time": time}[arguments[0]], *arguments[1:])


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(sys.argv[1:]))

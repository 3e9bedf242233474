"""Compares the training epoch of this checkout with that of an earlier commit, alternately.

    python -m benchmarks.commits --base COMMIT [--configs quickstart paper] [--devices 1 2] [--turns 7]
    python -m benchmarks.commits --base COMMIT --configs unet --set data.root=FOLDER data.validation=0.97

The earlier commit is checked out in a temporary folder, and runs in the same environment. Both programs stay compiled in a
process of their own. One epoch of each follows the other, and the order changes from turn to turn. A ratio above 1 means that
this checkout is slower.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.child import ROOT
from benchmarks.hardware import line, processor
from benchmarks.options import Parser, at_least, guarded
from benchmarks.spread import ratios, spread
from gmmae.plotting.tables import Table, markdown
from gmmae.system.environment import CPU_DEVICES
from gmmae.system.errors import InputError

CHILD = Path(__file__).with_name("commits_child.py")
COLUMNS = ("configuration", "devices", "steps", "before, ms a step", "now, ms a step", "now over before")


def main() -> None:
    """Prints a row for each configuration and number of devices."""
    parser = Parser(__doc__, "python -m benchmarks.commits")
    parser.add_argument("--base", required=True, help="earlier commit")
    parser.add_argument("--configs", nargs="+", default=["quickstart", "paper"], help="configurations that both commits know")
    parser.add_argument("--devices", nargs="+", type=at_least(1), default=[1, 2], help="virtual devices of one process")
    parser.add_argument("--turns", type=at_least(1), default=7, help="number of timed epochs of each")
    parser.add_argument("--set", nargs="*", type=setting, default=[], metavar="KEY=VALUE", help="settings of both")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    with checkout(args.base) as base:
        rows = tuple(row(base, name, devices, dict(args.set), args.turns) for name in args.configs for devices in args.devices)
    note = f"{line(processor())}; load before {load:.1f}; before is {args.base}; median (quartiles) of {args.turns} turns"
    print(markdown(Table("commits", "A training epoch, now and before", COLUMNS, rows, (note,))))


def setting(text: str) -> tuple[str, object]:
    """Reads `key=value`, with a value as JSON or, failing that, a text.

    >>> setting("data.validation=0.97"), setting("data.root=here")
    (('data.validation', 0.97), ('data.root', 'here'))
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set must be KEY=VALUE; got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Checks a commit out in a temporary folder.

    Raises:
      InputError: git does not know the commit.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "before"
        done = subprocess.run(
            ["git", "worktree", "add", "--detach", str(place), commit], cwd=ROOT, capture_output=True, text=True
        )
        if done.returncode:
            why = done.stderr.strip().splitlines()[-1]
            raise InputError(f"--base must be a commit of this repository; got {commit!r} ({why})")
        try:
            yield place
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(place)], cwd=ROOT, check=True)


class Epoch:
    """Compiled epoch of a checkout, in a process of its own.

    Attributes:
      steps: steps of an epoch.
    """

    def __init__(self, place: Path, config: str, devices: int, settings: dict[str, object]):
        environ = {**os.environ, CPU_DEVICES: str(devices), "PYTHONPATH": str(place)}
        words = json.dumps({"config": config, "settings": settings | {"parallel.devices": devices}})
        command = [sys.executable, str(CHILD), words]
        self._process = subprocess.Popen(
            command, cwd=place, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.steps = int(self._read())

    def time_s(self) -> float:
        """Runs the epoch once, and returns its seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()

    def end(self) -> None:
        """Ends the process."""
        self._process.communicate()

    def _read(self) -> float:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            raise SystemExit(f"{self._process.args} ended with {self._process.wait()}")
        return json.loads(said)


def row(base: Path, config: str, devices: int, settings: dict[str, object], turns: int) -> tuple[str, ...]:
    """Returns the row of a configuration. Both epochs run once before they are timed."""
    before, now = (Epoch(place, config, devices, settings) for place in (base, ROOT))
    times: dict[Epoch, list[float]] = {before: [], now: []}
    for turn in range(-1, turns):
        for epoch in (before, now) if turn % 2 else (now, before):
            taken_s = epoch.time_s() / epoch.steps
            if turn >= 0:
                times[epoch].append(taken_s)
    for epoch in times:
        epoch.end()
    found = config, str(devices), str(now.steps), *(spread(times[epoch]).text(scale=1000) for epoch in (before, now))
    cells = (*found, ratios(times[now], times[before]).text())
    print(" | ".join(cells), file=sys.stderr, flush=True)
    return cells


if __name__ == "__main__":
    guarded(main)

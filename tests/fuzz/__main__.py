"""Feeds damaged folders to every command that takes one, and prints the outcomes: `python -m tests.fuzz --help`.

The exit code is 0 if every command gives the right result, or one line that names the place.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", tempfile.mkdtemp(prefix="fuzz_compiled_"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

from tests.fuzz.processes import Asked, Line, chosen, trials


def main() -> int:
    """Tries the cases, prints a line each, and then the counts."""
    asked = _arguments()
    calls = Asked(asked.only, asked.all, asked.subprocess)
    if asked.list:
        print("\n".join(f"{case.name} × {command}" for case, command in chosen(calls)))
        return 0
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="fuzz_"))
    start, tried = time.monotonic(), []
    for trial in trials(calls, folder, asked.jobs):
        tried.append(trial)
        if not asked.quiet or trial.failed:
            print(trial.text, flush=True)
    if asked.keep is None:
        shutil.rmtree(folder)
    print(summary(tried, time.monotonic() - start))
    return int(any(trial.failed for trial in tried))


def summary(tried: Sequence[Line], seconds: float) -> str:
    """Returns the number of calls by outcome, for each command and in total."""
    kinds = Counter(trial.kind for trial in tried)
    rows = [f"{command:14} {_counts(trial for trial in tried if trial.command == command)}" for command in _commands(tried)]
    total = f"{len(tried)} calls on {len({trial.case for trial in tried})} folders, {seconds:.0f} s: {_text(kinds)}"
    return "\n".join([*rows, total])


def _commands(tried: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(trial.command for trial in tried))


def _counts(tried: Iterable[Line]) -> str:
    return _text(Counter(trial.kind for trial in tried))


def _text(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda item: item[0].isupper()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="calls whose 'case × command' has this regular expression"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder for the cases; those that failed stay in it")
    parser.add_argument("--all", action="store_true", help="all commands of each case (default: two of them)")
    parser.add_argument("--subprocess", action="store_true", help="each call in a process of its own")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes (default: one for each core)")
    parser.add_argument("--quiet", action="store_true", help="prints the failures and the counts only")
    parser.add_argument("--list", action="store_true", help="names the calls and ends")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

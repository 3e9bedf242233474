"""Injects faults into runs of two processes and into sweeps, and prints a table: `python -m tests.faults --help`.

The undisturbed run and every disturbed one share the configuration, the programs and this machine. A run survives a fault under
three conditions. All processes are gone within the bound, and the remaining one has said why and what to do. The same command
resumes from the newest whole checkpoint and ends with the bits of the undisturbed run. No process is left. A sweep survives if
it ends with the records and histories of an undisturbed one, after the same command where it has ended. The exit code is 0 if
all faults were survived, and 1 if not.
"""

import argparse
import itertools
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from tests.faults.chain import in_a_row
from tests.faults.faults import STOPPED, Fault, matrix, quick
from tests.faults.sweeps import SWEEP_FAULTS, SweepBench, SweepFault
from tests.faults.table import line, summary, table
from tests.faults.trials import Bench, Trial

Numbered = Sequence[tuple[int, Fault]]


def main() -> int:
    asked = _arguments()
    every = enumerate([*(quick() if asked.quick else matrix()), *SWEEP_FAULTS], 1)
    chosen = [(i, fault) for i, fault in every if re.search(asked.only, fault.name)]
    if asked.list or not chosen:
        print("\n".join(f"{i:3} {fault.name}" for i, fault in chosen) or f"no fault has {asked.only!r} in its name")
        return 0 if chosen else 2
    faults = [(i, fault) for i, fault in chosen if isinstance(fault, Fault)]
    of_sweeps = [(i, fault) for i, fault in chosen if isinstance(fault, SweepFault)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the processes would be born deaf to it
    folder: Path = asked.out or Path("runs") / f"faults{'_quick' * asked.quick}_{asked.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    seen = folder / "trials.jsonl"
    seen.write_text("")
    start = time.monotonic()
    trials: dict[int, Trial] = {}
    for i, trial in itertools.chain(
        _tried(faults, asked.quick, asked.seed, asked.jobs) if faults else (),
        _tried_on_sweeps(of_sweeps, asked.quick, asked.seed) if of_sweeps else (),
    ):
        trials[i] = trial
        print(line(i, trial), flush=True)
        with seen.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"number": i} | trial.plain()) + "\n")
    tried = [trial for _, trial in sorted(trials.items())]
    if len(tried) < len(chosen):
        print(f"{len(chosen) - len(tried)} faults have not been tried")
    text = f"{table(tried)}\n\n{summary(tried, time.monotonic() - start)}\n"
    (folder / "table.md").write_text(text, encoding="utf-8")
    print(f"\n{text}\n{seen}  {folder / 'table.md'}")
    return int(len(tried) < len(chosen) or any(trial.complaints for trial in tried))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="every kind of fault once, in a row on one run")
    parser.add_argument("--only", default="", metavar="PATTERN", help="faults whose 'kind, moment' has this regular expression")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="trials.jsonl, a line a fault as it goes, and table.md")
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time (default: 2: many only wait)")
    parser.add_argument("--list", action="store_true", help="names the faults and ends")
    return parser.parse_args()


def _tried(faults: Numbered, in_one_run: bool, seed: int, jobs: int) -> Iterator[tuple[int, Trial]]:
    """The trials as they end."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults_") as folder:
        bench = Bench(Path(folder))
        bench.wanted = bench.undisturbed()
        print(f"undisturbed: {time.monotonic() - start:.0f} s", flush=True)
        if in_one_run:
            yield from zip((i for i, _ in faults), in_a_row(bench, [fault for _, fault in faults], str(seed)), strict=False)
            return
        if bench.undisturbed() != bench.wanted:
            raise SystemExit("two undisturbed runs must have the same bits; they have not: nothing can be compared")
        if any(fault.moment == STOPPED for _, fault in faults):
            bench.stop_one()
        if any(fault.scans for _, fault in faults):
            bench.write_scans()
        with ThreadPoolExecutor(jobs) as pool:
            started = {pool.submit(bench.trial, fault, f"{seed} {i}"): i for i, fault in faults}
            try:
                for future in as_completed(started):
                    yield started[future], future.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


def _tried_on_sweeps(faults: Sequence[tuple[int, SweepFault]], in_one_sweep: bool, seed: int) -> Iterator[tuple[int, Trial]]:
    """The trials of a sweep's faults as they end."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults_") as folder:
        bench = SweepBench(Path(folder))
        bench.compute_undisturbed()
        print(f"undisturbed sweep: {time.monotonic() - start:.0f} s", flush=True)
        groups = [faults] if in_one_sweep else [[each] for each in faults]
        for group in groups:
            numbers, chosen = zip(*group, strict=True)
            yield from zip(numbers, bench.trials(chosen, f"sweep_{seed}_{numbers[0]}"), strict=False)


if __name__ == "__main__":
    sys.exit(main())

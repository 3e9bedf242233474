"""Injects faults into runs of two processes, and prints a table of how they were borne: `python -m tests.faults --help`.

The undisturbed run and every disturbed one share the configuration, the programs and this machine. A fault is survived if all
processes are gone within its bound, the one that is left says why and what to do, the same command then finishes the run with
the bits of the undisturbed one, and no process is left. The exit code is 0 only if all were survived.
"""

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from tests.faults.faults import STOPPED, matrix
from tests.faults.table import line, summary, table
from tests.faults.trials import Bench, Trial


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", metavar="PATTERN", help="faults whose 'kind, moment' has this regular expression")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="one line of JSON a fault, as it goes")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time (default: 1)")
    parser.add_argument("--list", action="store_true", help="names the faults and ends")
    asked = parser.parse_args()
    faults = [(i, fault) for i, fault in enumerate(matrix(), 1) if re.search(asked.only, fault.name)]
    if asked.list or not faults:
        print("\n".join(f"{i:3} {fault.name}" for i, fault in faults) or f"no fault has {asked.only!r} in its name")
        return 0 if faults else 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    trials: dict[int, Trial] = {}
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults_") as folder:
        bench = Bench(Path(folder))
        bench.wanted = bench.undisturbed()
        if bench.undisturbed() != bench.wanted:
            raise SystemExit("two undisturbed runs must have the same bits; they have not: nothing can be compared")
        print(f"undisturbed, twice, with the same bits: {time.monotonic() - start:.0f} s", flush=True)
        if any(fault.moment == STOPPED for _, fault in faults):
            bench.stop_one()
        with ThreadPoolExecutor(asked.jobs) as pool:
            started = {pool.submit(bench.trial, fault, f"{asked.seed} {i}"): i for i, fault in faults}
            try:
                for future in as_completed(started):
                    i, trial = started[future], future.result()
                    trials[i] = trial
                    print(line(i, trial), flush=True)
                    if asked.out:
                        with asked.out.open("a", encoding="utf-8") as file:
                            file.write(json.dumps({"number": i} | trial.plain()) + "\n")
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    tried = [trial for _, trial in sorted(trials.items())]
    print(f"\n{table(tried)}\n\n{summary(tried, time.monotonic() - start)}")
    return int(any(trial.complaints for trial in tried))


if __name__ == "__main__":
    sys.exit(main())

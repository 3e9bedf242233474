"""Process of one backend: reads commands as lines of JSON and answers each with a line.

Commands are `facts`, `reset`, `train`, `losses`, `evaluate` and `gradient`. Answers have `seconds`.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import backends, problem
from benchmarks.peers.backends import Peer


def answer(peer: Peer, do: str, **args: Any) -> dict[str, Any]:
    """Returns the backend's answer to one command, without the time."""
    match do:
        case "facts":
            return peer.facts()
        case "reset":
            peer.reset()
        case "train":
            peer.train(args["samples"], args["epoch"])
        case "losses":
            return {"losses": np.asarray(peer.losses(args["samples"], args["epoch"]), np.float64).tolist()}
        case "evaluate":
            return {"loss": peer.evaluate()}
        case "gradient":
            problem.write_arrays(args["path"], peer.gradient())
        case _:
            raise ValueError(f"a command must be one that this module's first lines name; got {do!r}")
    return {}


def main() -> None:
    """Answers commands until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--settings", nargs="*", default=[])
    args = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # frameworks print
    known = problem.read(args.folder)
    peer = backends.load(args.name, known, args.settings)
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        began = time.perf_counter()
        said = answer(peer, **json.loads(line))
        print(json.dumps({"seconds": time.perf_counter() - began, **said}), file=answers)


if __name__ == "__main__":
    main()

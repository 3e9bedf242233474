"""Process of one backend: reads commands as lines of JSON and answers each with a line.

Commands are `facts`, `reset`, `train`, `losses`, `evaluate`, `gradient`, `reduction`, `last` and `target`. Answers have
`seconds`.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import backends, problem
from benchmarks.peers.backends import Peer, Place


def answer(peer: Peer, known: problem.Problem, do: str, **args: Any) -> dict[str, Any]:
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
        case "reduction":
            peer.reduction(args["times"])
        case "last":
            gradient, steps = peer.last(args["recipe"])
            path = Path(args["folder"]) / f"{os.getpid()}.npz"
            problem.write_arrays(path, gradient)
            return {"steps": steps, "gradient": str(path)}
        case "target":
            return to_target(peer, known)
        case _:
            raise ValueError(f"a command must be one that this module's first lines name; got {do!r}")
    return {}


def to_target(peer: Peer, known: problem.Problem) -> dict[str, Any]:
    """Trains until the validation loss is at or below the target, as `train.py` does, and returns each epoch's seconds."""
    epochs: list[float] = []
    loss = math.inf
    while loss > known.target_loss and len(epochs) < known.max_epochs:  # NaN ends it too
        began = time.perf_counter()
        peer.train(known.samples, len(epochs) + 1)
        loss = peer.evaluate()
        epochs.append(time.perf_counter() - began)
    return {"epoch_s": epochs, "val_loss": loss, "reached": loss <= known.target_loss}


def main() -> None:
    """Answers commands until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--settings", nargs="*", default=[])
    args = parser.parse_args()
    if args.processes > 1:  # before any framework counts the cores
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[args.rank]})
    cores = len(os.sched_getaffinity(0))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # frameworks print
    known = problem.read(args.folder)
    peer = backends.load(args.name, known, Place(args.rank, args.processes, args.port, cores), args.settings)
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        began = time.perf_counter()
        said = answer(peer, known, **json.loads(line))
        print(json.dumps({"seconds": time.perf_counter() - began, **said}), file=answers)
    os._exit(0)  # frameworks of several processes would wait for one another


if __name__ == "__main__":
    main()

"""Measures many processes of one run on one host: start, agreement, stop on SIGTERM, resume and reading a checkpoint.

    python -m benchmarks.many_processes [--processes 2 8 32] [--readers 2 8]

The first table is of `train.py` with a tiny model and one device a process, started as in `docs/hosts.md`. The second one
compares two ways to restore the state of a configuration. Either all processes read it, as `train.py` does, or process 0
reads and broadcasts it. The files are in the page cache, so the cost of a network is not included.
"""

import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.child import ROOT, free_ports
from benchmarks.options import Parser, at_least, guarded
from gmmae.cli.arguments import parse_train
from gmmae.config.schema import Config
from gmmae.config.toml import find
from gmmae.multihost.distributed import join_processes
from gmmae.multihost.peers import Group
from gmmae.plotting.tables import Table, markdown
from gmmae.system.stop_reasons import EXIT_CODES, SIGTERM
from gmmae.training.records import Epoch, read_history
from gmmae.workloads.configuration import read_config

EPOCHS, AGREEMENTS, TURNS = 3, 50, 5
REDUCED = (64, 1 << 21)
"""Bytes of the all-reduces that are timed."""
STEPS = 100
"""Steps of the timed programs."""
TINY = shlex.split("""
--data.shape 8 --data.samples 128 --data.validation 32 --model.filters 2 --model.kernels 3 --model.latent-dim 4
--model.components 2 --optim.batch-size 32 --stop.target none --log.no-tensorboard
""")
FEW = ("--data.samples", "16", "--data.validation", "8", "--optim.batch-size", "8")
"""Options for few data, which hardly matter for a state."""


def main() -> None:
    """Prints the tables."""
    parser = Parser(__doc__, allow_abbrev=False)
    parser.add_argument(
        "--processes", type=at_least(1), nargs="*", default=[2, 8, 32], help="numbers of processes that train, stop and resume"
    )
    parser.add_argument(
        "--readers", type=at_least(1), nargs="*", default=[2, 8], help="numbers of processes that restore a checkpoint"
    )
    parser.add_argument("--state", default="paper", help="configuration whose state is restored")
    parser.add_argument("--measure", choices=list(MEASURES), help="for internal use")
    args, options = parser.parse_known_args()
    if args.measure:
        measure(MEASURES[args.measure], options)
        return
    read_config(find(args.state))
    with tempfile.TemporaryDirectory() as folder:
        trained = [train(count, Path(folder) / f"train_{count}") for count in args.processes]
        restored = [restore(way, count, args.state, Path(folder)) for count in args.readers for way in WAYS]
    for title, found in (("Training", trained), ("Restoring", restored)):
        if found:
            cells = tuple(tuple(map(str, each.values())) for each in found)
            print(markdown(Table("", title, tuple(found[0]), cells)))


class Run:
    """Processes of one run on this host, each on its own core if cores are given."""

    def __init__(self, count: int, *command: str, cores: Sequence[int] = ()) -> None:
        address = f"127.0.0.1:{free_ports(1)[0]}"
        place = ("--distributed.coordinator", address, "--distributed.num-processes", str(count), "--distributed.process-id")
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
        self.began = time.monotonic()
        self.processes = [
            subprocess.Popen(
                [*(("taskset", "--cpu-list", str(cores[i])) if cores else ()), sys.executable, *command, *place, str(i)],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.DEVNULL if i else subprocess.PIPE,
                text=True,
            )
            for i in range(count)
        ]

    def seconds(self) -> float:
        """Returns the seconds since the start."""
        return time.monotonic() - self.began

    def seconds_until(self, true: Callable[[], bool]) -> float:
        """Returns the seconds from the start until a condition holds."""
        while not true():
            if any(process.poll() is not None for process in self.processes):
                self.output(None)
            time.sleep(0.005)
        return self.seconds()

    def output(self, code: int | None) -> str:
        """Returns the output of process 0 when all processes have ended.

        Raises:
          SystemExit: a process has ended with another exit code.
        """
        out, _ = self.processes[0].communicate()
        codes = [process.wait() for process in self.processes]
        if set(codes) != {code}:
            raise SystemExit(f"{len(codes)} processes ended with {codes}: {out}")
        return out


def train(count: int, folder: Path) -> dict[str, object]:
    """Trains some epochs, stops all processes through the last one, and resumes for one epoch."""
    workdir = folder / "work"
    command = ("train.py", *TINY, "--workdir", str(workdir), "--stop.max-epochs")
    run = Run(count, *command, "100000")
    start_s = run.seconds_until((workdir / ".lock.owner").exists)
    epochs_s = run.seconds_until(lambda: rows(workdir) >= EPOCHS)
    run.processes[-1].send_signal(signal.SIGTERM)
    run.output(EXIT_CODES[SIGTERM])
    end_s, done = run.seconds() - epochs_s, rows(workdir)
    if not (workdir / "checkpoints" / str(done)).is_dir():
        raise SystemExit(f"{count} processes ended after epoch {done} without its checkpoint")
    again = Run(count, *command, str(done + 1)).output(0)
    if f"resumed after epoch {done}" not in again or rows(workdir) != done + 1:
        raise SystemExit(f"{count} processes did not go on after epoch {done}: {again}")
    agreement_s = ask(count, "agreement", *TINY, "--workdir", str(folder))
    return {
        "processes": count,
        "start, s": f"{start_s:.1f}",
        f"start and {EPOCHS} epochs, s": f"{epochs_s:.1f}",
        "an agreement, ms": f"{1000 * agreement_s:.1f}",
        "SIGTERM to end, s": f"{end_s:.1f}",
        "exit codes": f"{count} × {EXIT_CODES[SIGTERM]}",
        "stopped and resumed after epoch": done,
    }


def rows(workdir: Path) -> int:
    """Returns the number of epochs in the history."""
    with suppress(FileNotFoundError, TypeError, ValueError):  # not there, or in the middle of a line
        return len(read_history(workdir / "history.csv"))
    return 0


def restore(way: str, count: int, config: str, folder: Path) -> dict[str, object]:
    """Measures one way to restore a checkpoint."""
    first_s, *then_s = ask(count, way, "--config", config, *FEW, "--workdir", str(folder / f"{way}_{count}"))
    median_s = statistics.median(then_s)
    return {"processes": count, "checkpoint": WAYS[way], "first time, s": f"{first_s:.2f}", "then, s": f"{median_s:.3f}"}


def ask(count: int, *words: str, cores: Sequence[int] = ()) -> Any:
    """Returns the measurement of process 0 of several."""
    run = Run(count, "-m", "benchmarks.many_processes", "--measure", *words, cores=cores)
    return json.loads(run.output(0).splitlines()[-1])


def measure(measured: Callable[[Config, Path, Group], object], options: Sequence[str]) -> None:
    """Runs a measurement in each process and prints it in process 0."""
    config, workdir = parse_train(options, "many_processes")
    with join_processes(config, "many_processes") as group:
        found = measured(config, workdir, group)
    if group.primary:
        print(json.dumps(found), flush=True)


def agreement_s(config: Config, workdir: Path, group: Group) -> float:
    """Returns the seconds of an agreement as at an epoch's end, without the first, compiled one."""
    group.all_gather([0, 0])
    start = time.perf_counter()
    for _ in range(AGREEMENTS):
        group.all_gather([0, 0])
    return (time.perf_counter() - start) / AGREEMENTS


def reduced_s(config: Config, workdir: Path, group: Group) -> dict[str, float]:
    """Returns the seconds that an all-reduce adds to a training step by its bytes, as median of some turns.

    It stands between computations of some ten milliseconds, as in training. If each process has one core, the receiving
    thread must first take that core from the computing one. All-reduces directly after each other never wait for that.
    """
    import jax
    import jax.numpy as jnp
    from jax import lax

    from benchmarks.limits import seconds

    edge = 768  # a step of about 10 ms

    def program(reduce: bool, size: int) -> Callable[[], list[float]]:
        def step(_: object, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            matrix, vector = carry
            matrix = jnp.tanh(matrix @ matrix + vector[0])
            vector = vector + matrix[0, 0]
            return matrix, lax.pmean(vector, "devices") if reduce else vector

        def run(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
            return lax.fori_loop(0, STEPS, step, (matrix, jnp.zeros(size // 4)))

        compiled = jax.pmap(run, axis_name="devices")
        matrix = jnp.full((jax.local_device_count(), edge, edge), 1e-3)
        return partial(seconds, compiled, matrix, turns=1)

    found = {}
    for size in REDUCED:
        without, with_it = program(False, size), program(True, size)
        turns = []
        for _ in range(TURNS):
            group.barrier()
            alone = without()[0]
            group.barrier()
            turns.append((with_it()[0] - alone) / STEPS)
        found[str(size)] = statistics.median(turns)
    return found


def restoring_s(broadcast: bool, config: Config, workdir: Path, group: Group) -> list[float]:
    """Returns the seconds until all processes have a checkpoint, measured alternately."""
    from jax.experimental import multihost_utils

    from gmmae.training import compilation
    from gmmae.training.checkpoint import Checkpoint, Checkpoints, Progress, restore_epoch
    from gmmae.workloads import registry

    folder = workdir / "checkpoints"
    like = compilation.blank_state(config, registry.build(config))
    if group.primary:
        row = Epoch(1, 1, 1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
        Checkpoints(folder, keep=1).save(Checkpoint(like, like.params, Progress([row], {}, 1, [])))
    times = []
    for _ in range(1 + TURNS):
        group.barrier()
        start = time.perf_counter()
        found = restore_epoch(folder, 1, like) if group.primary or not broadcast else None
        if broadcast:
            arrays = (found.state, found.best) if found else (like, like.params)
            multihost_utils.broadcast_one_to_all(arrays)
            group.broadcast_from_root(found.progress if found else None)
        group.barrier()
        times.append(time.perf_counter() - start)
    return times


WAYS = {"read": "all read it", "broadcast": "process 0 reads and broadcasts it"}
MEASURES = {
    "agreement": agreement_s,
    "reduce": reduced_s,
    "read": partial(restoring_s, False),
    "broadcast": partial(restoring_s, True),
}


if __name__ == "__main__":
    guarded(main)

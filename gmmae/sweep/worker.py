"""The program of a sweep's workers: it computes the runs of a sweep that nobody has begun, one after the other.

The lock of a run is the queue: several workers, on several hosts that share the folder, divide the runs among themselves. Each
keeps its data and compiled programs from run to run. A crash ends this process, and another is started.

    python -m gmmae.sweep.worker runs ROOT NAMES.txt            # the runs that a file names, a line each
    python -m gmmae.sweep.worker run ROOT NAME                  # one run, by several processes that work together
    python -m gmmae.sweep.worker times ROOT DEVICES REQUEST     # step times that a JSON text requests
"""

import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gmmae.config.schema import Config
from gmmae.multihost import launchers
from gmmae.multihost.distributed import join_processes
from gmmae.sweep.grid import RunKey, SweepConfig, read_sweep, run_config
from gmmae.sweep.runs import CRASHED, REPLACE, TIMED_OUT, BusyError, Failure, SweepDir
from gmmae.system.errors import StorageError, raise_interrupted
from gmmae.system.garbage import no_collection_of_imports
from gmmae.system.guard import as_input_error, guarded
from gmmae.system.null_object import IDLE
from gmmae.system.stop_reasons import EXIT_CODES, INTERRUPTED, SIGTERM
from gmmae.training.records import Record
from gmmae.training.terminal import Plain, standard_output
from gmmae.training.workdir import storage

MAX_GROWTH_BYTES = 2 * 2**30
"""How much more memory than after its first run a worker may have, before it asks to be replaced."""

GRACE_S = 30
"""How long after its time limit a run may end its epoch."""

Train = Callable[[Config, Path], Record]


def compute(root: Path, names: Sequence[str], train: Train) -> int:
    """Computes those runs that have no end yet and are not held by another worker.

    Returns the exit code: 0 where there is nothing left to begin, `REPLACE`, or 143, 130 or 129 when interrupted.
    """
    folder = SweepDir(root)
    config, cwd = read_sweep(folder.config), os.getcwd()
    most: float | None = None
    for name in names:
        if folder.ended(name, config.run.stop):
            continue
        try:
            with folder.turn(name):
                if folder.ended(name, config.run.stop) or not folder.begin(name):
                    continue
                os.chdir(cwd)  # paths are relative to it, and a workload may have left it
                code = _compute(config, folder, name, train, alone=most is None)
                if code is None and not folder.ended(name, config.run.stop):
                    folder.write(folder.failure(name), Failure(CRASHED, f"it left no record of its end ({folder.log(name)})"))
        except BusyError:
            continue
        if code is not None:
            return code
        gc.collect()  # what is left of a run holds no memory during the next one
        if most is None:
            gc.freeze()  # modules need not be looked at again, which takes 0.1 s
            most = resident_bytes() + MAX_GROWTH_BYTES
        elif resident_bytes() > most:
            return REPLACE
    return 0


def _compute(config: SweepConfig, folder: SweepDir, name: str, train: Train, alone: bool) -> int | None:
    """The exit code with which this process ends; None: it goes on. `alone`: no other run has taken memory in it."""
    key, log, attempt = RunKey.named(name), folder.log(name), folder.attempt(name)
    assert key is not None
    with storage(folder.root):
        send_output_to(log)
    failure, reason = None, None
    with _time_limit(config.run_time_limit_s, folder, name) as passed:
        try:
            reason = train(run_config(config, key), folder.run(name).root).stop_reason
        except KeyboardInterrupt:
            if not passed.is_set():
                attempt.unlink(missing_ok=True)
            raise
        except Exception as error:
            known = as_input_error(error)
            if known is None or isinstance(known, StorageError):
                raise
            print(f"error: {known}", file=sys.stderr)
            if known is not error and not alone:  # memory was full, maybe because of earlier runs
                attempt.unlink()
                return REPLACE
            failure = Failure(CRASHED, f"exit code {known.exit_code}: error: {known} ({log})")
    if reason in INTERRUPTED:
        if not passed.is_set():
            attempt.unlink()
            return EXIT_CODES[reason]
        failure = Failure(TIMED_OUT, f"ended after its time limit of {config.run_time_limit_s:.10g} s ({log})")
    if failure:
        folder.write(folder.failure(name), failure)
    attempt.unlink()
    return None


@contextmanager
def _time_limit(seconds: float | None, folder: SweepDir, name: str) -> Iterator[threading.Event]:
    """Sets the event and asks the run to end at its time limit. A run that goes on is killed `GRACE_S` later."""
    passed, done = threading.Event(), threading.Event()

    def watch() -> None:
        if done.wait(seconds):
            return
        passed.set()
        how = f"killed after its time limit of {seconds:.10g} s ({folder.log(name)})"
        if attempt := folder.read_attempt(name):
            folder.write(folder.attempt(name), attempt._replace(timed_out=True, how=how))
        os.kill(os.getpid(), signal.SIGTERM)
        if not done.wait(GRACE_S):
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield passed
    finally:
        done.set()


def compute_together(root: Path, name: str, train: Train) -> int:
    """Computes a run as one of several processes, of which the first notes its beginning and its end."""
    config, key = read_sweep(SweepDir(root).config), RunKey.named(name)
    assert key is not None
    run = run_config(config, key)
    place = launchers.find(run.distributed, os.environ)
    if place is None or place.process_id == 0:
        return compute(root, [name], train)
    reason = train(run, SweepDir(root).run(name).root).stop_reason
    return EXIT_CODES[reason or SIGTERM]


def trainer() -> Train:
    """Trains as `train.py` does, with plain output. JAX is imported at the first run, after the processes have joined."""
    cache: list[object] = []

    def train(config: Config, root: Path) -> Record:
        with join_processes(config) as group:
            with no_collection_of_imports():
                from gmmae.training.loop import run
                from gmmae.training.preparation import prepare

            if not cache:
                setup = prepare(config)
                SweepDir(root.parents[1]).require_same(config, setup.fingerprint)
                cache.append(setup.cache)
            display = Plain(standard_output()) if group.primary else IDLE
            return run(config, root, display, group, cache[0])  # pyright: ignore[reportArgumentType]

    return train


def measure_times(root: Path, devices: int, request: str) -> int:
    """Measures step times. `request` is JSON of the batches of `training` and the counts of `validation`."""
    folder, asked = SweepDir(root), json.loads(request)
    config = read_sweep(folder.config)
    send_output_to(folder.log(folder.step_times(devices).stem))
    # Weak scaling has a sample for every device. The request, not this batch, is timed.
    measured = SweepConfig(mode="measured", run=config.run)
    with join_processes(run := run_config(measured, RunKey("weak", devices, config.seeds[0]))) as group:
        from gmmae.sweep.step_times import write
        from gmmae.sweep.throughput import measure
        from gmmae.training.preparation import prepare

        setup = prepare(run)
        folder.require_same(run, setup.fingerprint)
        timings = measure(setup, asked["training"], asked.get("validation", ()), config.timing)
    if group.primary:
        folder.step_times(devices).parent.mkdir(exist_ok=True)
        write(folder.step_times(devices), timings)
    return 0


def send_output_to(log: Path) -> None:
    """Appends what this process prints from now on."""
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def resident_bytes() -> int:
    """The memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(arguments: Sequence[str], train: Train | None = None) -> int:
    """Runs one of the commands."""
    # Slurm may send it to all processes of a job. Only the parent handles it, and then sends SIGTERM.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, raise_interrupted)  # while no run handles it

    def end_with_parent() -> None:
        """Even by SIGKILL: then the standard input, a pipe, ends."""
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()
    command, root, *rest = arguments
    if command == "runs":
        names = Path(rest[0]).read_text(encoding="utf-8").split()
        return guarded(compute, Path(root), names, train or trainer())
    if command == "run":
        return guarded(compute_together, Path(root), rest[0], train or trainer())
    return guarded(measure_times, Path(root), int(rest[0]), rest[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

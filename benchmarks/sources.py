"""Training with samples from a source: throughput beside arrays, memory, and the threads beside google/grain's.

`speed` trains quickstart.toml on one device. `memory` trains on a file ten times as large as the limit of the process's memory.
`threads` needs `pip install grain`.

    python benchmarks/sources.py speed
"""

import resource
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.options import Parser, guarded
from gmmae.config.schema import ParallelConfig
from gmmae.system.errors import InputError

EPOCHS = 12
WAITS_MS = (None, 0.0, 1.0, 5.0, 20.0)
LIMIT_BYTES = 2**30
LARGE_SHAPE = (64, 64, 64)
SAMPLES = 20_000
MEMORY_WORKLOAD = Path(__file__).with_name("large_file.py")


def speed() -> None:
    """Prints the seconds of an epoch with its validation. The epochs of all alternate, because other programs disturb them."""
    from gmmae.training import compilation, programs
    from gmmae.training.fetching import Fetcher
    from gmmae.workloads.configuration import configure

    trained: dict[float | None, list[Any]] = {}
    seconds: dict[float | None, list[float]] = {wait_ms: [] for wait_ms in WAITS_MS}
    with ExitStack() as stack:
        samples = 0
        for wait_ms in WAITS_MS:
            workload = str(Path(__file__).with_name("slow_source.py"))
            setup = compilation.prepare(configure("quickstart", workload=workload, wait_ms=wait_ms, parallel__devices=1))
            fetcher = stack.enter_context(Fetcher(setup.config.parallel))
            state = setup.devices.replicate(compilation.initial_state(setup))
            train = programs.train_epoch(setup, state, fetcher)
            trained[wait_ms] = [state, train, programs.validation(setup, state.params, fetcher)]
            samples = setup.train_plan.samples + setup.eval_plan.samples
        for epoch in range(1, 1 + EPOCHS):
            for wait_ms, (state, train, evaluate) in trained.items():
                began = time.perf_counter()
                trained[wait_ms][0], _ = train(state, epoch)
                evaluate(trained[wait_ms][0].params)
                seconds[wait_ms].append(time.perf_counter() - began)
    print("| wait for each sample, ms | fastest epoch, s | median, s | samples per second | reading alone allows |")
    print("|---|---|---|---|---|")
    for wait_ms, of_epochs in seconds.items():
        fastest, median = min(of_epochs[1:]), float(np.median(of_epochs[1:]))
        allowed = f"{1e3 * ParallelConfig().fetch_threads / wait_ms:.0f}" if wait_ms else ""
        name = "arrays" if wait_ms is None else f"{wait_ms:g}"
        print(f"| {name} | {fastest:.2f} | {median:.2f} | {samples / fastest:.0f} | {allowed} |")


def memory() -> None:
    """Trains an epoch on a file of ten times the limit of the process's memory, and then tries the same with arrays."""
    samples = 10 * LIMIT_BYTES // (4 * int(np.prod(LARGE_SHAPE)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "volumes.npy"
        volumes = np.lib.format.open_memmap(path, "w+", np.float32, (samples, *LARGE_SHAPE))
        rng = np.random.default_rng(0)
        for index in range(samples):
            volumes[index] = rng.standard_normal(LARGE_SHAPE, np.float32) + index / samples
        volumes.flush()
        del volumes
        print(
            f"{samples} volumes, {path.stat().st_size / 2**30:.1f} GiB; limit of memory {LIMIT_BYTES / 2**30:g} GiB", flush=True
        )
        resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES))
        for arrays in (False, True):
            try:
                print(_train_large(path, Path(folder) / str(arrays), arrays), flush=True)
            except (MemoryError, InputError) as error:
                print(f"arrays: {type(error).__name__}: {' '.join(str(error).split())[:100]}")


def _train_large(path: Path, workdir: Path, arrays: bool) -> str:
    from gmmae.training.trained import train
    from gmmae.workloads.configuration import configure

    config = configure(
        "",
        workload=str(MEMORY_WORKLOAD),
        volumes=str(path),
        arrays=arrays,
        stop__max_epochs=2,
        parallel__devices=1,
        log__tensorboard=False,
    )
    record = train(config, workdir, quiet=True)
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    losses = f"training loss {record.final_train_loss:.4g}, validation loss {record.final_val_loss:.4g}"
    sizes = f"data segment {_status('VmData') / 2**20:.2f} GiB, resident at most {peak_gib:.2f} GiB with pages of the file"
    return f"{record.epochs} epochs in {record.clocks['train_s']:.0f} s, {losses}; {sizes}"


def _status(name: str) -> int:
    """Returns a number of kilobytes in this process's status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def threads() -> None:
    """Prints how many samples threads read per second, and the CPU time of each."""
    import grain  # pyright: ignore[reportMissingImports]

    from gmmae.training.fetching import Fetcher
    from gmmae.workloads.sources import CheckedSource

    volumes = np.random.default_rng(0).random((256, 16, 16, 16), np.float32)
    order = np.random.default_rng(0).permutation(SAMPLES).astype(np.int32)
    print("| wait, ms | threads of | samples per second | CPU for each sample, ms |\n|---|---|---|---|")
    for wait_s, count in ((0.0, SAMPLES), (0.001, 8000), (0.005, 3200), (0.02, 800)):

        class Source:
            def __len__(self) -> int:
                return SAMPLES

            def __getitem__(self, index: int, wait_s: float = wait_s) -> np.ndarray:
                if wait_s:
                    time.sleep(wait_s)
                return volumes[index % len(volumes)]

        source = CheckedSource(Source(), "the samples")

        def ours(source: CheckedSource = source, count: int = count) -> None:
            with Fetcher(ParallelConfig()) as fetcher:
                fetcher.take(source, source.first, order[:count])

        def grains(source: CheckedSource = source, count: int = count) -> None:
            read = grain.MapDataset.source(order[:count]).map(lambda index: source[int(index)])
            block = np.zeros((count, 16, 16, 16), np.float32)
            options = grain.ReadOptions(num_threads=ParallelConfig().fetch_threads, prefetch_buffer_size=512)
            for row, sample in enumerate(read.to_iter_dataset(options)):
                block[row] = sample

        for name, read in (("gmmae", ours), ("grain", grains)):
            wall_s, cpu_s = _timed(read)
            print(f"| {1e3 * wait_s:g} | {name} | {count / wall_s:.0f} | {1e3 * cpu_s / count:.3f} |", flush=True)


def _timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Returns the seconds of a call, of the clock and of the CPU."""
    began, cpu_began = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began, time.process_time() - cpu_began


PARTS = {"speed": speed, "memory": memory, "threads": threads}


def main() -> None:
    """Parses the command line and runs a part."""
    parser = Parser(__doc__)
    parser.add_argument("part", choices=PARTS)
    PARTS[parser.parse_args().part]()


if __name__ == "__main__":
    guarded(main)

"""Lists the GPUs that JAX sees, and times their memory and the all-reduce between every two of them.

python -m benchmarks.gpu_links devices      # driver, CUDA, what JAX sees; exit code 1 where that is no GPU
python -m benchmarks.gpu_links pairs        # each GPU's memory, each pair and all together
"""

import itertools
import subprocess
from collections.abc import Sequence

import jax
import numpy as np

from benchmarks.limits import seconds
from benchmarks.options import Parser, guarded
from gmmae.plotting.tables import table
from gmmae.system import nvidia
from gmmae.system.provenance import versions
from gmmae.training.parallel import Devices
from gmmae.training.step import pmean

COPIED = 1 << 28
"""Bytes of the array whose copy is timed."""
REDUCED = (1 << 21, 1 << 26)
"""Bytes of a gradient and of a large array."""
TURNS, BLOCKS = 20, 7
REDUCTIONS = 200
"""All-reduces of a compiled loop, beside which its dispatch is short."""


def driver() -> str:
    """Returns the driver's report of itself, its GPUs and their links, or a line if there is none."""
    found = []
    for words in (
        ("--query-gpu=name,driver_version,memory.total,clocks.max.sm,pcie.link.gen.max", "--format=csv"),
        ("topo", "-m"),
    ):
        try:
            done = subprocess.run(("nvidia-smi", *words), capture_output=True, text=True, timeout=30, check=True)
            found.append(done.stdout.rstrip())
        except FileNotFoundError:
            return "nvidia-smi: not there, so no NVIDIA driver is installed"
        except subprocess.SubprocessError as error:
            found.append(f"nvidia-smi {words[0]}: {error}")
    return "\n\n".join(found)


def bandwidth(device: jax.Device, size: int) -> float:  # pyright: ignore[reportInvalidTypeForm]
    """Returns the bytes a second that a copy reads and writes."""
    x = jax.device_put(np.zeros(size // 4, np.float32), device)
    return 2 * size / min(seconds(jax.jit(lambda x: x + 1), x, turns=TURNS))


def all_reduce_s(group: Sequence[jax.Device], size: int) -> float:  # pyright: ignore[reportInvalidTypeForm]
    """Returns the seconds in which devices average vectors of `size` bytes."""
    devices = Devices(tuple(group))

    def loop(vector: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, REDUCTIONS, lambda _, x: pmean(x), vector)

    rows = devices.shard(np.repeat(np.arange(devices.count, dtype=np.float32)[:, None], size // 4, axis=1))
    return float(np.median(seconds(devices.compile(loop, rows, sharded=1), rows, turns=BLOCKS))) / REDUCTIONS


def pairs_table(gpus: Sequence[jax.Device], sizes: Sequence[int]) -> str:  # pyright: ignore[reportInvalidTypeForm]
    """Returns the table of each pair, and of all devices together."""
    groups = [*itertools.combinations(gpus, 2), *([tuple(gpus)] if len(gpus) > 2 else [])]
    rows = []
    for group in groups:
        times = (f"{1e6 * all_reduce_s(group, size):.0f}" for size in sizes)
        rows.append((" and ".join(str(device.id) for device in group), *times))
    title = f"All-reduce inside a compiled loop, µs, the median of {BLOCKS} blocks"
    return table(("GPUs", *(f"{size / 1e6:.1f} MB" for size in sizes)), rows, title)


def main() -> None:
    """Prints the devices or the pairs."""
    parser = Parser(__doc__)
    parser.add_argument("what", choices=["devices", "pairs"])
    args = parser.parse_args()
    gpus = [device for device in jax.devices() if device.platform != "cpu"]
    if args.what == "devices":
        gpu = nvidia.find()
        print(f"```\n{driver()}\n```\n\n{', '.join(f'{name} {version}' for name, version in versions().items())}\n")
        print(f"JAX sees {len(jax.devices())} × {jax.devices()[0].device_kind}")
        if not gpus:
            raise SystemExit(f"JAX sees no GPU: {gpu.remedy if gpu else 'nvidia-smi lists none'}")
        return
    if not gpus:
        raise SystemExit("JAX sees no GPU")
    rows = [(str(device.id), f"{bandwidth(device, COPIED) / 1e9:.0f}") for device in gpus]
    print(table(("GPU", "copy"), rows, "Memory, GB/s, reading and writing"), end="\n\n")
    if len(gpus) > 1:
        print(pairs_table(gpus, REDUCED))
    else:
        print("One GPU: there is no pair.")


if __name__ == "__main__":
    guarded(main)

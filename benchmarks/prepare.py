"""Times the extraction of full-size scans in a LUNA16-shaped folder, with its memory and the share of reading.

    python benchmarks/prepare.py [--folder DIR] [--scans 40] [--workers 2] [--compressed] [--keep]

It writes 40 scans of 512 × 512 × 200 int16 (105 MB each) with 3 annotated nodules each. By default they lie in a temporary
folder, which needs 4.2 GB, or 2.2 GB compressed. It drops them from the page cache and runs
`gmmae.data.extraction.prepare.load` in a fresh process, then in another. Memory is the sum of the resident sizes of that
process and its workers, sampled every 10 ms. Shared pages count several times, so it is an upper bound.

Results on 2 cores of a shared CPU machine stand in MEASUREMENT.md.
"""

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from benchmarks.options import Parser, at_least, guarded, new_folder

SHAPE = (200, 512, 512)
SPACING_MM = (0.7, 0.7, 1.25)
NODULES = 3

LOAD = """
import json, sys, time
start = time.perf_counter()
from gmmae.data.settings import DataConfig
from gmmae.data.extraction.prepare import load, prepare
config = DataConfig(source="luna16", root=sys.argv[1], cache=sys.argv[2], workers=int(sys.argv[3]))
imported = time.perf_counter()
nodules = load(config)
loaded = time.perf_counter()
print(json.dumps({"nodules": len(nodules.values), "import_s": imported - start, "load_s": loaded - imported,
                  **prepare(config).summary["seconds"]}))
"""


def make(root: Path, scans: int, compressed: bool) -> None:
    """Writes scans of noise with bright balls at known positions. The last bits of a CT do not compress."""
    rng = np.random.default_rng(0)
    slab = rng.normal(-850, 25, (25, *SHAPE[1:])).astype(np.int16)
    ball = (np.indices((17, 17, 17)) - 8) ** 2
    rows = []
    for i in range(scans):
        voxels = np.concatenate([np.roll(slab, 37 * (8 * i + k), 1 + k % 2) for k in range(SHAPE[0] // len(slab))])
        origin = rng.uniform(-300, -100, 3)
        for place in rng.integers(20, np.array(SHAPE[::-1]) - 20, (NODULES, 3)):
            x, y, z = place
            voxels[z - 8 : z + 9, y - 8 : y + 9, x - 8 : x + 9][ball.sum(0) < 36] = 40
            rows.append([f"scan{i:03d}", *(origin + place * SPACING_MM), 8.4])
        image = sitk.GetImageFromArray(voxels)
        image.SetSpacing(SPACING_MM)
        image.SetOrigin(origin.tolist())
        folder = root / f"subset{i % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        sitk.WriteImage(image, str(folder / f"scan{i:03d}.mhd"), compressed)
    with (root / "annotations.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["seriesuid", "coordX", "coordY", "coordZ", "diameter_mm"], *rows])


def drop_from_page_cache(root: Path) -> None:
    """Drops the files of a folder from the page cache."""
    for path in root.rglob("scan*"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def resident_bytes(process: int) -> int:
    """Returns the resident bytes of a process and its descendants."""
    total = 0
    try:
        total += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        for task in Path(f"/proc/{process}/task").iterdir():
            total += sum(resident_bytes(int(child)) for child in (task / "children").read_text().split())
    except (OSError, ValueError):
        pass
    return total


def run(root: Path, cache: Path, workers: int) -> dict[str, float]:
    """Runs the extraction in its own process and returns its time and memory."""
    command = [sys.executable, "-c", LOAD, str(root), str(cache), str(workers)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    peak = 0
    while process.poll() is None:
        peak = max(peak, resident_bytes(process.pid))
        time.sleep(0.01)
    assert process.stdout is not None
    result = json.loads(process.stdout.read())
    return {**result, "wall_s": time.perf_counter() - start, "peak_mb": peak / 1e6}


def main() -> None:
    """Prints the measurement."""
    parser = Parser(__doc__)
    parser.add_argument("--folder", type=new_folder, help="folder for the scans; default: a temporary one")
    parser.add_argument("--scans", type=at_least(1), default=40)
    parser.add_argument("--workers", type=at_least(1), default=2)
    parser.add_argument("--compressed", action="store_true", help="write .zraw rather than .raw")
    parser.add_argument("--keep", action="store_true", help="keep the scans for the next call")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp())
    root = folder / ("zraw" if arguments.compressed else "raw")
    cache = folder / "cache"
    try:
        if not (root / "annotations.csv").exists():
            make(root, arguments.scans, arguments.compressed)
        drop_from_page_cache(root)
        shutil.rmtree(cache, ignore_errors=True)
        first = run(root, cache, arguments.workers)
        second = run(root, cache, arguments.workers)
        kind = "compressed" if arguments.compressed else "raw"
        print(
            f"{arguments.scans} {kind} scans, {first['nodules']:.0f} nodules, {arguments.workers} workers: "
            f"{first['total_s']:.2f} s, {arguments.scans / first['total_s']:.1f} scans/s, {first['read_share']:.0%} of the "
            f"workers' time reading, peak {first['peak_mb']:.0f} MB"
        )
        print(
            f"second call: {second['load_s']:.3f} s, {second['wall_s']:.2f} s with starting Python and imports, "
            f"peak {second['peak_mb']:.0f} MB"
        )
    finally:
        if not arguments.keep:
            shutil.rmtree(root, ignore_errors=True)
            shutil.rmtree(cache, ignore_errors=True)
            if arguments.folder is None:
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    guarded(main)

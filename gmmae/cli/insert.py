"""`gmmae insert`: put nodules into CT scans."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from gmmae.cli.arguments import MISSING, Folder, Scans, parse
from gmmae.config.rules import Options, Seed, between, increasing
from gmmae.data.settings import Crop, DataConfig
from gmmae.system.files import print_result, require_free

Counts = Annotated[tuple[int, int], increasing(1, 1000)]


@dataclass(frozen=True)
class InsertArguments(Options):
    """Put nodules, generated or real, into scans shaped like LUNA16's, with annotations, masks and boxes."""

    nodules: Folder  # cubes with masks and a nodules.csv
    scans: Scans  # .mhd scans, in subset*/ or directly; they are left as they are
    out: Path  # the folder to write; empty or new
    per_scan: Counts = (1, 3)  # the fewest and the most nodules in a scan
    blending: Literal["poisson", "alpha"] = "poisson"  # method that blends nodules into the lung around them
    seed: Seed = 0  # random seed of the places
    crop: Crop = "1.25x"  # side length of the cubes, as data.crop; generated ones are 1.25x
    size: Annotated[int, between(4, 512)] = 32  # voxels along each axis of a cube
    cache: str = "auto"  # folder of extracted cubes; auto: gmmae in the user's cache folder


def command(arguments: Sequence[str], prog: str) -> int:
    """Inserts the nodules, and prints a summary. Returns the exit code."""
    options = parse(InsertArguments(MISSING, MISSING, MISSING), arguments, prog)
    require_free(options.out)
    from gmmae.data.extraction.prepare import SUMMARY, load_prepared, prepare, say_on_stderr
    from gmmae.data.extraction.summary import fault_lines
    from gmmae.generation.insertion.insert import insert

    cache = "" if options.cache == "auto" else options.cache
    config = DataConfig(
        source="cubes", root=str(options.nodules), crop=options.crop, shape=options.size, padding="replicate", cache=cache
    )
    prepared = prepare(config, say_on_stderr)
    nodules, _ = load_prepared(prepared)
    summary = insert(nodules, options.scans, options.out, options.seed, options.blending, say_on_stderr, options.per_scan)
    print_result(options.out, [*fault_lines(prepared.summary, str(prepared.folder / SUMMARY)), *summary.lines()])
    return 0

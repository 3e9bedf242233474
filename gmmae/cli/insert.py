"""`gmmae insert`: nodules of a folder of cubes, put into a folder of scans."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from gmmae.cli.arguments import MISSING, Folder, Scans, parse
from gmmae.config.rules import Options, Seed, between, increasing
from gmmae.data.settings import Crop
from gmmae.system.files import require_free, tell

Counts = Annotated[tuple[int, int], increasing(1, 1000)]


@dataclass(frozen=True)
class InsertArguments(Options):
    """Put nodules, generated or real, into scans shaped like LUNA16's, with annotations, masks and boxes."""

    nodules: Folder  # cubes with masks and a nodules.csv
    scans: Scans  # .mhd scans, in subset*/ or directly; they are left as they are
    out: Path  # the folder to write; empty, or made
    per_scan: Counts = (1, 3)  # the fewest and the most nodules that a scan gets
    blending: Literal["poisson", "alpha"] = "poisson"  # how nodules pass into the lung around them
    seed: Seed = 0  # another seed, other places
    crop: Crop = "1.25x"  # size of the cubes: as data.crop; generated ones are 1.25x
    size: Annotated[int, between(4, 512)] = 32  # voxels along each edge of a cube
    cache: str = ""  # folder of extracted cubes; empty: gmmae in the user's cache folder


def command(arguments: Sequence[str], prog: str) -> int:
    """Inserts, and says what came of it. Returns the exit code."""
    parsed = parse(InsertArguments(MISSING, MISSING, MISSING), arguments, prog)
    require_free(parsed.out)
    from gmmae.data.extraction.prepare import SUMMARY, load_prepared, prepare, say_on_stderr
    from gmmae.data.extraction.summary import fault_lines
    from gmmae.data.settings import DataConfig
    from gmmae.generation.insertion.insert import insert

    config = DataConfig(
        source="cubes",
        root=str(parsed.nodules),
        crop=parsed.crop,
        shape=parsed.size,
        padding="replicate",
        cache=parsed.cache,
    )
    prepared = prepare(config, say_on_stderr)
    nodules, details = load_prepared(prepared)
    summary = insert(nodules, details, parsed.scans, parsed.out, parsed.seed, parsed.blending, say_on_stderr, parsed.per_scan)
    tell(parsed.out, [*fault_lines(prepared.summary, str(prepared.folder / SUMMARY)), *summary.lines()])
    return 0

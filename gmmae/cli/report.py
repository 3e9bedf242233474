"""`gmmae report`: write the tables, figures and page of a sweep."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gmmae.cli.arguments import MISSING, Folder, parse, read_sweep
from gmmae.config.rules import Options
from gmmae.config.toml import find
from gmmae.scaling.cost import read_cluster
from gmmae.sweep.runs import SweepDir
from gmmae.system.errors import InputError


@dataclass(frozen=True)
class ReportArguments(Options):
    """Write a sweep's tables, figures and verdict, finished or not."""

    root: Folder  # the work directory of a sweep that you trust: the Python that it names is executed
    clusters: tuple[str, ...] = ()  # TOML files, or names of those in configs/clusters, projected to; default: the sweep's
    plan: Path | None = None  # plan.json of `gmmae plan`, shown beside the outcome; default: that of the sweep's folder


def command(arguments: Sequence[str], prog: str) -> int:
    """Writes the report, and prints its files. Returns the exit code."""
    options = parse(ReportArguments(MISSING), arguments, prog)
    path = SweepDir(options.root).config
    if not path.is_file():
        raise InputError(f"FOLDER must be the work directory of a sweep; got {options.root}, which has no {path.name}")
    config = read_sweep(path)
    clusters = [read_cluster(find(name, "clusters")) for name in options.clusters or config.clusters]
    from gmmae.planner.outcome import write_report

    print(*write_report(config, options.root, clusters, options.plan), sep="\n")
    return 0

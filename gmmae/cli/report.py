"""`gmmae report`."""

from gmmae.cli.arguments import read_sweep
from gmmae.cli.options import ReportArguments
from gmmae.scaling.cost import read_cluster
from gmmae.sweep.report import page
from gmmae.sweep.runs import SweepDir
from gmmae.system.errors import InputError


def command(options: ReportArguments) -> None:
    """Writes the report, and prints its files."""
    path = SweepDir(options.root).config
    if not path.is_file():
        raise InputError(f"FOLDER must be the work directory of a sweep; got {options.root}, which has no {path.name}")
    config = read_sweep(path)
    clusters = list(map(read_cluster, options.clusters or config.clusters))
    print(*page.write(config, options.root, clusters, options.plan), sep="\n")

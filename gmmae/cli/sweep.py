"""`gmmae sweep`."""

from pathlib import Path

from gmmae.plotting.tables import text_table
from gmmae.scaling.cost import read_cluster
from gmmae.sweep import engine
from gmmae.sweep.display import SweepDisplay
from gmmae.sweep.grid import SweepConfig, dry_run, left_out
from gmmae.sweep.report import page
from gmmae.training import fingerprint
from gmmae.training.terminal import standard_output


def command(config: SweepConfig, workdir: Path, only_print: bool, retry: bool, verbose: bool = False) -> int:
    """Runs the missing runs of a sweep, then writes its report."""
    clusters = list(map(read_cluster, config.clusters))
    # The process that starts Slurm's jobs needs no data, but for the grid.
    loads = only_print or config.mode == "virtual" or config.executor == "processes"
    known = fingerprint.load(config.run) if loads else None
    samples = known.samples if known else 0
    if only_print:
        columns, *rows = dry_run(config, samples)
        print(text_table(columns, rows), *left_out(config), sep="\n")
        return 0
    display = SweepDisplay(standard_output(), verbose)
    references = {cluster.reference_batch for cluster in clusters if cluster.reference_step_s}
    code = engine.sweep(config, workdir, display, samples=samples, data=known, retry=retry, reference_batches=references)
    if not engine.interrupted(code):
        paths = page.write(config, workdir, clusters)
        for name, path in zip(("report", "as Markdown", "TensorBoard"), paths, strict=False):  # the last may be missing
            display.say(f"{name:<11}  {path}")
    return code

"""`gmmae sweep`: compare scaling strategies over device counts and seeds."""

from collections.abc import Sequence

from gmmae.cli.arguments import parse_sweep
from gmmae.config.toml import find
from gmmae.scaling.cost import read_cluster


def command(arguments: Sequence[str], prog: str) -> int:
    """Runs the missing runs of a sweep, then writes its report. Returns the exit code."""
    options = parse_sweep(arguments, prog)
    config = options.config
    clusters = [read_cluster(find(name, "clusters")) for name in config.clusters]
    from gmmae.sweep.display import grid_table, sweep_display
    from gmmae.workloads.registry import training_samples

    samples = training_samples(config.run) if options.dry_run or config.mode == "virtual" else 0
    if options.dry_run:
        from gmmae.sweep.grid import dry_run, left_out

        print(grid_table(dry_run(config, samples)), *left_out(config), sep="\n")
        return 0
    from gmmae.sweep import engine

    display = sweep_display()
    references = {cluster.reference_batch for cluster in clusters}
    code = engine.sweep(config, options.workdir, display, samples=samples, retry=options.retry, reference_batches=references)
    if not engine.interrupted(code):
        from gmmae.planner.outcome import write_report

        for path in write_report(config, options.workdir, clusters):
            display.say(str(path))
    return code

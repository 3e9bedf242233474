"""`gmmae plan`: predict the fastest scaling strategy from runs on one device."""

from pathlib import Path

from gmmae.cli.options import PlanArguments
from gmmae.config.rules import require
from gmmae.config.schema import Config, changed
from gmmae.config.toml import find
from gmmae.multihost.distributed import join_processes
from gmmae.planner import page
from gmmae.planner.measure import PlanRequest, measure
from gmmae.planner.measurements import PlanInterruptedError, claimed
from gmmae.scaling.cost import all_reduce_s, read_cluster
from gmmae.system.stop_reasons import EXIT_CODES
from gmmae.training import terminal


def command(options: PlanArguments, config: Config, name: str) -> int:
    """Measures, prints the answer, writes the page. Returns the exit code."""
    clusters = [read_cluster(find(cluster, "clusters")) for cluster in options.clusters]
    names = {cluster.name for cluster in clusters}
    require(bool(names) and len(names) == len(clusters), "clusters", "one or more of different names", options.clusters)
    for cluster in clusters:
        all_reduce_s(cluster, max(options.devices), 1.0)  # refuses an unknown link before anything is measured
    root = options.workdir or Path("runs") / f"plan_{name}"
    config = changed(config, parallel__devices=1, parallel__simulate_devices=None, distributed__auto=False)
    unscaled = [cluster for cluster in clusters if cluster.reference_step_s and options.scale_compute is None]
    references = {cluster.reference_batch for cluster in unscaled}
    request = PlanRequest(options.devices, references)
    if config.scaling not in (planned := page.planned_strategies()):
        print(f"a plan predicts {', '.join(planned)}; {config.scaling} is left out", flush=True)
    with join_processes(config), claimed(root) as folder:
        try:
            measurements = measure(config, folder, terminal.display, request)
        except PlanInterruptedError as error:
            print("interrupted; the same command goes on where it was", flush=True)
            return EXIT_CODES[str(error)]
        lines = page.write(
            root, name, measurements, clusters, options.devices, options.scale_compute, precision=config.precision
        )
    print(*lines, sep="\n")
    return 0

"""`gmmae plan`."""

from pathlib import Path

from gmmae.cli.options import PlanArguments
from gmmae.config.rules import require
from gmmae.config.schema import Config, changed
from gmmae.multihost.distributed import join_processes
from gmmae.planner import page, prediction
from gmmae.planner.measure import measure
from gmmae.planner.measurements import PlanInterruptedError, claimed
from gmmae.scaling.cost import all_reduce_s, read_cluster
from gmmae.system.stop_reasons import EXIT_CODES
from gmmae.training import terminal


def command(options: PlanArguments, config: Config, name: str) -> int | None:
    """Measures, prints the answer, writes the page."""
    clusters = list(map(read_cluster, options.clusters))
    require(len({cluster.name for cluster in clusters}) == len(clusters), "clusters", "of different names", options.clusters)
    for cluster in clusters:
        all_reduce_s(cluster, max(options.devices), 1.0)  # refuses an unknown link before anything is measured
    root = options.workdir or Path("runs") / f"plan_{name}"
    config = changed(config, parallel__devices=1, parallel__simulate_devices=None, distributed__auto=False)
    if config.scaling not in (names := prediction.planned_strategies()):
        print(f"a plan predicts {', '.join(names)}; {config.scaling} is left out", flush=True)
    with join_processes(config), claimed(root):
        try:
            plan = measure(name, config, root, terminal.display, options.devices, clusters, options.scale_compute)
        except PlanInterruptedError as error:
            print("interrupted; the same command goes on where it was", flush=True)
            return EXIT_CODES[str(error)]
        lines = page.write(root, plan)
    print(*lines, sep="\n")

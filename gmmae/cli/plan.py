"""`gmmae plan`."""

from pathlib import Path

from gmmae.cli.options import PlanArguments
from gmmae.config.rules import require
from gmmae.config.schema import Config, changed
from gmmae.multihost.distributed import join_processes
from gmmae.planner import page, prediction
from gmmae.planner.answer import Plan
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
            found = measure(config, root, terminal.display, options.devices, clusters, options.scale_compute)
        except PlanInterruptedError as error:
            print("interrupted; the same command goes on where it was", flush=True)
            return EXIT_CODES[str(error)]
        measured, warnings = found.measured, found.warnings
        if left_out := sorted(n for n in options.devices if n > measured.samples):
            warnings.append(
                f"{', '.join(map(str, left_out))} devices are left out: there are {measured.samples} training samples"
            )
        runs = sum(one is not None for one in (measured.ratios.weak, measured.ratios.rate_exponent))
        beside = f" and {runs} short run{'s' * (runs > 1)} beside it" if runs else " alone, so they are uncertain"
        plan = Plan(
            title=f"Plan: {name}",
            measured=measured,
            metric=found.metric,
            target=found.target,
            forecasts=found.forecasts,
            basis=f"a run at batch {measured.optim.batch_size}{beside}",
            device_kind=found.device_kind,
            precision=config.precision,
            facts=found.facts,
            warnings=warnings,
            content={"config": name, "precision": config.precision, "curves": found.curves},
            evidence={"device": found.device_kind, "precision": config.precision, **found.costs},
        )
        lines = page.write(root, plan)
    print(*lines, sep="\n")

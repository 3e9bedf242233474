"""`gmmae plan`: predict the fastest scaling strategy from runs on one device."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from gmmae.cli.arguments import TrainArguments, optional, parse_with_config
from gmmae.config.rules import Rule, at_least, distinct, require
from gmmae.config.schema import changed
from gmmae.config.toml import find
from gmmae.multihost.distributed import join_processes
from gmmae.scaling.cost import read_cluster
from gmmae.system.stop_reasons import EXIT_CODES

Clusters = Annotated[tuple[str, ...], Rule("at least one", bool)]
Devices = Annotated[tuple[int, ...], distinct(at_least(1))]
Epochs = Annotated[int | None, optional(at_least(1))]
ComputeScale = Annotated[float | None, optional(Rule("positive", lambda factor: 0 < factor < math.inf))]


@dataclass(frozen=True)
class PlanArguments(TrainArguments):
    """Predict times to the target on clusters from measurements on one device, and recommend a strategy and its devices."""

    clusters: Clusters = ("h200_nvlink",)  # TOML files, or names of those in configs/clusters
    devices: Devices = (1, 2, 4, 8, 16, 32)  # numbers of devices to choose from
    budget_epochs: Epochs = None  # maximum epochs of all measurements; none: no limit, about two runs to the target
    scale_compute: ComputeScale = None  # seconds on a cluster's device for one second measured; none: as its file says
    tune: bool = False  # also look for the best learning rate at each batch, for the strategy tuned; it takes many runs' time
    noise_scale: bool = False  # also measure the gradient's noise scale at the target, for comparison with other formulas


def command(arguments: Sequence[str], prog: str) -> int:
    """Measures, prints the answer, writes the page. Returns the exit code."""
    options, config, name = parse_with_config(PlanArguments, arguments, prog)
    clusters = [read_cluster(find(cluster, "clusters")) for cluster in options.clusters]
    names = {cluster.name for cluster in clusters}
    require(bool(names) and len(names) == len(clusters), "clusters", "one or more of different names", options.clusters)
    root = options.workdir or Path("runs") / f"plan_{name}"
    config = changed(config, parallel__devices=1, parallel__simulate_devices=0, distributed__auto=False)
    with join_processes(config, shlex.join([*prog.split(), *arguments])):
        from gmmae.planner import page
        from gmmae.planner.measure import PlanRequest, measure
        from gmmae.planner.measurements import PlanInterruptedError, claimed
        from gmmae.training import terminal

        unscaled = [cluster for cluster in clusters if cluster.reference_step_s and options.scale_compute is None]
        references = {cluster.reference_batch for cluster in unscaled}
        request = PlanRequest(options.devices, references, options.budget_epochs, options.tune, options.noise_scale)
        with claimed(root) as folder:
            try:
                measurements = measure(config, folder, terminal.display, request)
            except PlanInterruptedError as error:
                print("interrupted; the same command goes on where it was", flush=True)
                return EXIT_CODES[str(error)]
            lines = page.write(root, name, measurements, clusters, options.devices, options.scale_compute)
    print(*lines, sep="\n")
    return 0

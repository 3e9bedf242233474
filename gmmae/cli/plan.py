"""`gmmae plan`: which strategy, how many devices, how long, how sure; measured on one device before any others are booked."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from gmmae.cli.arguments import TrainArguments, parse_with_config
from gmmae.config.rules import NonNegativeFloat, NonNegativeInt, Rule, at_least, distinct, require
from gmmae.config.toml import find

Clusters = Annotated[tuple[str, ...], Rule("at least one", bool)]
Devices = Annotated[tuple[int, ...], distinct(at_least(1))]


@dataclass(frozen=True)
class PlanArguments(TrainArguments):
    """Which strategy, how many devices, how long, how sure: measures on one device, foretells times to the target on clusters."""

    clusters: Clusters = ("h200_nvlink",)  # TOML files, or names of those in configs/clusters
    devices: Devices = (1, 2, 4, 8, 16, 32)  # numbers of devices to choose from
    budget_epochs: NonNegativeInt = 0  # epochs that all measuring may take; 0: what it needs, about two runs to the target
    scale_compute: NonNegativeFloat = 0.0  # seconds on a cluster's device for one second measured here; 0: as its file says
    tune: bool = False  # also look for the best rate at each batch, for the strategy tuned; it takes many runs' time
    noise_scale: bool = False  # also measure the gradient's noise scale at the target, for comparison with other formulas


def command(arguments: Sequence[str], prog: str) -> int:
    """Measures, prints the answer, writes the page. Returns the exit code."""
    asked, config, name = parse_with_config(PlanArguments, arguments, prog)
    from gmmae.config.schema import changed
    from gmmae.multihost.distributed import joined
    from gmmae.scaling.cost import read_cluster

    clusters = [read_cluster(find(each, "clusters")) for each in asked.clusters]
    names = {each.name for each in clusters}
    require(bool(names) and len(names) == len(clusters), "clusters", "one or more of different names", asked.clusters)
    root = asked.workdir or Path("runs") / f"plan_{name}"
    one = changed(config, parallel__devices=1, parallel__simulate_devices=0, distributed__auto=False)
    with joined(one, shlex.join([*prog.split(), *arguments])):
        from gmmae.planner import page
        from gmmae.planner.measure import measure
        from gmmae.planner.measurements import PlanInterruptedError, claimed
        from gmmae.system.stop_reasons import EXIT_CODES
        from gmmae.training import terminal

        references = {each.reference_batch for each in clusters if each.reference_step_s and not asked.scale_compute}
        with claimed(root) as folder:
            try:
                found = measure(
                    one,
                    folder,
                    terminal.display,
                    devices=asked.devices,
                    reference_batches=references,
                    budget_epochs=asked.budget_epochs,
                    tune=asked.tune,
                    noise_scale=asked.noise_scale,
                )
            except PlanInterruptedError as error:
                print("interrupted; the same command goes on where it was", flush=True)
                return EXIT_CODES[str(error)]
            lines = page.write(root, name, found, clusters, asked.devices, asked.scale_compute)
    for line in lines:
        print(line)
    return 0

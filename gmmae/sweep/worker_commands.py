"""The commands of a sweep's subprocess (`gmmae.sweep.worker`). JAX is imported after the processes have joined."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from gmmae.multihost.distributed import join_processes
from gmmae.sweep.grid import TimingConfig
from gmmae.system.garbage import no_collection_of_imports
from gmmae.system.null_object import IDLE
from gmmae.system.stop_reasons import EXIT_CODES
from gmmae.training.terminal import Plain, standard_output
from gmmae.workloads.configuration import read_config

if TYPE_CHECKING:
    from gmmae.training.compilation import RunCache


class Commands:
    """The commands of one process. What it keeps from run to run is an attribute."""

    def __init__(self) -> None:
        self._cache: RunCache | None = None

    def train(self, config: str, root: str) -> int:
        """Trains as `train.py` does, with plain output and without figures. Returns the exit code."""
        with no_collection_of_imports():
            run_config = read_config(Path(config))  # it imports the workload's module, if that is the user's
        with join_processes(run_config) as group:
            with no_collection_of_imports():
                from gmmae.training.compilation import RunCache
                from gmmae.training.loop import run

            self._cache = self._cache or RunCache()
            record = run(run_config, Path(root), Plain(standard_output()) if group.primary else IDLE, group, self._cache)
        assert record.stop_reason is not None
        return EXIT_CODES[record.stop_reason]

    def time(self, config: str, request: str, out: str) -> int:
        """Measures the step times that a JSON file requests. Returns the exit code."""
        arguments = json.loads(Path(request).read_text(encoding="utf-8"))
        run_config = read_config(Path(config))
        with join_processes(run_config) as group:
            from gmmae.sweep.step_times import write
            from gmmae.sweep.throughput import measure

            timings = measure(run_config, arguments["batches"], arguments["validation"], TimingConfig(**arguments["timing"]))
        if group.primary:
            write(Path(out), timings)
        return 0

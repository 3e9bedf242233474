"""The commands of a sweep's subprocess (`gmmae.sweep.worker`). JAX is imported after the processes have joined."""

import json
from contextlib import ExitStack
from pathlib import Path

from gmmae.multihost.distributed import join_processes
from gmmae.multihost.watchdog import Watchdog
from gmmae.sweep import populations
from gmmae.sweep.grid import TimingConfig
from gmmae.system.files import write_text
from gmmae.system.garbage import no_collection_of_imports
from gmmae.system.null_object import IDLE
from gmmae.system.stop_reasons import EXIT_CODES, INTERRUPTED
from gmmae.training.run_cache import RunCache
from gmmae.training.terminal import Plain, plain, standard_output
from gmmae.workloads.configuration import read_config

RESUME = "the sweep's command does it"
"""How a run is resumed, for the message when another task is lost."""


class Commands:
    """The commands of one process. What it keeps from run to run is an attribute."""

    def __init__(self, parent: Watchdog) -> None:
        self._parent = parent
        self._cache = RunCache()

    def train(self, config: str, root: str) -> int:
        """Trains as `train.py` does, with plain output and without figures. Returns the exit code."""
        with no_collection_of_imports():
            run_config = read_config(Path(config))  # it imports the workload's module, if that is the user's
        with join_processes(run_config, RESUME, self._parent) as group:
            with no_collection_of_imports():
                from gmmae.training.loop import run

            record = run(run_config, Path(root), Plain(standard_output()) if group.primary else IDLE, group, self._cache)
        assert record.stop_reason is not None
        return EXIT_CODES[record.stop_reason]

    def train_together(self, runs: str) -> int:
        """Trains the runs that a JSON file lists in one program, each with its own log. Returns the exit code."""
        members = populations.read(Path(runs))
        configs = [read_config(member.config) for member in members]
        with join_processes(configs[0], RESUME, self._parent), ExitStack() as logs:
            from gmmae.training.population import run_together

            displays = [plain(logs.enter_context(member.log.open("a", encoding="utf-8"))) for member in members]
            roots = [member.workdir for member in members]
            records = run_together(list(zip(configs, roots, displays, strict=True)), self._cache)
        interrupts = [record.stop_reason for record in records if record.stop_reason in INTERRUPTED]
        return EXIT_CODES[interrupts[0]] if interrupts else 0

    def compare(self, runs: str, out: str) -> int:
        """Measures whether the runs of a JSON file train faster together. Returns the exit code."""
        configs = [read_config(member.config) for member in populations.read(Path(runs))]
        with join_processes(configs[0], RESUME, self._parent):
            from gmmae.training.population import measure_speed

            speed = populations.Speed(len(configs), *measure_speed(configs, self._cache))
        write_text(Path(out), json.dumps(speed._asdict()) + "\n")
        return 0

    def time(self, config: str, request: str, out: str) -> int:
        """Measures the step times that a JSON file requests. Returns the exit code."""
        arguments = json.loads(Path(request).read_text(encoding="utf-8"))
        run_config = read_config(Path(config))
        with join_processes(run_config, RESUME, self._parent) as group:
            from gmmae.sweep.step_times import write
            from gmmae.sweep.throughput import measure

            timings = measure(run_config, arguments["batches"], arguments["validation"], TimingConfig(**arguments["timing"]))
        if group.primary:
            write(Path(out), timings)
        return 0

"""`gmmae plan --curves`: a plan from the loss curves of runs that any program made."""

import numpy as np

from gmmae.cli.options import CurvesArguments
from gmmae.config.rules import require
from gmmae.config.schema import StopConfig
from gmmae.config.toml import find
from gmmae.planner import curve_files, curves, curves_page
from gmmae.planner.curve_files import Columns
from gmmae.planner.curves import Machine
from gmmae.planner.curves_page import CurvesPlan
from gmmae.scaling.cost import StepTimes, read_cluster
from gmmae.system.errors import InputError
from gmmae.training.workdir import alone, writable

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number of the gradient by its precision."""

WITHOUT_LINKS = "devices without links"
"""The name of a machine whose all-reduce takes no time."""


def command(options: CurvesArguments) -> int:
    """Reads the curves, prints the answer, writes the page. Returns the exit code."""
    columns = Columns(options.step_column, options.loss_column, options.batch_column, options.learning_rate_column)
    machines = _machines(options)
    read = curve_files.read_curves(options.curves, columns, options.batches)
    rate = curve_files.common_learning_rate(read)
    stop = StopConfig(target=options.target, mode=options.mode)
    evidence = curves.read_evidence(read, stop, options.smooth, options.batch_size, np.random.default_rng(0))
    _require_devices(options, evidence.points)
    metric = options.loss_column or "loss"
    plan = CurvesPlan(metric, options.mode, options.smooth, options.samples, rate, evidence, options.devices, machines)
    with writable(options.workdir):
        options.workdir.mkdir(parents=True, exist_ok=True)
        with alone(options.workdir / ".lock", "plan"):
            lines = curves_page.write(options.workdir, plan)
    print(*lines, sep="\n")
    return 0


def _require_devices(options: CurvesArguments, points: dict[int, float]) -> None:
    """Refuses devices without a sample each, and curves whose batch is larger than the training set."""
    if options.samples is None:
        return
    if max(options.devices) > options.samples:
        raise InputError(f"--devices must be at most the {options.samples} samples; got {max(options.devices)}")
    if max(points) > options.samples:
        raise InputError(f"--samples must be at least the curves' largest batch, {max(points)}; got {options.samples}")


def _machines(options: CurvesArguments) -> dict[str, Machine]:
    times = step_times(options.step_times) if options.step_times else None
    clusters = [read_cluster(find(cluster, "clusters")) for cluster in options.clusters]
    require(len({cluster.name for cluster in clusters}) == len(clusters), "--clusters", "of different names", options.clusters)
    if clusters and options.parameters is None:
        raise InputError("--parameters must be given with --clusters, because the all-reduce depends on them; got none")
    if not clusters:
        return {WITHOUT_LINKS if times else "any devices": Machine(times)}
    gradient_bytes = float(BYTES[options.precision] * (options.parameters or 0))
    scale = options.scale_compute or 1.0
    return {cluster.name: Machine(times, cluster, gradient_bytes, scale) for cluster in clusters}


def step_times(words: tuple[str, ...]) -> StepTimes:
    """Returns step times of words such as `32=0.0021`, the batch of a device and the seconds of a step.

    Raises:
      InputError: a word has another form, or there are fewer than two batches.

    >>> step_times(("128=0.006", "32=0.002"))
    StepTimes(batches=(32, 128), seconds=(0.002, 0.006))
    """
    seconds: dict[int, float] = {}
    for word in words:
        batch, _, value = word.partition("=")
        try:
            pair = int(batch), float(value)
        except ValueError:
            pair = 0, 0.0
        if pair[0] < 1 or not 0 < pair[1] < float("inf"):
            raise InputError(f"--step-times must be batches with positive seconds, such as 32=0.0021 128=0.0060; got {word!r}")
        if pair[0] in seconds:
            raise InputError(f"--step-times must be of different batches; got {pair[0]} twice")
        seconds[pair[0]] = pair[1]
    if len(seconds) < 2:
        raise InputError(f"--step-times must be of two batches or more, to tell a from b; got {' '.join(words)}: time another")
    batches = tuple(sorted(seconds))
    if seconds[batches[-1]] < seconds[batches[0]]:
        raise InputError(f"--step-times must not fall with the batch; got {' '.join(words)}: time them again")
    return StepTimes(batches, tuple(seconds[batch] for batch in batches))

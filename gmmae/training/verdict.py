"""The lines at the end of a run that say whether it is good."""

import numpy as np

from gmmae.config.schema import Config, flatten
from gmmae.training.compilation import RunCache, workload_key
from gmmae.training.stopping import StopMonitor
from gmmae.training.workdir import WorkDir
from gmmae.workloads import registry

MAX_VALUES = 2**22
"""Of training samples, for which a workload's baselines take a quarter of a second."""


def verdict(config: Config, workdir: WorkDir, cache: RunCache) -> list[str]:
    """A line where the run overfitted, and one that gives the loss a scale where the workload has baselines."""
    lines, epoch = [], StopMonitor(config.stop, workdir.read_rows()).overfitted_from()
    if epoch:
        augment = "--data.augment may help, and " * (("data.augment", False) in flatten(config))
        lines.append(
            f"overfitted from epoch {epoch} on: the training loss fell and the validation {config.stop.monitor} got worse; "
            f"{augment}--stop.patience-epochs ends such a run earlier"
        )
    baselines = getattr(registry.load(config.workload), "baselines", None)
    data = cache.get(("data", *workload_key(config)), lambda: None)  # none where the run had ended before
    if baselines and data and np.size(data.train) <= MAX_VALUES:
        losses = baselines(config.settings, data.train, data.validation)[1]
        scale = ", ".join(f"{name} {values.mean():.4g}" for name, values in losses.items())
        lines += [f"for scale: {scale} (gmmae evaluate {workdir.root} says what these are)"] * bool(losses)
    return lines

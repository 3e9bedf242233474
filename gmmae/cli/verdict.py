"""The lines at the end of a run that say whether it is good."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gmmae.config.schema import LOSS, Config, flatten
from gmmae.training.preparation import RunCache, workload_key
from gmmae.training.records import Record
from gmmae.training.stopping import StopMonitor
from gmmae.training.workdir import WorkDir
from gmmae.workloads import registry

MAX_VALUES = 2**22
"""Of training samples, for which a workload's baselines take a quarter of a second."""


def verdict(config: Config, record: Record, workdir: WorkDir, cache: RunCache) -> list[str]:
    """A line where the run overfitted, and one that gives the loss a scale where the workload has baselines."""
    lines, epoch = [], StopMonitor(config.stop, workdir.read_rows()).overfitted_from()
    if epoch:
        augment = "--data.augment may help, and " * (("data.augment", False) in flatten(config))
        lines.append(
            f"overfitted from epoch {epoch} on: the training loss fell and the validation {config.stop.monitor} got worse; "
            f"{augment}--stop.patience-epochs ends such a run earlier"
        )
    baselines = getattr(registry.load(config.workload), "baselines", None)
    data = cache.once(("data", *workload_key(config)), lambda: None)  # none where the run had ended before
    if baselines and data and record.best_val_loss and np.size(data.train) <= MAX_VALUES:
        losses = baselines(config.settings, data.train)[1](data.validation)
        scaled = scale({LOSS: record.best_val_loss, **losses})
        lines += [f"{scaled} (gmmae evaluate {workdir.root} says what these are)"] * bool(losses)
    return lines


def scale(losses: Mapping[str, Any]) -> str:
    """Where the mean of the first losses stands among those of simple models.

    >>> scale({"loss": 0.00157, "mean_volume": [0.00239, 0.00241], "pca_5": 0.00153})
    'for scale: the loss 0.00157 is better than mean_volume (0.0024), worse than pca_5 (0.00153)'
    """
    (_, loss), *simple = ((name, np.mean(values)) for name, values in losses.items())
    words = (f"{'better' if loss < value else 'worse'} than {name} ({value:.4g})" for name, value in simple)
    return f"for scale: the loss {loss:.4g} is {', '.join(words)}"

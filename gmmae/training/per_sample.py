"""Losses and metrics: one value for each sample, and their means over a training epoch or a validation."""

import math
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gmmae.config.schema import LOSS
from gmmae.scaling.batches import BatchPlan
from gmmae.workloads.interface import Params, PerSample, Samples, Workload, WorkloadError
from gmmae.workloads.sources import count


def losses(workload: Workload, params: Params, samples: Samples, keys: Array | None) -> Array:
    """Returns one loss for each sample, or raises a WorkloadError where the workload gives another shape or type."""
    of_samples = workload.losses(params, samples, keys)
    _require_one_per_sample("losses", samples, of_samples)
    return of_samples


def values(workload: Workload, params: Params, samples: Samples, keys: Array | None = None) -> PerSample:
    """Returns the loss and each metric by name, one value for each sample; a validation takes their means.

    With keys, as in training, there is only the loss.

    Raises:
      WorkloadError: the workload gives values of another shape or type, or a metric's name is "loss" or has several lines.
    """
    of_samples = losses(workload, params, samples, keys)
    metrics = workload.metrics(params, samples) if keys is None else {}
    for name, metric in metrics.items():
        _require_one_per_sample(f"metrics, {name!r}", samples, metric, of_samples)
        if name == LOSS or not name.isprintable():
            raise WorkloadError(f"metrics of a workload must have names of one line and not {LOSS!r}; got {name!r}: rename it")
    return {LOSS: of_samples, **{name: jnp.asarray(metric, of_samples.dtype) for name, metric in metrics.items()}}


def summable_values(workload: Workload, may_be_undefined: Sequence[str], params: Params, samples: Samples) -> PerSample:
    """Returns `values` with 0 for an undefined metric, and a second entry that is 1 for each sample it is undefined for."""
    summable = dict(values(workload, params, samples))
    for name in may_be_undefined:
        undefined = jnp.isnan(summable[name])
        summable[undefined_share(name)] = undefined.astype(summable[name].dtype)
        summable[name] = jnp.where(undefined, 0, summable[name])
    return summable


def _require_one_per_sample(name: str, samples: Samples, values: Array, *losses: Array) -> None:
    """Refuses values of another shape, and of a type that is not floating, or not together with that of the losses."""
    shape, expected = np.shape(values), (count(samples),)
    if shape != expected or not jnp.issubdtype(jnp.result_type(values, *losses), jnp.floating):
        dtype = getattr(values, "dtype", type(values).__name__)
        raise WorkloadError(
            f"{name} of a workload must be one floating-point number a sample, of shape {expected} here; got {dtype} of shape "
            f"{shape}"
        )


def mean_over_steps(losses: Float[np.ndarray, " steps"], plan: BatchPlan) -> float:
    """Returns the mean over all samples of an epoch from the means of its steps, in float64."""
    return float(losses.astype(np.float64) @ plan.counts / plan.samples)


def validation_means(steps: Mapping[str, Float[np.ndarray, " steps"]], plan: BatchPlan) -> dict[str, float]:
    """Returns the mean of each value of a validation, by name.

    The mean of a metric that may be undefined is over the samples that define it.
    """
    means = {name: mean_over_steps(values, plan) for name, values in steps.items()}
    for name in [name for name in means if undefined_share(name) in means]:
        defined = plan.samples - round(means.pop(undefined_share(name)) * plan.samples)
        if defined < plan.samples:
            means[name] *= plan.samples / defined if defined else math.nan
    return means


def undefined_share(name: str) -> str:
    """Returns the name of the share of samples for which a metric is undefined."""
    return f"{name}, undefined"

"""What a workload is: the interface between what is trained and what trains it.

A workload is one file, a module with

    Config                          a frozen dataclass: the fields and sections that the workload adds to a configuration
    build(config) -> Workload       functions for JAX to compile, and one that loads the data

and, where it likes, functions of the host on plain arrays:

    draw(snapshots, folder, title, ending) -> Path      one picture of the shown samples: PNG or SVG, by its ending
    events(arrays) -> Events                            what TensorBoard shows of `Workload.describe`

Strong scaling computes what one device would because every loss is that of one sample: a loss that looks at other samples of
the batch, as batch normalisation does, would depend on how the batch is divided. So there is no mutable state either.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # a configuration is read before JAX is imported
    import numpy as np
    from jax import Array

Params = Any
"""Parameters: a pytree of arrays."""

Samples = Any
"""Samples: a pytree of arrays, all with the samples along their leading axis."""

PerSample = Mapping[str, "Array"]
"""Names, and one value a sample for each."""


@dataclass(frozen=True)
class Splits:
    """The data of a workload on the host.

    Attributes:
      train: training samples, NumPy arrays. Floating ones take the configuration's precision.
      validation: validation samples, likewise.
      about: the samples, in a few words for the start table.
      names: of the samples, by split ("train", "validation"); None: tables give their numbers.
      groups: of the samples, by split, such as the patient of each. Intervals resample groups; None: every sample is a group.
      may_be_undefined: names of metrics that are NaN for samples that they are undefined for. Their means are over the other
        samples, and NaN where there is none. A NaN of any other metric makes the mean NaN.
    """

    train: Samples
    validation: Samples
    about: str = ""
    names: Mapping[str, Sequence[str]] | None = None
    groups: Mapping[str, Sequence[str]] | None = None
    may_be_undefined: Sequence[str] = ()


def no_metrics(params: Params, samples: Samples) -> PerSample:
    """Validation metrics of a workload that has none beside its loss."""
    return {}


class Workload(NamedTuple):
    """What is trained.

    Attributes:
      load: reads or makes the data. Each call does so anew, and nothing else needs them.
      init: `key -> params`.
      losses: `(params, samples, keys) -> one loss a sample`. In training, `keys` is one random key a sample, drawn from the
        run's seed, the epoch and the sample's place in the data set: for augmentation and dropout. At validation it is None.
      metrics: `(params, samples) -> {name: one value a sample}`, for validation.
      describe: `(params, samples) -> {name: array}`: what is kept of the shown validation samples for pictures; None: nothing.
      encode: `(params, samples) -> one latent vector a sample`; None: there is none that samples can be made of.
      decode: `(params, latent vectors) -> {name: array}`, as far as `describe` says it without the samples.
      refine: `(what describe gives, steps) -> {name: array}`: the same after so many steps of test-time optimisation of each
        sample, with `loss_before` and `loss`; None: there is no such thing.
      cpu_samples: most samples that a CPU's device trains on at once, so that what it computes stays in a core's cache, where
        `parallel.micro_batch_size` does not say; 0: its whole share.
    """

    load: Callable[[], Splits]
    init: Callable[["Array"], Params]
    losses: Callable[[Params, Samples, "Array | None"], "Array"]
    metrics: Callable[[Params, Samples], PerSample] = no_metrics
    describe: Callable[[Params, Samples], PerSample] | None = None
    encode: Callable[[Params, Samples], "Array"] | None = None
    decode: Callable[[Params, "Array"], PerSample] | None = None
    refine: Callable[[PerSample, int], PerSample] | None = None
    cpu_samples: int = 0


class Snapshot(NamedTuple):
    """What `Workload.describe` gave after an epoch, on the host, and the validation loss then."""

    epoch: int
    val_loss: float
    arrays: Mapping[str, "np.ndarray"]


class Events(NamedTuple):
    """For TensorBoard, by tag: numbers, values for a histogram, and images (rows × columns, or × 3 colours, from 0 to 1)."""

    scalars: Mapping[str, float] = {}
    histograms: Mapping[str, "np.ndarray"] = {}
    images: Mapping[str, "np.ndarray"] = {}

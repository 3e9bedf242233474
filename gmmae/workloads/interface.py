"""The interface between a workload, which defines a model and its data, and the training.

A workload is one file, a module with

    Config                          a frozen dataclass: the workload's fields and sections of a configuration
    build(config) -> Workload       functions for JAX to compile, and one that loads the data

and optional functions of the host on NumPy arrays:

    draw(snapshots, folder, title, ending) -> Path      one picture of the shown samples: PNG or SVG, by its ending
    events(arrays) -> Events                            TensorBoard's view of `Workload.describe`
    baselines(config, train) -> (words, samples -> {name: one loss a sample})     losses of simple models

Every loss is that of one sample, so strong scaling computes the numbers of one device. A loss that looks at other samples, as
batch normalisation does, would depend on the division of the batch, so there is no mutable state either.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gmmae.system.errors import InputError

if TYPE_CHECKING:  # a configuration is read before JAX is imported
    import numpy as np
    from jax import Array


class WorkloadError(InputError):
    """A workload that cannot be used, with what its file must have."""


Params = Any

Samples = Any
"""A pytree of arrays with the samples along their leading axis."""


class Source(Protocol):
    """Samples that several threads read one by one during training, because they do not fit into a device's memory."""

    def __len__(self) -> int:
        """Must stay the same."""
        ...

    def __getitem__(self, index: int, /) -> Samples:
        """A pytree of arrays or numbers without the axis of samples, of the same form for all samples."""


PerSample = Mapping[str, "Array"]
"""One value for each sample, by name."""


@dataclass(frozen=True)
class Splits:
    """The data of a workload on the host.

    Attributes:
      train: training samples, a pytree of NumPy arrays, or a `Source`. Floating ones take the configuration's precision.
      validation: validation samples, likewise.
      about: the samples, in a few words for the start table.
      names: of the samples, by split ("train", "validation", "test"); None: tables give their numbers.
      groups: of the samples, by split, such as their patients. Intervals resample groups; None: every sample is a group.
      columns: further text of the samples for tables, by split and name, such as the columns of the user's CSV.
      may_be_undefined: metrics that are NaN for some samples, which their means leave out. A NaN of any other metric makes
        the mean NaN.
      test: test samples, likewise. Neither training nor the choice of an epoch sees them.
      origins: of the samples, by split, a word for what each is cut from, such as a hash of its scan, or a tuple of words.
        Later commands recognise it however a sample is cut; None: they recognise equal samples only.
    """

    train: Samples
    validation: Samples
    about: str = ""
    names: Mapping[str, Sequence[str]] | None = None
    groups: Mapping[str, Sequence[str]] | None = None
    may_be_undefined: Sequence[str] = ()
    test: Samples | None = None
    columns: Mapping[str, Mapping[str, Sequence[str]]] | None = None
    origins: Mapping[str, Sequence[str | tuple[str, ...]]] | None = None


class Workload(NamedTuple):
    """The functions of a workload, of which those that are None are left out.

    Attributes:
      load: returns the data; each call loads them again.
      init: `key -> params`.
      losses: `(params, samples, keys) -> one loss a sample`. In training, `keys` has a random key for each sample, by the
        run's seed, the epoch and the sample's index, for augmentation and dropout. At validation it is None.
      metrics: `(params, samples) -> {name: one value a sample}`, for validation.
      describe: `(params, samples) -> {name: array}`, of the shown validation samples for pictures.
      encode: `(params, samples) -> one latent vector a sample`.
      decode: `(params, latent vectors) -> {name: array}`, the entries of `describe` that do not need the samples.
      refine: `(description, steps) -> {name: array}`, the entries of `describe` after test-time optimisation of each sample,
        with `loss_before` and `loss`.
      cpu_samples: the most samples that a CPU's device trains on at once, if `parallel.micro_batch_size` does not say it; 0: as
        many as fit into its cache.
    """

    load: Callable[[], Splits]
    init: Callable[["Array"], Params]
    losses: Callable[[Params, Samples, "Array | None"], "Array"]
    metrics: Callable[[Params, Samples], PerSample] = lambda params, samples: {}
    describe: Callable[[Params, Samples], PerSample] | None = None
    encode: Callable[[Params, Samples], "Array"] | None = None
    decode: Callable[[Params, "Array"], PerSample] | None = None
    refine: Callable[[PerSample, int], PerSample] | None = None
    cpu_samples: int = 0


class Snapshot(NamedTuple):
    """`Workload.describe` after an epoch, on the host, and that epoch's validation loss."""

    epoch: int
    val_loss: float
    arrays: Mapping[str, "np.ndarray"]


class Events(NamedTuple):
    """For TensorBoard, by tag: numbers, values for histograms, and images (rows × columns, or × 3 colours, from 0 to 1)."""

    scalars: Mapping[str, float] = {}
    histograms: Mapping[str, "np.ndarray"] = {}
    images: Mapping[str, "np.ndarray"] = {}

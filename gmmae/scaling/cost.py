"""The time on other machines: the all-reduce by α and β, and clusters as small files.

A projected step is a measured one, scaled to the cluster's device, plus an all-reduce of the gradient. Communication is taken
not to overlap with computation, the links to be free, and time to depend on the device's batch only.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np

from gmmae.config import toml
from gmmae.config.rules import NonNegativeFloat, PositiveFloat, PositiveInt, Rule, Section, checked_value
from gmmae.system.errors import InputError

Collective = Literal["ring", "tree", "fastest"]


def ring_s(devices: int, size_bytes: float, alpha_s: float, beta_bytes_per_s: float) -> float:
    """The seconds of a ring all-reduce: 2(n-1) α + 2(n-1)/n · bytes / β; 0 for one device.

    α is the latency of a message, β the bandwidth of a link in one direction. Thakur, Rabenseifner and Gropp, "Optimization of
    collective communication operations in MPICH", 2005; without the time of the additions.
    """
    steps = 2 * (devices - 1)
    return steps * (alpha_s + size_bytes / devices / beta_bytes_per_s)


def tree_s(devices: int, size_bytes: float, alpha_s: float, beta_bytes_per_s: float) -> float:
    """The seconds of a binomial reduction and broadcast: 2 ⌈log2 n⌉ (α + bytes / β), from the source of `ring_s`.

    Trees that cut the messages into pieces take at most as long.
    """
    levels = (devices - 1).bit_length()
    return 2 * levels * (alpha_s + size_bytes / beta_bytes_per_s)


Price = Annotated[
    str,
    Rule(
        'a currency and an amount, such as "USD 2.50"',
        lambda text: bool(re.fullmatch(r"[^\W\d_]+ \d{1,9}(\.\d{1,9})?", text)),
    ),
]

RENAMED = {"ethernet_100g": "a100"}
"""Earlier names of files in configs/clusters."""


@dataclass(frozen=True)
class Cluster(Section):
    """A cluster by its links, and one training step on its device."""

    name: str  # what tables call it
    device: str  # the device, in words
    devices_per_node: PositiveInt  # devices used on each node
    alpha_intra_s: NonNegativeFloat  # latency of a message between devices of a node
    beta_intra_bytes_per_s: PositiveFloat  # bandwidth between them, in one direction
    # Latency of a message between nodes; none: the link is unknown, and only the devices of one node can be projected to.
    alpha_inter_s: NonNegativeFloat | None = None
    beta_inter_bytes_per_s: PositiveFloat | None = None  # bandwidth of a node's link, in one direction
    # A training step of reference_batch samples on one device; 0: times are taken as measured.
    reference_step_s: NonNegativeFloat = 0.0
    reference_batch: PositiveInt = 32  # samples of that step
    collective: Collective = "fastest"  # the all-reduce: ring, tree, or whichever of the two takes less time
    price_per_device_hour: Price | None = None  # currency and amount, such as "USD 2.50"; none: no cost is stated
    watts_per_device: PositiveFloat | None = None  # mean power of a device that trains; none: no energy is stated
    sources: str = ""  # where the numbers are from, in words

    def __post_init__(self) -> None:
        super().__post_init__()
        missing = [name for name in ("alpha_inter_s", "beta_inter_bytes_per_s") if getattr(self, name) is None]
        if len(missing) == 1:
            raise InputError(
                f"{missing[0]} must be given; it is missing, and the other number of the link between nodes is given"
            )


def read_cluster(name: str | Path) -> Cluster:
    """The cluster of a TOML file, or of one in configs/clusters, with the fields of `Cluster` as keys."""
    path = toml.find(RENAMED.get(str(name), name), "clusters")
    table = toml.read_table(path)
    try:
        return Cluster(**table)
    except TypeError as error:  # a key is missing, or there is no such key
        keys = ", ".join(field.name for field in fields(Cluster))
        raise InputError(f"{path} must have the keys of a cluster, {keys}; got {error}: mend its spelling") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def all_reduce_s(cluster: Cluster, devices: int, size_bytes: float) -> float:
    """The seconds to sum `size_bytes` over the devices, nodes being filled one after the other.

    Within a node both algorithms have its α and β. Across nodes the ring goes once through each node, so one message uses a
    node's link in each direction at a time, and the slowest link's α and β count in every step. The tree has ⌈log2⌉ of a
    node's devices levels inside it, and ⌈log2⌉ of the nodes levels between them.

    Raises:
      InputError: no device, or more than a node has where the link between nodes is unknown.
    """
    checked_value("devices", devices, PositiveInt)
    inside = between = cluster.alpha_intra_s, cluster.beta_intra_bytes_per_s
    nodes = math.ceil(devices / cluster.devices_per_node)
    if nodes > 1:
        if cluster.alpha_inter_s is None or cluster.beta_inter_bytes_per_s is None:
            raise InputError(
                f"devices must be at most the {cluster.devices_per_node} of a node of {cluster.name}, whose link between nodes "
                f"is unknown; got {devices}: use fewer, or give alpha_inter_s and beta_inter_bytes_per_s in the cluster's file"
            )
        between = cluster.alpha_inter_s, cluster.beta_inter_bytes_per_s
    tree = tree_s(min(devices, cluster.devices_per_node), size_bytes, *inside) + tree_s(nodes, size_bytes, *between)
    slowest = (max(inside[0], between[0]), min(inside[1], between[1]))
    ring = ring_s(devices, size_bytes, *slowest)
    return {"ring": ring, "tree": tree, "fastest": min(ring, tree)}[cluster.collective]


def spent(cluster: Cluster | None, device_s: float) -> dict[str, float]:
    """Device-seconds, and by the cluster's file their cost and energy, named with their units."""
    hours, numbers = device_s / 3600, {"device_s": device_s}
    if cluster and cluster.price_per_device_hour:
        currency, price = cluster.price_per_device_hour.split()
        numbers[f"cost_{currency}"] = hours * float(price)
    if cluster and cluster.watts_per_device:
        numbers["energy_Wh"] = hours * cluster.watts_per_device
    return numbers


def spent_texts(cluster: Cluster | None, device_s: float) -> dict[str, str]:
    """The same as texts by the columns of a table, with dashes for a time that is not finite.

    >>> priced = Cluster("", "", 8, 0, 1, price_per_device_hour="USD 2.50", watts_per_device=700)
    >>> spent_texts(priced, 8 * 79.0), spent_texts(None, math.inf)
    ({'device time': '11 min', 'cost (USD)': '0.44', 'energy (Wh)': '123'}, {'device time': '–'})
    """
    texts = {}
    for key, value in spent(cluster, device_s).items():
        name, unit = key.split("_")
        column, text = ("device time", time_text(value)) if name == "device" else (f"{name} ({unit})", _digits(value))
        texts[column] = text if math.isfinite(value) else "–"
    return texts


def time_text(seconds: float) -> str:
    """Two significant digits.

    >>> time_text(0.1234), time_text(95.4), time_text(110), time_text(5000), time_text(7800)
    ('0.12 s', '95 s', '1.8 min', '83 min', '2.2 h')
    """
    value, unit = (seconds, "s") if seconds < 99.5 else (seconds / 60, "min") if seconds < 5970 else (seconds / 3600, "h")
    return f"{_digits(value)} {unit}"


def _digits(value: float) -> str:
    return f"{value:#.2g}".rstrip(".") if value < 99.5 else f"{value:.0f}"


class StepTimes(NamedTuple):
    """NonNegativeFloat of a step on one device, measured for increasing batches."""

    batches: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, batch: int) -> float:
        """NonNegativeFloat of a step of `batch` samples, linear between the measured batches.

        Raises:
          InputError: a batch outside of them, or no times of increasing batches.
        """
        increasing = list(self.batches) == sorted(set(self.batches))
        timed = len(self.seconds) == len(self.batches) > 0 and all(0 < s < math.inf for s in self.seconds)
        if not (increasing and timed):
            raise InputError(f"step times must be a positive time for each of increasing batches; got {tuple(self)}")
        low, high = min(self.batches), max(self.batches)
        if not low <= batch <= high:
            raise InputError(
                f"device batch must be measured, from {low} to {high}; got {batch!r}: measure a step of that batch"
            )
        return float(np.interp(batch, self.batches, self.seconds))


def same_device(device: str, other: str) -> bool:
    """Whether two names are of one kind of device: by the first word with a digit, or as a whole without one.

    >>> same_device("NVIDIA H200 SXM", "NVIDIA H200"), same_device("NVIDIA H200 SXM", "cpu")
    (True, False)
    >>> same_device("NVIDIA A100 SXM4", "NVIDIA A100-SXM4-80GB"), same_device("NVIDIA H100 80GB", "NVIDIA A100 80GB")
    (True, False)
    """

    def model(name: str) -> str:
        words = re.findall(r"[a-z0-9]+", name.lower())
        return next((word for word in words if re.search(r"\d", word)), " ".join(words))

    return model(device) == model(other)


def scale(cluster: Cluster, step_times: StepTimes) -> float:
    """The seconds on the cluster's device for one second measured, of any computation."""
    if not cluster.reference_step_s:
        return 1.0
    return cluster.reference_step_s / step_times.at(cluster.reference_batch)


def affine(times: StepTimes) -> tuple[float, float]:
    """Fits a + b · batch, both at least 0, by least squares of the relative residuals.

    >>> [round(number, 3) for number in affine(StepTimes((1, 2, 4), (3.0, 4.0, 6.0)))], affine(StepTimes((4,), (2.0,)))
    ([2.0, 1.0], (0.0, 0.5))
    """
    terms = np.stack([np.ones(len(times.batches)), times.batches]) / times.seconds
    a, b = np.linalg.lstsq(terms.T, np.ones(terms.shape[1]))[0]  # SciPy's `nnls` is slow to import
    first, *others = times.batches
    if not others or min(a, b) < 0:
        a, b = terms.sum(1) / (terms**2).sum(1) * ([b < 0, a < 0] if others else [first == 1, first > 1])
    return float(a), float(b)


def seconds_range(times: StepTimes, samples: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the most seconds of numbers of samples: equal, and linear, at and between measured numbers.

    Fewer samples save as much as `affine` says, or nothing. More add its slope, or as much as each one has taken.

    >>> times = StepTimes((1, 2), (3.0, 4.0))
    >>> [of.round(6).tolist() for of in seconds_range(times, np.array([0.5, 1.5, 4.0]))]
    [[2.5, 3.5, 6.0], [3.0, 3.5, 8.0]]
    """
    samples = np.asarray(samples, float)
    first, last = times.batches[0], times.batches[-1]
    inside = np.interp(samples, times.batches, times.seconds)
    if np.all((first <= samples) & (samples <= last)):
        return inside, inside
    a, b = affine(times)
    least = np.where(samples < first, np.minimum(inside, a + b * samples), inside + b * np.maximum(0.0, samples - last))
    return least, np.maximum(least, inside * np.maximum(1.0, samples / last))


def as_in_runs(times: StepTimes, seen: Mapping[int, float]) -> StepTimes:
    """The times scaled to those of steps in whole runs; between their batches the ratio is linear in logarithms.

    A step in a short block pays for its beginning, on a CPU as much as a third. Runs with larger batches are added.

    >>> as_in_runs(StepTimes((1, 4, 8), (2.0, 4.0, 8.0)), {4: 2.0, 16: 9.0})
    StepTimes(batches=(1, 4, 8, 16), seconds=(1.0, 2.0, 4.0, 9.0))
    """
    batches = sorted(batch for batch in seen if batch <= times.batches[-1])
    larger = sorted(set(seen) - set(batches))
    ratios = [math.log(seen[batch] / float(seconds_range(times, batch)[0])) for batch in batches]
    scales = np.exp(np.interp(np.log(times.batches), np.log(batches), ratios))
    scaled = (np.array(times.seconds) * scales).tolist()
    return StepTimes((*times.batches, *larger), (*scaled, *(seen[batch] for batch in larger)))

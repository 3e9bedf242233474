"""Which sample goes where: the order of an epoch, and its division into steps and devices.

The order depends on the seed and the epoch only. A step's samples are dealt to the devices in runs; slots that stay empty are
padding, with weight zero. Weights are scaled so that the *mean over devices* of each device's weighted sum is the mean over the
step's real samples, whatever the number of devices: Eq. 2 of the paper, exactly.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32

from gmmae.system.errors import InputError


class Plan(NamedTuple):
    """How `samples` samples are taken `batch` at a time on `devices` devices.

    Attributes:
      samples: samples in an epoch.
      batch: samples in a full step; at most `samples`.
      devices: devices that share a step.
      micro_batch: most samples that a device works on at once; 0 for its whole share.
    """

    samples: int
    batch: int
    devices: int
    micro_batch: int = 0

    @property
    def steps(self) -> int:
        """Steps in an epoch; the last one may be partial."""
        return math.ceil(self.samples / self.batch)

    @property
    def micro_batches(self) -> int:
        """Parts, of equal size, into which a device divides its share of a step."""
        share = math.ceil(self.batch / self.devices)
        return math.ceil(share / (self.micro_batch or share))

    @property
    def device_batch(self) -> int:
        """Slots of one device in a step, of all its micro-batches together."""
        return math.ceil(self.batch / (self.devices * self.micro_batches)) * self.micro_batches

    @property
    def padding(self) -> int:
        """Empty slots of all devices in a full step."""
        return self.device_batch * self.devices - self.batch

    @property
    def counts(self) -> Int32[np.ndarray, " steps"]:
        """Real samples in each step."""
        counts = np.full(self.steps, self.batch, np.int32)
        counts[-1] = self.samples - self.batch * (self.steps - 1)
        return counts


class Shards(NamedTuple):
    """The samples of an epoch by device, step and slot, and their weights.

    Attributes:
      indices: positions in the data set; padding repeats the first sample of its step, so that it is never worse than it.
      weights: `devices / count` for a real sample of a step of `count` samples, 0 for padding.
    """

    indices: Int32[np.ndarray, "devices steps device_batch"]
    weights: Float32[np.ndarray, "devices steps device_batch"]


def plan(samples: int, global_batch: int, devices: int, micro_batch: int = 0) -> Plan:
    """The plan for a global batch; a batch larger than the data set is one step of the whole data set.

    Raises:
      InputError: a device would have no sample at all.

    >>> uneven = plan(samples=100, global_batch=32, devices=3)
    >>> uneven.steps, uneven.device_batch, uneven.padding, uneven.counts.tolist()
    (4, 11, 1, [32, 32, 32, 4])
    """
    batch = min(global_batch, samples)
    if devices > batch:
        raise InputError(
            f"parallel.devices must be at most the samples in a step, {batch}; got {devices}: use fewer devices or a larger "
            "optim.base_batch"
        )
    return Plan(samples, batch, devices, micro_batch)


def epoch_order(seed: int, epoch: int, samples: int) -> Int32[np.ndarray, " samples"]:
    """A permutation of the samples that depends on the seed and the epoch only."""
    return np.random.default_rng([seed, epoch]).permutation(samples).astype(np.int32)


def shards(order: Int32[np.ndarray, " samples"], plan: Plan) -> Shards:
    """Deals the samples, in their order, to steps, and each step in runs to the devices."""
    slots = plan.devices * plan.device_batch
    indices = np.zeros((plan.steps, slots), np.int32)
    weights = np.zeros((plan.steps, slots), np.float32)
    for step, count in enumerate(plan.counts):
        first = step * plan.batch
        indices[step] = order[first]
        indices[step, :count] = order[first : first + count]
        weights[step, :count] = plan.devices / count
    by_device = (plan.steps, plan.devices, plan.device_batch)
    return Shards(indices.reshape(by_device).swapaxes(0, 1).copy(), weights.reshape(by_device).swapaxes(0, 1).copy())

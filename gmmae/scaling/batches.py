"""The order of an epoch's samples, and their division into steps and devices.

Each device gets consecutive samples of a step. Empty slots are padding, with weight zero. Weights are scaled so that the *mean
over devices* of each device's weighted sum is the mean over the step's real samples, for any number of devices. This is Eq. 2
of the paper, exactly.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int32

from gmmae.system.errors import InputError


class BatchPlan(NamedTuple):
    """Samples divided into steps of `batch`, at most all, and a step among `sharers`, which take `micro_batch` at once; 0: all.

    These are devices, real or simulated, shards of the exact reduction, or replicas of local steps.
    """

    samples: int
    batch: int
    sharers: int
    micro_batch: int = 0

    @property
    def steps(self) -> int:
        """The last one may be partial."""
        return math.ceil(self.samples / self.batch)

    @property
    def micro_batches(self) -> int:
        """Equal parts of a share."""
        share = math.ceil(self.batch / self.sharers)
        return math.ceil(share / (self.micro_batch or share))

    @property
    def device_batch(self) -> int:
        """Slots of a sharer in a step."""
        return math.ceil(self.batch / (self.sharers * self.micro_batches)) * self.micro_batches

    @property
    def padding(self) -> int:
        """Empty slots of a full step."""
        return self.device_batch * self.sharers - self.batch

    @property
    def counts(self) -> Int32[np.ndarray, " steps"]:
        """Real samples of each step."""
        counts = np.full(self.steps, self.batch, np.int32)
        counts[-1] = self.samples - self.batch * (len(counts) - 1)
        return counts

    def mean(self, of_steps: Float[np.ndarray, " steps"]) -> float:
        """An epoch's mean over samples from those of its steps, in float64."""
        return float(of_steps.astype(np.float64) @ self.counts / self.samples)


class ShardedIndices(NamedTuple):
    """The samples of an epoch by sharer, step and slot, as positions in the data set, and their weights.

    A real sample of a step of `count` samples has the weight `sharers / count`. Padding has 0, and repeats the first sample of
    its step, so its loss is defined.
    """

    indices: Int32[np.ndarray, "sharers steps device_batch"]
    weights: Float[np.ndarray, "sharers steps device_batch"]


def plan_batches(samples: int, global_batch: int, devices: int, micro_batch: int = 0) -> BatchPlan:
    """A batch larger than the data set is one step of the whole data set."""
    batch = min(global_batch, samples)
    if devices > batch:
        raise InputError(
            f"parallel.devices must be at most the samples in a step, {batch}; got {devices}: use fewer devices or a larger "
            "optim.batch_size"
        )
    return BatchPlan(samples, batch, devices, micro_batch)


def epoch_order(seed: int, epoch: int, samples: int) -> Int32[np.ndarray, " samples"]:
    """A permutation of the samples that depends on the seed and the epoch only."""
    return np.random.default_rng([seed, epoch]).permutation(samples).astype(np.int32)


def shard_samples(order: Int32[np.ndarray, " samples"], plan: BatchPlan, dtype: str = "float32") -> ShardedIndices:
    """Divides the samples, in their order, into steps, and each step into consecutive samples for the sharers."""
    counts, by_sharer = plan.counts[:, None], (-1, plan.sharers, plan.device_batch)
    firsts = plan.batch * np.arange(plan.steps)[:, None]
    slots = np.arange(plan.sharers * plan.device_batch)
    real = slots < counts
    indices = order[firsts + slots * real].astype(np.int32)
    weights = (real * plan.sharers / counts).astype(dtype)
    return ShardedIndices(indices.reshape(by_sharer).swapaxes(0, 1).copy(), weights.reshape(by_sharer).swapaxes(0, 1).copy())

"""Epochs as users of PyTorch divide them among processes, if they do not divide evenly."""

from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch.utils.data import DataLoader, DistributedSampler  # pyright: ignore[reportMissingImports]

from benchmarks.peers.backends import Place

PADS, SAMPLER_DROPS, LOADER_DROPS = "pads", "sampler drops", "loader drops"
UNEVEN, WEIGHTED, JOIN, JOIN_OF_THOSE = "uneven", "weighted", "join", "join of those"
JOINS = (JOIN, JOIN_OF_THOSE)


def loader(recipe: str, samples: int, batch: int, place: Place) -> Any:
    """Returns this process's batches of an epoch's indices. `batch` is that of all processes together.

    PyTorch's sampler makes the processes equal, as it repeats or drops samples. The others distribute a permutation
    alternately.
    """
    indices, share = torch.arange(samples), batch // place.processes
    if recipe in (PADS, SAMPLER_DROPS, LOADER_DROPS):
        sampler = DistributedSampler(indices, place.processes, place.rank, shuffle=True, drop_last=recipe == SAMPLER_DROPS)
        sampler.set_epoch(1)
    else:
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(1))
        sampler = order[place.rank :: place.processes].tolist()
    return DataLoader(indices, share, sampler=sampler, drop_last=recipe == LOADER_DROPS)

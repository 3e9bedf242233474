"""Horovod with PyTorch: `horovodrun -np 2 python -m experiments.minimal.hvd FOLDER`."""

import sys
from pathlib import Path

import horovod.torch as hvd  # pyright: ignore[reportMissingImports]  # [start]
import torch  # pyright: ignore[reportMissingImports]

from benchmarks.peers import problem, torch_layout
from benchmarks.peers.problem import Autoencoder
from benchmarks.peers.torch_reference import Reference


def main() -> None:
    """Trains one epoch and prints the validation loss."""
    known = problem.read(Path(sys.argv[1]))
    precision = getattr(torch, known.precision)
    volumes, validation = (torch.from_numpy(x["volumes"]).to(precision) for x in (known.train, known.validation))
    hvd.init()  # [start]
    rank, processes = hvd.rank(), hvd.size()  # [start]
    reference = Reference(Autoencoder(**known.model), known.precision).to(precision)
    reference.load_state_dict({k: torch.from_numpy(v) for k, v in torch_layout.from_ours(known.params).items()}, strict=False)
    hvd.broadcast_parameters(reference.state_dict(), root_rank=0)  # [start]
    optimizer = torch.optim.Adam(
        reference.parameters(), lr=known.learning_rate, betas=(known.beta1, known.beta2), eps=known.epsilon
    )
    optimizer = hvd.DistributedOptimizer(optimizer, reference.named_parameters())  # [start]
    for batch in known.batches(known.samples, epoch=1):
        count = len(batch)  # [mean]
        batch = batch[rank::processes]  # [divide]
        optimizer.zero_grad()
        loss = reference(volumes[batch])
        loss = loss * processes * len(batch) / count  # [mean]
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        count = len(validation)  # [validate]
        validation = validation[rank::processes]  # [validate]
        loss = reference(validation)
        loss = loss * len(validation) / count  # [validate]
        loss = hvd.allreduce(loss, op=hvd.Sum)  # [validate]
    if rank == 0:  # [start]
        print(float(loss))


if __name__ == "__main__":
    main()

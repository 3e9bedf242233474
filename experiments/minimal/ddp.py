"""PyTorch: `torchrun --nproc-per-node 2 -m experiments.minimal.ddp FOLDER`."""

import sys
from pathlib import Path

import torch  # pyright: ignore[reportMissingImports]
from torch import distributed  # pyright: ignore[reportMissingImports]  # [start]
from torch.nn.parallel import DistributedDataParallel  # pyright: ignore[reportMissingImports]  # [start]

from benchmarks.peers import problem, torch_layout
from benchmarks.peers.problem import Autoencoder
from benchmarks.peers.torch_reference import Reference


def main() -> None:
    """Trains one epoch and prints the validation loss."""
    known = problem.read(Path(sys.argv[1]))
    precision = getattr(torch, known.precision)
    volumes, validation = (torch.from_numpy(x["volumes"]).to(precision) for x in (known.train, known.validation))
    distributed.init_process_group("gloo")  # [start]
    rank, processes = distributed.get_rank(), distributed.get_world_size()  # [start]
    reference = Reference(Autoencoder(**known.model), known.precision).to(precision)
    reference.load_state_dict({k: torch.from_numpy(v) for k, v in torch_layout.from_ours(known.params).items()}, strict=False)
    model = DistributedDataParallel(reference)  # [start]
    optimizer = torch.optim.Adam(
        model.parameters(), lr=known.learning_rate, betas=(known.beta1, known.beta2), eps=known.epsilon
    )
    for batch in known.batches(known.samples, epoch=1):
        count = len(batch)  # [mean]
        batch = batch[rank::processes]  # [divide]
        optimizer.zero_grad()
        loss = model(volumes[batch])
        loss = loss * processes * len(batch) / count  # [mean]
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        count = len(validation)  # [validate]
        validation = validation[rank::processes]  # [validate]
        loss = reference(validation)
        loss = loss * len(validation) / count  # [validate]
        distributed.all_reduce(loss)  # [validate]
    if rank == 0:  # [start]
        print(float(loss))
    distributed.destroy_process_group()  # [start]


if __name__ == "__main__":
    main()

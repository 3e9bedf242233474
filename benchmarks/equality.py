"""Strong scaling on n devices against one device: how far the losses drift apart.

JAX_NUM_CPU_DEVICES=8 python benchmarks/equality.py [epochs] [n ...]
"""

import dataclasses
import sys

import jax
import numpy as np

from gmmae import programs
from gmmae.arguments import config_path, read_config
from gmmae.config import Config, ParallelConfig


def losses(config: Config, devices: int, epochs: int) -> np.ndarray:
    """Training and validation loss of each epoch: (epochs, 2)."""
    setup = programs.prepare(dataclasses.replace(config, parallel=ParallelConfig(devices)))
    state = setup.devices.replicate(programs.initial_state(setup))
    compiled = programs.build(setup, state)
    rows = []
    for epoch in range(1, epochs + 1):
        state, steps = compiled.train(state, epoch)
        rows.append((programs.mean_over_steps(steps, setup.train_plan), compiled.evaluate(state.params)))
    return np.array(rows)


def main() -> None:
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    counts = list(map(int, sys.argv[2:])) or [2, 3, 8]
    config = read_config(config_path("quickstart"))
    one = losses(config, 1, epochs)
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}, quickstart, {epochs} epochs")
    print("| devices | largest relative difference after epoch 1 | over all epochs, training | over all epochs, validation |")
    print("|---|---|---|---|")
    for count in counts:
        apart = np.abs(losses(config, count, epochs) / one - 1)
        print(f"| {count} | {apart[0].max():.1e} | {apart[:, 0].max():.1e} | {apart[:, 1].max():.1e} |", flush=True)


if __name__ == "__main__":
    main()

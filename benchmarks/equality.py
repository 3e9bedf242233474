"""Compares the losses of strong scaling on n devices with those of one, with ReLU and with a smooth activation.

JAX_NUM_CPU_DEVICES=8 python benchmarks/equality.py
"""

import dataclasses

import jax
import numpy as np

from gmmae.config.schema import LOSS, Config, ParallelConfig, changed
from gmmae.config.toml import find
from gmmae.training import compilation, per_sample
from gmmae.workloads.configuration import read_config

EPOCHS, COUNTS = 10, (2, 3, 8)


def losses(config: Config, devices: int) -> np.ndarray:
    """Returns the training and validation loss of each epoch: (epochs, 2)."""
    setup, rows = compilation.prepare(dataclasses.replace(config, parallel=ParallelConfig(devices))), []
    with compilation.precision_context(config):
        state = setup.devices.replicate(compilation.initial_state(setup))
        compiled = compilation.compile_programs(setup, state)
        for epoch in range(1, EPOCHS + 1):
            state, steps = compiled.train(state, epoch)
            rows.append((per_sample.mean_over_steps(steps, setup.train_plan), compiled.evaluate(state.params)[LOSS]))
    return np.array(rows)


def main() -> None:
    """Prints the table."""
    quickstart = read_config(find("quickstart"))
    quickstart = changed(quickstart, data__samples=384, data__validation=64)
    quickstart = dataclasses.replace(quickstart, optim=dataclasses.replace(quickstart.optim, batch_size=32))
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}; largest relative difference from one device, by epoch")
    print("| activation | devices | " + " | ".join(map(str, range(1, EPOCHS + 1))) + " |")
    print("|---" * (EPOCHS + 2) + "|")
    for activation in ("relu", "silu"):
        config = changed(quickstart, model__activation=activation)
        one = losses(config, 1)
        for count in COUNTS:
            apart = np.abs(losses(config, count) / one - 1).max(axis=1)
            print(f"| {activation} | {count} | " + " | ".join(f"{value:.0e}" for value in apart) + " |", flush=True)


if __name__ == "__main__":
    main()

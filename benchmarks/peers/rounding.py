"""Measures how rounding grows in gmmae's training losses.

    python -m benchmarks.peers.rounding FOLDER SAMPLES STEPS

It reads the problem in a folder and prints a JSON list. The list holds the relative difference of each step's loss between
two trainings. The second one begins with neighbouring floating-point numbers.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np

from benchmarks.options import guarded
from benchmarks.peers import gmmae_backend, problem
from benchmarks.peers.backends import Place

DRAWS = 3
"""Number of trainings that begin one rounding away. Their divergence depends on chance."""


def apart(peer: gmmae_backend.GmmaeBackend, samples: int, steps: int) -> list[float]:
    """Returns the largest relative difference of each step's loss between a training and those one rounding away."""

    def losses() -> np.ndarray:
        peer.reset()
        return np.array(problem.first_losses(steps, lambda epoch: peer.losses(samples, epoch)))

    first, exact, draw = jax.device_get(peer.start.params), losses(), np.random.default_rng(0).integers

    def neighbour(array: np.ndarray) -> np.ndarray:
        return np.nextafter(array, np.where(draw(0, 2, array.shape), np.inf, -np.inf).astype(array.dtype))

    found = []
    for _ in range(DRAWS):
        peer.start = peer.start._replace(params=jax.tree.map(neighbour, first))
        found.append(np.abs(losses() / exact - 1))
    return np.max(found, axis=0).tolist()


def main() -> None:
    """Prints the differences."""
    folder, samples, steps = sys.argv[1:]
    peer = gmmae_backend.start(problem.read(Path(folder)), Place())
    print(json.dumps(apart(peer, int(samples), int(steps))))


if __name__ == "__main__":
    guarded(main)

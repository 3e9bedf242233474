"""Measures how rounding grows in gmmae's training losses.

    python -m benchmarks.peers.rounding FOLDER SAMPLES STEPS

It reads the problem in a folder and prints a JSON object.

`losses` compares each step's loss in the problem's precision with that in float64. More trainings begin with neighbouring
floating-point numbers. `gradient` compares each array of the first gradient.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np

from benchmarks.options import guarded
from benchmarks.peers import problem
from benchmarks.peers.gmmae_backend import GmmaeBackend, start
from benchmarks.spread import array_distance
from gmmae.scaling.batches import epoch_order

DRAWS = 3
"""Number of trainings that begin one rounding away. Their divergence depends on chance."""


def apart(peer: GmmaeBackend, exact: GmmaeBackend, samples: int, steps: int) -> list[float]:
    """Returns the largest relative difference of each step's loss between trainings of two precisions.

    Args:
      peer: trains once as it is, and `DRAWS` times from parameters one rounding away.
      exact: trains once, in float64.
      samples: samples in an epoch.
      steps: number of steps.
    """

    def losses(of: GmmaeBackend) -> np.ndarray:
        of.reset()
        return np.array(problem.first_losses(steps, lambda epoch: of.losses(samples, epoch)))

    first, draw, wanted = jax.device_get(peer.start.params), np.random.default_rng(0).integers, losses(exact)

    def neighbour(array: np.ndarray) -> np.ndarray:
        return np.nextafter(array, np.where(draw(0, 2, array.shape), np.inf, -np.inf).astype(array.dtype))

    found = [np.abs(losses(peer) / wanted - 1)]
    for _ in range(DRAWS):
        peer.start = peer.start._replace(params=jax.tree.map(neighbour, first))
        found.append(np.abs(losses(peer) / wanted - 1))
    return np.max(found, axis=0).tolist()


def gradient_apart(peer: GmmaeBackend, exact: GmmaeBackend, samples: int) -> dict[str, float]:
    """Returns how far rounding alone moves each array of the first gradient, relative to its norm.

    An empty part of a volume puts ReLU at its kink while a bias is 0. There rounding decides on the bias's gradient, in any
    precision. So the parameters that are 0 are one rounding error of 1 away in some draws.
    """
    order = epoch_order(peer.setup.config.seed, 1, samples)[: peer.setup.train_plan.batch]
    params, draw = jax.device_get(peer.start.params), np.random.default_rng(0).choice
    wanted = exact.gradient_of(jax.device_get(exact.start.params), order)

    def moved(array: np.ndarray) -> np.ndarray:
        step = np.finfo(array.dtype).eps * draw([-1, 1], array.shape)
        return np.where(array == 0, step.astype(array.dtype), array)

    starts = [params, *(jax.tree.map(moved, params) for _ in range(DRAWS))]
    found = [peer.gradient_of(start, order) for start in starts]
    return {name: max(array_distance({name: of[name]}, {name: wanted[name]}) for of in found) for name in wanted}


def main() -> None:
    """Prints the differences."""
    folder, samples, steps = sys.argv[1:]
    known = problem.read(Path(folder))
    exact = known._replace(source=known.source | {"precision": "float64"})
    peers = start(known), start(exact)
    gradient = gradient_apart(*peers, known.samples)
    print(json.dumps({"gradient": gradient, "losses": apart(*peers, int(samples), int(steps))}))


if __name__ == "__main__":
    guarded(main)

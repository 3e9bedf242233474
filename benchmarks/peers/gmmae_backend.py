"""gmmae as a backend: the programs that `train.py` runs, and the problem for the others."""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from benchmarks.options import guarded
from benchmarks.peers import problem
from benchmarks.peers.problem import Arrays, Problem
from gmmae.config.schema import LOSS, Config, changed, flatten
from gmmae.config.toml import find
from gmmae.scaling.batches import epoch_order, plan_batches
from gmmae.system.errors import InputError
from gmmae.system.provenance import versions
from gmmae.training import preparation, programs
from gmmae.workloads.configuration import read_config
from gmmae.workloads.interface import Params

NEEDED = {
    **{"workload": "nodules", "scaling": "strong", "optim.clip_norm": None, "data.augment": False},
    **{"optim.decay_epochs": (), "optim.warmup_epochs": 0, "optim.cosine_epochs": None},
    **{"loss": "msle", "data.ndim": 3, "model.decoder": "dense", "model.covariance": "partial", "model.padding": "VALID"},
    **{"model.activation": "relu", "stop.monitor": LOSS, "stop.mode": "auto"},
}
"""Values of a configuration's keys that the reference implementations need."""


def configuration(name: str, samples: int = 0, validation: int = 0, precision: str = "float32") -> Config:
    """Returns a configuration on all devices of the process, with `samples` training volumes if that is not 0."""
    config = dataclasses.replace(read_config(find(name)), precision=precision)
    return changed(config, data__samples=samples + validation, data__validation=validation) if samples else config


def problem_of(**source: Any) -> Problem:
    """Returns the problem of a configuration, with its initial parameters. Arguments are those of `configuration`.

    Raises:
      InputError: the reference implementations do not have a field's value.
    """
    config = configuration(**source)
    optim = config.optim
    shape = autoencoder(config)
    setup = preparation.prepare(config)
    params = preparation.initial_state(setup).params
    return Problem(
        model=shape._asdict(),
        batch=optim.batch_size,
        seed=config.seed,
        learning_rate=optim.learning_rate,
        beta1=optim.beta1,
        beta2=optim.beta2,
        epsilon=optim.epsilon,
        precision=config.precision,
        train={"volumes": setup.data.train},
        validation={"volumes": setup.data.validation},
        params=flat(params),
        source=source,
    )


def autoencoder(config: Config) -> problem.Autoencoder:
    """Returns the shape of the nodules' model."""
    has = dict(flatten(config))
    for key, value in NEEDED.items():
        if has[key] != value:
            raise InputError(f"the reference implementations need {key} = {_shown(value)}; got {_shown(has[key])}: {OTHER}")
    data, model = config.settings.data, config.settings.model
    if not isinstance(data.shape, int):
        raise InputError(f"the reference implementations need volumes with equal edges; got data.shape = {data.shape}: {OTHER}")
    floor = model.sigma_floor * 2 / data.shape
    sizes = (data.shape, [*model.filters], [*model.kernels], model.latent_dim, model.components)
    return problem.Autoencoder(*sizes, model.rho, floor, model.rho_limit)


OTHER = "choose another configuration"


def _shown(value: object) -> str:
    return "none" if value is None else repr(value)


def flat(params: Params) -> Arrays:
    """Returns parameters or gradients by name."""
    return {
        name.removeprefix("params/"): np.asarray(leaf) for name, leaf in traverse_util.flatten_dict(params, sep="/").items()
    }


class GmmaeBackend:
    """A `backends.Peer` of gmmae."""

    def __init__(self, config: Config):
        self.setup = preparation.prepare(config)
        self.start = preparation.initial_state(self.setup)
        self.trains: dict[int, Any] = {}
        self.evaluates: Callable[[Any], dict[str, float]] | None = None
        losses = self.setup.workload.losses
        self.gradient_program = jax.jit(jax.grad(lambda params, x: losses(params, x, None).mean()))
        self.reset()

    def facts(self) -> dict[str, Any]:
        """Returns versions, threads and device."""
        return {"versions": versions(), "device": self.setup.devices.kind, "threads": len(os.sched_getaffinity(0))}

    def reset(self) -> None:
        """Restores the initial parameters and optimiser state."""
        with self._arithmetic():
            self.state = self.setup.devices.replicate(self.start)

    def _arithmetic(self) -> contextlib.AbstractContextManager[None]:
        return preparation.precision_context(self.setup.config)

    def train(self, samples: int, epoch: int) -> None:
        """Trains an epoch over the first `samples` volumes."""
        self.losses(samples, epoch)

    def losses(self, samples: int, epoch: int) -> np.ndarray:
        """Trains an epoch and returns the loss of each step."""
        with self._arithmetic():
            if samples not in self.trains:
                count, batch = self.setup.devices.count, self.setup.train_plan.batch
                sized = self.setup._replace(train_plan=plan_batches(samples, batch, count, self.setup.train_plan.micro_batch))
                self.trains[samples] = programs.training(sized, self.state)
            self.state, losses = self.trains[samples](self.state, epoch)
        return losses

    def evaluate(self) -> float:
        """Returns the validation loss."""
        with self._arithmetic():
            self.evaluates = self.evaluates or programs.validation(self.setup, self.state.params)
            return self.evaluates(self.state.params)[LOSS]

    def gradient(self) -> Arrays:
        """Returns the gradient of the first step's loss."""
        order = epoch_order(self.setup.config.seed, 1, self.setup.train_plan.samples)
        with self._arithmetic():
            return self.gradient_of(jax.device_get(self.state.params), order[: self.setup.train_plan.batch])

    def gradient_of(self, params: Params, index: np.ndarray) -> Arrays:
        """Returns the gradient of the mean loss of some training samples."""
        with self._arithmetic():
            samples = preparation.cast(self.setup.config, self.setup.data.train)
            chosen = jax.tree.map(lambda array: array[index], samples)
            return flat(self.gradient_program(params, chosen))


def start(known: Problem) -> GmmaeBackend:
    """Starts gmmae on a problem."""
    return GmmaeBackend(configuration(**known.source))


def main() -> None:
    """Writes a problem into a folder and prints JAX's machine.

    python -m benchmarks.peers.gmmae_backend SOURCE FOLDER
    """
    source, folder = sys.argv[1:]
    made = problem_of(**json.loads(source))
    problem.write(Path(folder), made)
    found = {"platform": jax.default_backend(), "kind": jax.devices()[0].device_kind}
    print(json.dumps({**found, "batch": made.batch, "samples": made.samples}))


if __name__ == "__main__":
    guarded(main)

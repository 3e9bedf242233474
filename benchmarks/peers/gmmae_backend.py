"""gmmae as a backend: the programs that `train.py` runs, and the problem for the others."""

import contextlib
import dataclasses
import json
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util

from benchmarks.options import guarded
from benchmarks.peers import problem
from benchmarks.peers.backends import Last, Place
from benchmarks.peers.problem import Arrays, Problem
from gmmae.config.schema import LOSS, Config, changed, flatten
from gmmae.config.toml import find
from gmmae.scaling.batches import plan_batches, shard_samples
from gmmae.system.errors import InputError
from gmmae.system.provenance import versions
from gmmae.training import compilation
from gmmae.training.parallel import pmean
from gmmae.training.run_cache import RunCache
from gmmae.training.step import TrainState
from gmmae.workloads.configuration import read_config
from gmmae.workloads.interface import Params, Samples

CONSTANT_RATE = {"optim.decay_epochs": (), "optim.warmup_epochs": 0, "optim.cosine_epochs": None}
TRAINING = {"scaling": "strong", "optim.clip_norm": None, **CONSTANT_RATE, "data.augment": False}
AUTOENCODER = TRAINING | {
    **{"loss": "msle", "data.ndim": 3, "model.decoder": "dense", "model.covariance": "partial", "model.padding": "VALID"},
    **{"model.activation": "relu", "stop.monitor": LOSS, "stop.mode": "auto"},
}
UNET = TRAINING | {"data.ndim": 2, "data.neighbours": 0, "model.groups": None}
"""Values of a configuration's keys that the reference implementations need."""


def configuration(
    name: str, samples: int = 0, validation: int = 0, precision: str = "float32", changes: dict[str, Any] | None = None
) -> Config:
    """Returns a configuration on all devices of the process, with `samples` training volumes if that is not 0.

    Samples of slices are synthetic nodules, whose patches are the same in each epoch. The learning rate of slices is
    constant, because the reference implementations have no schedule. `changes` are other fields, `section__field`.
    """
    config = changed(read_config(find(name)), **(changes or {}))
    config = dataclasses.replace(config, precision=precision)
    if config.workload == "segmentation":
        rate = {key.replace(".", "__"): value for key, value in CONSTANT_RATE.items()}
        config = changed(config, data__source="synthetic", data__root=None, data__jitter=0, data__augment=False, **rate)
    return changed(config, data__samples=samples + validation, data__validation=validation) if samples else config


def problem_of(**source: Any) -> Problem:
    """Returns the problem of a configuration, with its initial parameters. Arguments are those of `configuration`.

    Raises:
      InputError: the reference implementations do not have a field's value.
    """
    config = configuration(**source)
    optim, stop = config.optim, config.stop
    shapes = {"nodules": autoencoder, "segmentation": unet}
    if config.workload not in shapes:
        raise InputError(
            f"the reference implementations need a workload among {', '.join(shapes)}; got {config.workload!r}: {OTHER}"
        )
    shape, given = shapes[config.workload](config)
    setup = compilation.prepare(config)
    params = compilation.initial_state(setup).params
    train, validation = map(given, (setup.data.train, setup.data.validation))
    return Problem(
        workload=config.workload,
        model=shape,
        batch=optim.batch_size,
        seed=config.seed,
        learning_rate=optim.learning_rate,
        beta1=optim.beta1,
        beta2=optim.beta2,
        epsilon=optim.epsilon,
        target_loss=-math.inf if stop.target is None else stop.target,
        max_epochs=stop.max_epochs,
        precision=config.precision,
        train=train,
        validation=validation,
        params=flat(params),
        source=source,
    )


Given = Callable[[Any], Arrays]
"""Function from a workload's samples to the arguments of a reference implementation's loss."""


def autoencoder(config: Config) -> tuple[dict[str, Any], Given]:
    """Returns the shape of the nodules' model and its inputs."""
    data, model = config.settings.data, config.settings.model
    _require(config, AUTOENCODER)
    if not isinstance(data.shape, int):
        raise InputError(f"the reference implementations need volumes with equal edges; got data.shape = {data.shape}: {OTHER}")
    floor = model.sigma_floor * 2 / data.shape
    sizes = (data.shape, [*model.filters], [*model.kernels], model.latent_dim, model.components)
    shape = problem.Autoencoder(*sizes, model.rho, floor, model.rho_limit)
    return shape._asdict(), lambda volumes: {"volumes": volumes}


def unet(config: Config) -> tuple[dict[str, Any], Given]:
    """Returns the shape of the U-Net and its inputs."""
    from gmmae.data.patches import NODULE, OUTSIDE
    from gmmae.workloads.segmentation import crop_and_augment

    data, model = config.settings.data, config.settings.model
    _require(config, UNET)

    def given(samples: Samples) -> Arrays:
        with compilation.precision_context(config):
            images, labels = (np.asarray(array) for array in crop_and_augment(data, samples, None))
        return {"images": images[..., 0], "truth": labels == NODULE, "counted": labels != OUTSIDE}

    return {"features": [*model.features]}, given


OTHER = "choose another configuration"


def _require(config: Config, wanted: dict[str, Any]) -> None:
    has = dict(flatten(config))
    for key, value in wanted.items():
        if has[key] != value:
            raise InputError(f"the reference implementations need {key} = {_shown(value)}; got {_shown(has[key])}: {OTHER}")


def _shown(value: object) -> str:
    return "none" if value is None else repr(value)


def flat(params: Params) -> Arrays:
    """Returns parameters or gradients by name."""
    return {
        name.removeprefix("params/"): np.asarray(leaf) for name, leaf in traverse_util.flatten_dict(params, sep="/").items()
    }


def unflat(arrays: Arrays) -> Params:
    """Returns the inverse of `flat`, on the host."""
    return traverse_util.unflatten_dict({f"params/{name}": np.asarray(value) for name, value in arrays.items()}, sep="/")


class GmmaeBackend:
    """A `backends.Peer` of gmmae."""

    def __init__(self, config: Config, params: Arrays | None = None):
        self.params = params or {}
        self.setup = compilation.prepare(config)
        self.start = compilation.initial_state(self.setup)
        self.trains: dict[int, Any] = {}
        self.evaluates: Callable[[Any], dict[str, float]] | None = None
        self.reduce: Callable[[], Any] | None = None
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
        return compilation.precision_context(self.setup.config)

    def train(self, samples: int, epoch: int) -> None:
        """Trains an epoch over the first `samples` volumes."""
        self.losses(samples, epoch)

    def losses(self, samples: int, epoch: int) -> np.ndarray:
        """Trains an epoch and returns the loss of each step."""
        with self._arithmetic():
            if samples not in self.trains:
                count, batch = self.setup.devices.count, self.setup.train_plan.batch
                sized = self.setup._replace(train_plan=plan_batches(samples, batch, count, self.setup.train_plan.micro_batch))
                self.trains[samples] = compilation.train_program(sized, self.state)
            self.state, losses = self.trains[samples](self.state, epoch)
        return losses

    def evaluate(self) -> float:
        """Returns the validation loss."""
        with self._arithmetic():
            self.evaluates = self.evaluates or compilation.evaluate_program(self.setup, self.state.params)
            return self.evaluates(self.state.params)[LOSS]

    def gradient(self) -> Arrays:
        """Returns the gradient of the first step's loss."""
        order = compilation.epoch_order(self.setup.config.seed, 1, self.setup.train_plan.samples)
        with self._arithmetic():
            return self.gradient_of(jax.device_get(self.state.params), order[: self.setup.train_plan.batch])

    def gradient_of(self, params: Params, index: np.ndarray) -> Arrays:
        """Returns the gradient of the mean loss of some training samples."""
        with self._arithmetic():
            samples = compilation.cast(self.setup.config, self.setup.data.train)
            chosen = jax.tree.map(lambda array: array[index], samples)
            return flat(self.gradient_program(params, chosen))

    def last(self, recipe: str) -> Last:
        """Returns the gradient that `train.py` reduces. Its optimiser keeps the last gradient and changes nothing."""
        with self._arithmetic():

            def zeros(params: Params) -> Params:
                return jax.tree.map(jnp.zeros_like, params)

            def keep(updates: Params, state: object, params: Params | None = None) -> tuple[Params, Params]:
                return zeros(updates), updates

            params = unflat(self.params)
            state = self.setup.devices.replicate(TrainState(params, jax.tree.map(np.zeros_like, params)))
            keeping = optax.with_extra_args_support(optax.GradientTransformation(zeros, keep))
            setup = self.setup._replace(optimizer=keeping, cache=RunCache())
            state, _ = compilation.train_program(setup, state)(state, 1)
            order = compilation.epoch_order(setup.config.seed, 1, setup.train_plan.samples)
            dealt = shard_samples(order, setup.train_plan)
            own = zip(dealt.indices[jax.process_index()], dealt.weights[jax.process_index()], strict=True)
            return flat(jax.device_get(state.opt_state)), [index[weights > 0].tolist() for index, weights in own]

    def reduction(self, times: int) -> None:
        """Averages the gradient over the processes, `times` times."""
        if self.reduce is None:
            self.reduce = self._reduction(times)
        jax.block_until_ready(self.reduce())

    def _reduction(self, times: int) -> Callable[[], Any]:
        """Returns a program of `times` averages of an array of the gradient's size, one after the other."""
        devices = self.setup.devices
        vector = devices.replicate(np.zeros(compilation.parameter_count(self.start.params), np.float32))
        ones = devices.shard(np.ones((devices.count, 1), np.float32))

        def program(vector: jax.Array, ones: jax.Array) -> jax.Array:
            return jax.lax.fori_loop(0, times, lambda _, x: pmean(lambda *_: x + ones, ones, ones), vector)

        return partial(devices.compile(program, vector, ones, sharded=1), vector, ones)


def start(known: Problem, place: Place) -> GmmaeBackend:
    """Starts gmmae on a problem."""
    if place.processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{place.port}", place.processes, place.rank)
    return GmmaeBackend(configuration(**known.source), known.params)


def main() -> None:
    """Writes a problem into a folder and prints JAX's machine.

    python -m benchmarks.peers.gmmae_backend SOURCE FOLDER
    """
    source, folder = sys.argv[1:]
    made = problem_of(**json.loads(source))
    problem.write(Path(folder), made)
    found = {"platform": jax.default_backend(), "kind": jax.devices()[0].device_kind}
    print(json.dumps({**found, "batch": made.batch, "workload": made.workload, "samples": made.samples}))


if __name__ == "__main__":
    guarded(main)

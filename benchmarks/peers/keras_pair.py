"""Keras reference in several processes: `tf.distribute.MultiWorkerMirroredStrategy` and a custom loop.

With Keras 3 `Model.fit` does not run under that strategy, because it would build the model from a batch of several processes
(https://github.com/keras-team/keras/issues/20585). The loop follows TensorFlow's guide to custom training.
"""

import json
import os
from typing import Any

import numpy as np

from benchmarks.peers import keras_reference
from benchmarks.peers.backends import Last, Place
from benchmarks.peers.keras_reference import EVAL_BATCH, KerasPeer, keras, msle, tf
from benchmarks.peers.problem import Problem

MEANS = {
    "mean": lambda losses, size, batch: tf.reduce_sum(losses) / size,
    "average": lambda losses, size, batch: tf.nn.compute_average_loss(losses),
    "average of a batch": lambda losses, size, batch: tf.nn.compute_average_loss(losses, global_batch_size=batch),
}
"""Process's part of a step's loss, by its losses, the samples of the step, and those of a full step."""


class KerasPair(KerasPeer):
    """A `backends.Peer` of two processes."""

    def __init__(self, problem: Problem, place: Place):
        workers = [f"127.0.0.1:{place.port + rank}" for rank in range(place.processes)]
        task = {"type": "worker", "index": place.rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with self.strategy.scope():
            super().__init__(problem, jit=False)

    def reset(self) -> None:
        """Restores the initial parameters and optimiser state."""
        with self.strategy.scope():
            super().reset()
            self.model.optimizer.build(self.model.trainable_variables)
        self.step = self._step_of("mean")
        self.losses_of = tf.function(self._losses_of)

    def _step_of(self, recipe: str) -> Any:
        """Returns a step of all processes, from volumes and their number to the loss."""
        variables = self.model.trainable_variables

        def on_one(volumes, size):
            with tf.GradientTape() as tape:
                found = msle(volumes, self.model(volumes, training=True))
                loss = MEANS[recipe](found, size, self.problem.batch)
            gradients = tape.gradient(loss, variables)
            self.model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        @tf.function(reduce_retracing=True)
        def step(volumes, size):
            return self.strategy.reduce("SUM", self.strategy.run(on_one, args=(volumes, size)), axis=None)

        return step

    def _losses_of(self, volumes):
        each = self.strategy.run(lambda x: tf.reduce_sum(msle(x, self.model(x))), args=(volumes,))
        return self.strategy.reduce("SUM", each, axis=None)

    def _batches(self, *arrays: np.ndarray, size: int) -> Any:
        data = tf.data.Dataset.from_tensor_slices(arrays).batch(size)
        return self.strategy.experimental_distribute_dataset(data)

    def train(self, samples: int, epoch: int) -> None:
        """Trains an epoch over the first `samples` volumes."""
        self.losses(samples, epoch)

    def losses(self, samples: int, epoch: int) -> np.ndarray:
        """Trains an epoch and returns the loss of each step."""
        batches = self.problem.batches(samples, epoch)
        data = self._batches(self.volumes[np.concatenate(batches)], size=self.problem.batch)
        steps = zip(data, map(self._size, batches), strict=True)
        return np.array([self.step(x, size) for (x,), size in steps])

    def _size(self, batch: np.ndarray) -> Any:
        return tf.constant(len(batch), self.problem.precision)

    def evaluate(self) -> float:
        """Returns the validation loss."""
        size = EVAL_BATCH * self.strategy.num_replicas_in_sync
        found = [self.losses_of(x) for (x,) in self._batches(self.validation, size=size)]
        return float(sum(found)) / len(self.validation)

    def reduction(self, times: int) -> None:
        """Averages the gradient over the processes, `times` times."""
        vector = tf.zeros(self.model.count_params(), self.problem.precision)

        def on_one():
            return tf.distribute.get_replica_context().all_reduce("SUM", vector)

        for _ in range(times):
            self.strategy.run(on_one)

    def last(self, recipe: str) -> Last:
        """Returns the gradient of the last step and the samples of each step."""
        with self.strategy.scope():
            self.model.compile(optimizer=keras.optimizers.SGD(1.0), loss=msle)
            self.model.optimizer.build(self.model.trainable_variables)
        batches = self.problem.batches(self.problem.samples, 1)
        order, gradient, steps = np.concatenate(batches), {}, []
        step = self._step_of(recipe)
        data = self._batches(self.volumes[order], order, size=self.problem.batch)
        for (x, index), size in zip(data, map(self._size, batches), strict=True):
            before = keras_reference.values(self._variables())
            step(x, size)
            gradient = {name: before[name] - after for name, after in keras_reference.values(self._variables()).items()}
            for name, variable in self._variables().items():
                variable.assign(before[name])
            steps.append([int(i) for own in self.strategy.experimental_local_results(index) for i in np.asarray(own)])
        return gradient, steps


def start(problem: Problem, place: Place) -> KerasPair:
    """Starts Keras in several processes."""
    return KerasPair(problem, place)

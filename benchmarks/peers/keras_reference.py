"""Autoencoder in Keras 3 on TensorFlow, the paper's stack: layers, `compile`, `fit`."""

import math
import os
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # pyright: ignore[reportMissingImports]
import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
from keras import ops  # pyright: ignore[reportMissingImports]

from benchmarks.peers.backends import Last, Place
from benchmarks.peers.problem import Arrays, Autoencoder, Problem
from benchmarks.peers.quadratic import coefficients

EVAL_BATCH = 64  # as gmmae.training.compilation.EVAL_DEVICE_BATCH


class Density(keras.layers.Layer):
    """Layer from the heads' numbers to the density of a volume."""

    def __init__(self, shape: Autoencoder):
        super().__init__()
        self.shape = shape
        self.monomials = ops.convert_to_tensor(shape.monomials(keras.config.floatx()))

    def call(self, planes):
        """Returns the density."""
        p = self.shape
        alpha, mu, sigma, rho = ops.split(ops.reshape(planes, (-1, 10, p.components)), (1, 4, 7), axis=1)
        squash = {"sigmoid": ops.sigmoid, "tanh": ops.tanh}[p.rho]
        terms = coefficients(
            ops.log_softmax(ops.squeeze(alpha, axis=1), axis=-1),
            ops.unstack(ops.tanh(mu), axis=1),
            ops.unstack(p.sigma_floor + (1 - p.sigma_floor) * ops.sigmoid(sigma), axis=1),
            ops.unstack(p.rho_limit * squash(rho), axis=1),
            sqrt=ops.sqrt,
            log=ops.log,
        )
        density = ops.sum(ops.exp(ops.matmul(ops.stack(terms, axis=-1), self.monomials)), axis=1)
        return ops.reshape(density, (-1, p.size, p.size, p.size))


def reference_model(shape: Autoencoder) -> Any:
    """Returns the model. Its layers have gmmae's names, with `_` for `/`."""
    volume = keras.Input((shape.size,) * 3)
    x = ops.expand_dims(volume, -1)
    for i, (filters, kernel) in enumerate(zip(shape.filters, shape.kernels, strict=True)):
        x = keras.layers.Conv3D(filters, kernel, activation="relu", name=f"encoder_Conv_{i}")(x)
    flat = keras.layers.Flatten()(keras.layers.Permute((4, 1, 2, 3))(x))  # channels first, as ours
    latent = keras.layers.Dense(shape.latent_dim, activation="relu", name="encoder_Dense_0")(flat)
    planes = keras.layers.Dense(10 * shape.components, name="heads")(latent)
    return keras.Model(volume, Density(shape)(planes))


def msle(target, predicted):
    """Returns the mean squared logarithmic error of each volume."""
    return ops.mean(ops.square(ops.log1p(predicted) - ops.log1p(target)), axis=(1, 2, 3))


class Adam(keras.optimizers.Adam):
    """Keras' Adam without two roundings that would change the losses of 20 steps.

    Keras adds ε before it corrects the bias of the second moment. That makes ε thirty times larger in the first step, where
    most gradients are small, and changes the second loss by 3 %. It also computes `1 - βᵗ` in float32, which cancels
    (`gmmae.training.step`).
    """

    def update_step(self, gradient, variable, learning_rate):
        """Updates a variable."""
        step = ops.cast(self.iterations + 1, variable.dtype)
        betas = [float(self.beta_1), float(self.beta_2)]
        first, second = (-ops.expm1(step * math.log(beta)) for beta in betas)
        first_rounded, second_rounded = (1 - ops.power(ops.cast(beta, variable.dtype), step) for beta in betas)
        correction = ops.sqrt(second / second_rounded) * first_rounded / first
        given, self.epsilon = self.epsilon, self.epsilon * ops.sqrt(second)
        super().update_step(gradient, variable, learning_rate * correction)
        self.epsilon = given


class KerasPeer:
    """A `backends.Peer`. `jit` is Keras' `jit_compile`."""

    def __init__(self, problem: Problem, jit: bool):
        self.problem, self.jit = problem, jit
        tf.config.experimental.enable_tensor_float_32_execution(False)
        keras.config.set_floatx(problem.precision)
        arrays = problem.train["volumes"], problem.validation["volumes"]
        self.volumes, self.validation = (x.astype(problem.precision) for x in arrays)
        self.model = reference_model(Autoencoder(**problem.model))
        self.reset()

    def facts(self) -> dict[str, Any]:
        """Returns versions, threads and device."""
        devices = tf.config.list_physical_devices("GPU")
        kind = tf.config.experimental.get_device_details(devices[0])["device_name"] if devices else "cpu"
        versions = {"keras": keras.__version__, "tensorflow": tf.__version__}
        return {"versions": versions, "device": kind, "threads": len(os.sched_getaffinity(0))}

    def _variables(self) -> dict[str, Any]:
        """Returns the trainable variables by gmmae's names."""
        layers = [layer for layer in self.model.layers if layer.weights]
        return {
            f"{layer.name.replace('_', '/', 1)}/{variable.name}": variable for layer in layers for variable in layer.weights
        }

    def reset(self) -> None:
        """Restores the initial parameters and optimiser state."""
        p = self.problem
        for name, variable in self._variables().items():
            variable.assign(p.params[name].astype(p.precision))
        adam = Adam(p.learning_rate, p.beta1, p.beta2, p.epsilon)
        self.model.compile(optimizer=adam, loss=msle, jit_compile=self.jit)

    def train(self, samples: int, epoch: int) -> None:
        """Trains an epoch over the first `samples` volumes."""
        order = np.concatenate(self.problem.batches(samples, epoch))
        x = self.volumes[order]
        self.model.fit(x, x, batch_size=self.problem.batch, shuffle=False, verbose=0)

    def losses(self, samples: int, epoch: int) -> np.ndarray:
        """Trains an epoch and returns the loss of each step."""
        found = []
        for index in self.problem.batches(samples, epoch):
            self.model.reset_metrics()  # Keras gives the mean since the last reset
            found.append(float(self.model.train_on_batch(self.volumes[index], self.volumes[index])))
        return np.array(found)

    def evaluate(self) -> float:
        """Returns the validation loss."""
        return float(self.model.evaluate(self.validation, self.validation, batch_size=EVAL_BATCH, verbose=0))

    def gradient(self) -> Arrays:
        """Returns the gradient of the first step's loss."""
        [first, *_] = self.problem.batches(len(self.volumes), 1)
        x = ops.convert_to_tensor(self.volumes[first])
        variables = self._variables()
        with tf.GradientTape() as tape:
            loss = ops.mean(msle(x, self.model(x, training=True)))
        gradients = tape.gradient(loss, [variable.value for variable in variables.values()])
        return {name: np.asarray(value) for name, value in zip(variables, gradients, strict=True)}

    def reduction(self, times: int) -> None:
        """Averages the gradient over the processes, `times` times."""
        raise NotImplementedError("Keras' `fit` is timed in one process")

    def last(self, recipe: str) -> Last:
        """Returns the gradient of the last step and the samples of each step."""
        self.model.compile(optimizer=keras.optimizers.SGD(1.0), loss=msle, jit_compile=self.jit)
        batches, keep = self.problem.batches(len(self.volumes), 1), Keep(self._variables())
        x = self.volumes[np.concatenate(batches)]
        self.model.fit(x, x, batch_size=self.problem.batch, shuffle=False, verbose=0, callbacks=[keep])
        return keep.gradient, [batch.tolist() for batch in batches]


def values(variables: dict[str, Any]) -> Arrays:
    """Returns copies on the host."""
    return {name: np.array(variable) for name, variable in variables.items()}


class Keep(keras.callbacks.Callback):
    """Callback that reads a step's gradient, at a learning rate of 1 without momentum, and restores the variables."""

    def __init__(self, variables: dict[str, Any]):
        super().__init__()
        self.variables, self.before, self.gradient = variables, values(variables), {}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Reads the gradient and restores the variables."""
        self.gradient = {name: self.before[name] - value for name, value in values(self.variables).items()}
        for name, variable in self.variables.items():
            variable.assign(self.before[name])


def start(problem: Problem, place: Place, jit: bool) -> KerasPeer:
    """Starts Keras on a problem."""
    return KerasPeer(problem, jit)

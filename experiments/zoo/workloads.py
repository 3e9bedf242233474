"""The small workloads of the zoo: data that are made or come with scikit-learn, models of a few thousand parameters.

They are classifiers, regressions, autoencoders, sequences, a mixture density and a segmentation. Their models have dense
layers, convolutions, attention or recurrence. Noise, optimiser, size (105 to 20,000 training samples) and the distance of the
base learning rate from the best one differ too.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from sklearn import datasets, model_selection, preprocessing

Params = Any
Init = Callable[[Array], Params]
Loss = Callable[[Params, Array, Array], Array]


class Data(NamedTuple):
    """Inputs and outputs for training and for validation; the leading axis is that of samples."""

    inputs: np.ndarray
    outputs: np.ndarray
    validation_inputs: np.ndarray
    validation_outputs: np.ndarray


class Workload(NamedTuple):
    """A small workload.

    Attributes:
      data: makes the data.
      init: initial parameters from a random key.
      loss: the mean loss of parameters on inputs and outputs.
      optimizer: adam, adamw or momentum.
      learning_rate: the lowest base rate; higher ones are multiples of it.
      batch_size: the base batch.
      epochs: epochs of the base run at the lowest rate, whose loss there is the target.
    """

    data: Callable[[], Data]
    init: Init
    loss: Loss
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    batch_size: int = 32
    epochs: int = 30


def divided(inputs: np.ndarray, outputs: np.ndarray, validation: int) -> Data:
    """Returns a random division, with inputs (and real outputs) of mean 0 and deviation 1 in each column."""
    scale = preprocessing.StandardScaler().fit_transform
    inputs = scale(inputs) if inputs.ndim == 2 and inputs.dtype.kind == "f" else inputs
    outputs = scale(outputs[:, None]) if outputs.dtype.kind == "f" and outputs.ndim == 1 else outputs
    train_x, val_x, train_y, val_y = model_selection.train_test_split(inputs, outputs, test_size=validation, random_state=0)
    parts = (_narrow(np.asarray(part)) for part in (train_x, train_y, val_x, val_y))
    return Data(*parts)


def _narrow(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int32)


def of_sklearn(load: Callable[[], Any], validation: int) -> Callable[[], Data]:
    """Returns the data of a data set of scikit-learn."""

    def data() -> Data:
        found = load()
        return divided(found.data, found.target, validation)

    return data


def digits(validation: int = 397, autoencoder: bool = False) -> Callable[[], Data]:
    """Returns scikit-learn's digits as images of 8 × 8 × 1 with values from 0 to 1, or as outputs of themselves."""

    def data() -> Data:
        found: Any = datasets.load_digits()
        images = (found.images[..., None] / 16).astype(np.float32)
        return divided(images, images if autoencoder else found.target, validation)

    return data


def teacher(samples: int, noise: float, seed: int) -> Callable[[], Data]:
    """Returns a function of 16 numbers with noise on the training outputs only; 400 samples validate."""

    def data() -> Data:
        rng, validation = np.random.default_rng(seed), 400
        inputs = rng.normal(size=(samples + validation, 16))
        hidden, last = rng.normal(size=(16, 8)) / 4, rng.normal(size=(8, 1))
        clean = np.tanh(2 * inputs @ hidden) @ last / 2
        noisy = clean + noise * rng.normal(size=clean.shape)
        parts = inputs[validation:], noisy[validation:], inputs[:validation], clean[:validation]
        return Data(*map(_narrow, parts))

    return data


VOCABULARY = 12


def language(sentences: int, length: int, seed: int) -> Callable[[], Data]:
    """Returns sentences of a Markov language of second order; the output is the next letter at each place."""

    def data() -> Data:
        rng = np.random.default_rng(seed)
        chances = rng.dirichlet(np.full(VOCABULARY, 0.15), size=(VOCABULARY, VOCABULARY)).cumsum(-1)
        letters = rng.integers(0, VOCABULARY, (sentences, length + 1))
        for place in range(2, length + 1):
            drawn = rng.random(sentences)[:, None] > chances[letters[:, place - 2], letters[:, place - 1]]
            letters[:, place] = np.minimum(drawn.sum(1), VOCABULARY - 1)
        return divided(letters[:, :-1], letters[:, 1:], 200)

    return data


def next_letters() -> Data:
    """Returns pairs of letters and the letter that follows, of a language."""
    found = language(700, 8, 6)()

    def pairs(letters: np.ndarray) -> np.ndarray:
        return np.stack([letters[:, :-1].ravel(), letters[:, 1:].ravel()], 1)

    return Data(
        pairs(found.inputs), found.outputs[:, 1:].ravel(),
        pairs(found.validation_inputs), found.validation_outputs[:, 1:].ravel(),
    )  # fmt: skip


def inverse_sine() -> Data:
    """Returns the inverse of a wave, which has up to three values: Bishop's example of a mixture density."""
    rng = np.random.default_rng(1)
    outputs = rng.uniform(0, 1, 2300)
    inputs = outputs + 0.3 * np.sin(2 * np.pi * outputs) + rng.uniform(-0.1, 0.1, 2300)
    return divided(inputs[:, None], outputs, 300)


def discs() -> Data:
    """Returns noisy images of 8 × 8 with a disc, and the disc's mask."""
    rng, count, size = np.random.default_rng(7), 300, 8
    centre, radius = rng.uniform(2, 5, (count, 2)), rng.uniform(1.5, 2.5, count)
    grid = np.stack(np.meshgrid(np.arange(size), np.arange(size), indexing="ij"), -1)
    masks = (((grid - centre[:, None, None]) ** 2).sum(-1) < radius[:, None, None] ** 2)[..., None]
    images = masks * rng.uniform(0.5, 1.5, (count, 1, 1, 1)) + 0.6 * rng.normal(size=masks.shape)
    return divided(images, masks.astype(float), 100)


def signals() -> Data:
    """Returns noisy waves of 32 values, as images of one row, with their frequency's class of three."""
    rng, length = np.random.default_rng(8), 32
    classes = rng.integers(0, 3, 1100)
    phase, places = rng.uniform(0, 2 * np.pi, len(classes))[:, None], np.arange(length)
    waves = np.sin((0.5 + 0.12 * classes)[:, None] * places + phase) + 0.8 * rng.normal(size=(len(classes), length))
    return divided(waves[:, None, :, None], classes, 300)


def dense(key: Array, inputs: int, outputs: int, scale: float = 2.0) -> Params:
    """Returns a dense layer's parameters, with weights of variance scale / inputs."""
    return {"w": jax.random.normal(key, (inputs, outputs)) * np.sqrt(scale / inputs), "b": jnp.zeros(outputs)}


def applied(layer: Params, x: Array) -> Array:
    """Returns a dense layer's outputs."""
    return x @ layer["w"] + layer["b"]


def dense_layers(sizes: Sequence[int], scale: float = 2.0) -> Init:
    """Returns the initial parameters of dense layers."""

    def init(key: Array) -> Params:
        keys = jax.random.split(key, len(sizes) - 1)
        return [dense(key, *of, scale) for key, of in zip(keys, itertools.pairwise(sizes), strict=True)]

    return init


def perceptron(params: Params, x: Array, activation: Callable[[Array], Array] = jax.nn.relu) -> Array:
    """Returns the outputs of dense layers."""
    for layer in params[:-1]:
        x = activation(applied(layer, x))
    return applied(params[-1], x)


def convolution(layer: Params, x: Array, rows: int = 3) -> Array:
    """Returns a convolution with kernels of `rows` × 3 and zeros outside, as a product over patches."""
    padded = jnp.pad(x, ((0, 0), (rows // 2, rows // 2), (1, 1), (0, 0)))
    height, width = x.shape[1:3]
    patches = [padded[:, i : i + height, j : j + width] for i in range(rows) for j in range(3)]
    return applied(layer, jnp.concatenate(patches, -1))


def halved(x: Array, rows: int = 2) -> Array:
    """Returns means over blocks of `rows` × 2 pixels."""
    batch, height, width, channels = x.shape
    return x.reshape(batch, height // rows, rows, width // 2, 2, channels).mean((2, 4))


def cross_entropy(logits: Array, classes: Array) -> Array:
    """Returns the mean cross-entropy."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), classes[..., None], -1).mean()


def classifier(params: Params, x: Array, y: Array) -> Array:
    """Returns the loss of dense layers that classify."""
    return cross_entropy(perceptron(params, x.reshape(len(x), -1)), y)


def regression(activation: Callable[[Array], Array] = jax.nn.relu) -> Loss:
    """Returns the mean square of dense layers that predict; images are flattened."""
    return lambda params, x, y: ((perceptron(params, x.reshape(len(x), -1), activation) - y.reshape(len(y), -1)) ** 2).mean()


def convolutional_classifier(sizes: Sequence[int], last: int, rows: int = 3) -> tuple[Init, Loss]:
    """Returns convolutions, each followed by ReLU and means of blocks, and a dense layer.

    Args:
      sizes: channels, the input's first.
      last: inputs of the dense layer over its outputs: (pixels at the end, classes).
      rows: rows of a kernel, 3 or 1.
    """
    pixels, classes = last // 100, last % 100

    def init(key: Array) -> Params:
        keys = jax.random.split(key, len(sizes))
        layers = [dense(k, 3 * rows * i, o) for k, i, o in zip(keys, sizes[:-1], sizes[1:], strict=False)]
        return [*layers, dense(keys[-1], pixels * sizes[-1], classes, 1.0)]

    def loss(params: Params, x: Array, y: Array) -> Array:
        for layer in params[:-1]:
            x = halved(jax.nn.relu(convolution(layer, x, rows)), min(2, rows))
        return cross_entropy(applied(params[-1], x.reshape(len(x), -1)), y)

    return init, loss


def segmenter() -> tuple[Init, Loss]:
    """Returns three convolutions that give each pixel's logit, with the mean binary cross-entropy."""
    sizes = (1, 4, 4, 1)

    def init(key: Array) -> Params:
        return [dense(k, 9 * i, o) for k, i, o in zip(jax.random.split(key, 3), sizes[:-1], sizes[1:], strict=True)]

    def loss(params: Params, x: Array, y: Array) -> Array:
        for layer in params[:-1]:
            x = jax.nn.relu(convolution(layer, x))
        logits = convolution(params[-1], x)
        return (jax.nn.softplus(logits) - y * logits).mean()

    return init, loss


def transformer() -> tuple[Init, Loss]:
    """Returns one layer of causal attention with one head, and the mean cross-entropy of the next letters."""
    length, width = 8, 12

    def init(key: Array) -> Params:
        keys = jax.random.split(key, 7)
        return {
            "letters": 0.3 * jax.random.normal(keys[0], (VOCABULARY, width)),
            "places": 0.3 * jax.random.normal(keys[1], (length, width)),
            "attention": dense(keys[2], width, 3 * width, 1.0),
            "out": dense(keys[3], width, width, 1.0),
            "wide": dense(keys[4], width, 2 * width),
            "narrow": dense(keys[5], 2 * width, width, 0.5),
            "logits": dense(keys[6], width, VOCABULARY, 1.0),
        }

    def loss(params: Params, x: Array, y: Array) -> Array:
        hidden = params["letters"][x] + params["places"]
        query, key, value = jnp.split(applied(params["attention"], jax.nn.standardize(hidden)), 3, -1)
        scores = jnp.einsum("bid,bjd->bij", query, key) / np.sqrt(width)
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
        hidden += applied(params["out"], jax.nn.softmax(scores) @ value)
        hidden += applied(params["narrow"], jax.nn.gelu(applied(params["wide"], jax.nn.standardize(hidden))))
        return cross_entropy(applied(params["logits"], jax.nn.standardize(hidden)), y)

    return init, loss


def recurrent() -> tuple[Init, Loss]:
    """Returns a recurrent layer, and the mean cross-entropy of the next letters."""
    width = 16

    def init(key: Array) -> Params:
        keys = jax.random.split(key, 4)
        return {
            "letters": 0.3 * jax.random.normal(keys[0], (VOCABULARY, width)),
            "recurrent": dense(keys[1], width, width, 1.0),
            "input": dense(keys[2], width, width, 1.0),
            "logits": dense(keys[3], width, VOCABULARY, 1.0),
        }

    def loss(params: Params, x: Array, y: Array) -> Array:
        inputs = jnp.swapaxes(applied(params["input"], params["letters"][x]), 0, 1)
        state, states = jnp.zeros(inputs.shape[1:]), []
        for one in inputs:
            state = jnp.tanh(one + state @ params["recurrent"]["w"])
            states.append(state)
        return cross_entropy(applied(params["logits"], jnp.stack(states, 1)), y)

    return init, loss


def mixture_density(params: Params, x: Array, y: Array) -> Array:
    """Returns the negative log likelihood of a mixture of five normals, plus 3 to keep it positive."""
    weights, means, logs = jnp.split(perceptron(params, x, jnp.tanh), 3, -1)
    logs = jnp.clip(logs, -4, 3)
    parts = jax.nn.log_softmax(weights) - 0.5 * ((y - means) / jnp.exp(logs)) ** 2 - logs
    return 3 - jax.nn.logsumexp(parts, axis=-1).mean()


def embedded() -> tuple[Init, Loss]:
    """Returns dense layers on embeddings of two letters, and the cross-entropy of the next one."""

    def init(key: Array) -> Params:
        keys = jax.random.split(key, 2)
        letters = 0.5 * jax.random.normal(keys[0], (VOCABULARY, 8))
        return {"letters": letters, "layers": dense_layers((16, 32, VOCABULARY))(keys[1])}

    def loss(params: Params, x: Array, y: Array) -> Array:
        return cross_entropy(perceptron(params["layers"], params["letters"][x].reshape(len(x), -1)), y)

    return init, loss


def classification(samples: int, validation: int, **options: Any) -> Callable[[], Data]:
    """Returns scikit-learn's artificial classes."""

    def data() -> Data:
        made: Any = datasets.make_classification(samples + validation, random_state=3, **options)
        inputs, outputs = made[:2]
        return divided(inputs, outputs, validation)

    return data


def surface(make: Callable[..., Any], samples: int, validation: int, noise: float) -> Callable[[], Data]:
    """Returns an artificial regression of scikit-learn."""

    def data() -> Data:
        inputs, outputs = make(samples + validation, noise=noise, random_state=1)[:2]
        return divided(inputs, outputs, validation)

    return data


WORKLOADS: dict[str, Workload] = {
    "iris_dense": Workload(
        of_sklearn(datasets.load_iris, 45), dense_layers((4, 16, 3)), classifier, learning_rate=4e-3, batch_size=8, epochs=30
    ),
    "wine_dense": Workload(of_sklearn(datasets.load_wine, 50), dense_layers((13, 24, 3)), classifier, "adamw", 4e-3, 8, 15),
    "diabetes_dense": Workload(
        of_sklearn(datasets.load_diabetes, 100),
        dense_layers((10, 32, 32, 1), 1.0),
        regression(jnp.tanh),
        "adamw",
        5e-4,
        epochs=16,
    ),
    "tumours_momentum": Workload(
        of_sklearn(datasets.load_breast_cancer, 160), dense_layers((30, 24, 2)), classifier, "momentum", 2e-3, 16, 10
    ),
    "digits_convolution": Workload(digits(validation=1197), *convolutional_classifier((1, 4, 8), 4_10), epochs=16),
    "digits_momentum": Workload(digits(), dense_layers((64, 48, 10)), classifier, "momentum", 2e-3, epochs=12),
    "digits_autoencoder": Workload(
        digits(autoencoder=True), dense_layers((64, 48, 8, 48, 64)), regression(), learning_rate=5e-4, epochs=25
    ),
    "discs_segmentation": Workload(discs, *segmenter(), learning_rate=2e-3, batch_size=8, epochs=12),
    "signals_convolution": Workload(signals, *convolutional_classifier((1, 6, 8), 8_03, rows=1), "momentum", 5e-3, 32, 16),
    "teacher_clean": Workload(teacher(3000, 0.0, 1), dense_layers((16, 48, 48, 1), 1.0), regression(jnp.tanh), epochs=12),
    "teacher_noisy": Workload(
        teacher(3000, 1.0, 2), dense_layers((16, 48, 48, 1), 1.0), regression(jnp.tanh), learning_rate=5e-4, epochs=8
    ),
    "teacher_momentum": Workload(
        teacher(2000, 0.3, 3), dense_layers((16, 48, 1), 1.0), regression(jnp.tanh), "momentum", 2e-3, epochs=20
    ),
    "language_attention": Workload(language(700, 8, 4), *transformer(), "adamw", 2e-3, epochs=12),
    "language_recurrent": Workload(language(700, 6, 5), *recurrent(), epochs=12),
    "letters_embedded": Workload(next_letters, *embedded(), epochs=8),
    "mixture_density": Workload(inverse_sine, dense_layers((1, 32, 32, 15), 1.0), mixture_density, epochs=15),
    "noisy_classes": Workload(
        classification(2000, 400, n_features=20, n_informative=10, n_redundant=4, n_classes=4, flip_y=0.25, class_sep=1.2),
        dense_layers((20, 32, 4)),
        classifier,
        learning_rate=5e-4,
        epochs=10,
    ),
    "friedman_deep": Workload(
        surface(datasets.make_friedman1, 1500, 400, 0.5),
        dense_layers((10, *[24] * 5, 1)),
        regression(),
        "adam",
        2.5e-4,
        epochs=10,
    ),
    "roll_adamw": Workload(
        surface(datasets.make_swiss_roll, 1000, 300, 0.3),
        dense_layers((3, 48, 48, 1)),
        regression(jax.nn.gelu),
        "adamw",
        5e-4,
        epochs=15,
    ),
    "large_momentum": Workload(
        classification(20_000, 2000, n_features=24, n_informative=16, n_classes=5, flip_y=0.05),
        dense_layers((24, 32, 5)),
        classifier,
        "momentum",
        5e-3,
        64,
        4,
    ),
    "large_surface": Workload(
        surface(datasets.make_friedman1, 12_000, 2000, 1.0), dense_layers((10, 32, 32, 1)), regression(), "adam", 5e-4, 64, 4
    ),
}
"""Every workload of the zoo, by name."""

"""Keras on TensorFlow, its own loop: `TF_CONFIG=… python -m experiments.minimal.mirrored FOLDER` in each process."""

import sys
from pathlib import Path

import numpy as np

from benchmarks.peers import problem
from benchmarks.peers.keras_reference import Adam, keras, msle, reference_model, tf
from benchmarks.peers.problem import Autoencoder


def main() -> None:
    """Trains one epoch and prints the validation loss."""
    known = problem.read(Path(sys.argv[1]))
    keras.config.set_floatx(known.precision)
    volumes, validation = (x["volumes"].astype(known.precision) for x in (known.train, known.validation))
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # [start]
    with strategy.scope():  # [start]
        model = reference_model(Autoencoder(**known.model))
        optimizer = Adam(known.learning_rate, known.beta1, known.beta2, known.epsilon)
        optimizer.build(model.trainable_variables)
    for layer in model.layers:
        for variable in layer.weights:
            variable.assign(known.params[f"{layer.name.replace('_', '/', 1)}/{variable.name}"])

    def on_one(volumes, size):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(msle(volumes, model(volumes))) / size
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))

    @tf.function
    def train(volumes, size):
        strategy.run(on_one, args=(volumes, size))  # [start]

    @tf.function
    def validate(volumes):
        each = strategy.run(lambda x: tf.reduce_sum(msle(x, model(x))), args=(volumes,))  # [validate]
        return strategy.reduce("SUM", each, axis=None)  # [validate]

    order = np.concatenate(known.batches(known.samples, epoch=1))
    data = tf.data.Dataset.from_tensor_slices(volumes[order]).batch(known.batch)
    sizes = [len(batch) for batch in known.batches(known.samples, epoch=1)]  # [mean]
    data = strategy.experimental_distribute_dataset(data)  # [divide]
    for batch, size in zip(data, sizes, strict=True):
        train(batch, tf.constant(size, known.precision))
    held = tf.data.Dataset.from_tensor_slices(validation).batch(64)
    held = strategy.experimental_distribute_dataset(held)  # [validate]
    loss = sum(float(validate(batch)) for batch in held) / len(validation)
    if strategy.cluster_resolver.task_id == 0:  # [start]
        print(loss)


if __name__ == "__main__":
    main()

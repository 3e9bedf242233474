"""The paper's experiment in one file, to read, to learn from and to copy. It needs jax, flax, optax and numpy.

Cunha, Rodrigues, Viana and Oliveira (2018), "An argument in favor of strong scaling for deep neural networks with small
datasets", arXiv:1807.09161. An autoencoder describes a volume of 16³ voxels as a mixture of trivariate normal distributions.
Several devices train it synchronously, and what counts is the time to a target of the validation loss. The equations below
are the paper's.

gmmae writes the volumes (run `make train` first), and this file trains on them:

    python -c "import gmmae, numpy; data = gmmae.load('runs/quickstart').workload.load(); \
        numpy.savez('cubes.npz', train=data.train, validation=data.validation)"
    JAX_NUM_CPU_DEVICES=4 python examples/one_file.py cubes.npz --devices 1 4 --target 0.002

On a CPU the devices are virtual: the losses are right, and the times are not those of real devices. Without
JAX_NUM_CPU_DEVICES, `--devices` counts GPUs. XLA computes convolutions in three dimensions slowly on a CPU. There an epoch
takes 20 s on two cores, so begin with `--epochs 2`.
"""

import argparse
import time
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax import lax

EDGE = 16
"""Voxels along each axis of a volume."""

SIGMA_FLOOR = 0.5 * 2 / EDGE
"""The smallest standard deviation is half a voxel, because a narrower component falls between the voxels."""

RHO_LIMIT = 0.99
"""The largest correlation, so that no covariance matrix is singular."""


# ---- The mixture (Eq. 5 to 8) ----------------------------------------------------------------------------------------------


class Mixture(NamedTuple):
    """K normal distributions. A covariance matrix is L Lᵀ, where L is lower triangular."""

    log_alpha: jax.Array  # K
    mu: jax.Array  # 3 × K: x, y, z
    cholesky: list[list[jax.Array]]  # L: its three rows up to the diagonal, K numbers each


def mixture_of(alpha, mu, sigma, rho):
    """Returns the mixture of a sample from its logits: softmax, tanh, sigmoid, sigmoid (Eq. 10 to 13).

    Three correlations chosen independently need not make a positive definite matrix (Eq. 6). Here the third one is the
    partial correlation of y and z given x. That matrix is positive definite for any three numbers between -1 and 1. A sigmoid,
    as in the paper, gives positive ones only.
    """
    sigma = SIGMA_FLOOR + (1 - SIGMA_FLOOR) * jax.nn.sigmoid(sigma)
    xy, xz, yz = RHO_LIMIT * jax.nn.sigmoid(rho)
    rest_xy, rest_xz, rest_yz = (jnp.sqrt(1 - r**2) for r in (xy, xz, yz))
    cholesky = [
        [sigma[0]],
        [sigma[1] * xy, sigma[1] * rest_xy],
        [sigma[2] * xz, sigma[2] * yz * rest_xz, sigma[2] * rest_yz * rest_xz],
    ]
    return Mixture(jax.nn.log_softmax(alpha), jnp.tanh(mu), cholesky)


def density(mixture):
    """Returns M(x) = Σ α N(x; μ, Σ) at the centres of the voxels (Eq. 5 and 7), a volume in the order z, y, x."""
    centres = (2 * jnp.arange(EDGE, dtype=mixture.mu.dtype) + 1) / EDGE - 1
    z, y, x = jnp.meshgrid(centres, centres, centres, indexing="ij")
    dx, dy, dz = (axis[..., None] - mean for axis, mean in zip((x, y, z), mixture.mu, strict=True))
    (a,), (b, c), (d, e, f) = mixture.cholesky
    u = dx / a  # L⁻¹ (x - μ), row by row
    v = (dy - b * u) / c
    w = (dz - d * u - e * v) / f
    log_normal = -(u**2 + v**2 + w**2) / 2 - jnp.log(a * c * f) - 1.5 * jnp.log(2 * jnp.pi)
    return jnp.exp(mixture.log_alpha + log_normal).sum(-1)


# ---- The autoencoder (Eq. 9 to 13) -----------------------------------------------------------------------------------------


class Autoencoder(nn.Module):
    """Convolutions and a dense layer encode volumes, and four dense layers in parallel give the numbers of their mixtures."""

    filters: tuple[int, ...]
    kernels: tuple[int, ...]
    latent: int
    components: int
    activation: str

    @nn.compact
    def __call__(self, volumes):
        """Returns the mixture of each volume, with a leading axis for the samples."""
        conv = partial(nn.Conv, padding="VALID", kernel_init=nn.initializers.glorot_uniform())
        dense = partial(nn.Dense, kernel_init=nn.initializers.glorot_uniform())
        phi = getattr(nn, self.activation)
        y = volumes[..., None]
        for filters, edge in zip(self.filters, self.kernels, strict=True):
            y = phi(conv(filters, (edge,) * 3)(y))
        y = phi(dense(self.latent, name="latent")(y.reshape(len(y), -1)))  # Eq. 9
        alpha = dense(self.components, name="alpha")(y)
        mu, sigma, rho = (dense(3 * self.components, name=name)(y) for name in ("mu", "sigma", "rho"))
        return jax.vmap(mixture_of)(alpha, *(logits.reshape(len(y), 3, -1) for logits in (mu, sigma, rho)))


def losses(model, params, volumes):
    """Returns the mean squared logarithmic error of each volume's reconstruction."""
    reconstructions = jax.vmap(density)(model.apply(params, volumes))
    return jnp.square(jnp.log1p(reconstructions) - jnp.log1p(volumes)).mean((1, 2, 3))


# ---- The strategies (sections IV and VI of the paper) ----------------------------------------------------------------------


class Strategy(NamedTuple):
    """What n devices do to a base batch B and a base learning rate η."""

    grows: bool  # whether the global batch is n B, or B
    rule: bool  # whether the learning rate is k η with k = global batch / B, or η
    warmup: bool = False  # whether the learning rate begins at η and goes to k η linearly


STRATEGIES = {
    "strong": Strategy(grows=False, rule=False),
    "weak": Strategy(grows=True, rule=False),
    "linear": Strategy(grows=True, rule=True),
    "linear-warmup": Strategy(grows=True, rule=True, warmup=True),
}


def batch_and_rate(strategy, devices, samples, options):
    """Returns the global batch, which is at most the training set, and the learning rate by step as an optax schedule."""
    batch = min(options.batch * (devices if strategy.grows else 1), samples)
    peak = options.rate * (batch / options.batch if strategy.rule else 1)
    if strategy.warmup and peak > options.rate:
        steps = -(-samples // batch)
        return batch, optax.linear_schedule(options.rate, peak, options.warmup_epochs * steps)
    return batch, optax.constant_schedule(peak)


# ---- Data-parallel steps (Eq. 2) -------------------------------------------------------------------------------------------


def steps_of(order, batch, devices):
    """Yields the samples of each step and their weights, both devices × share.

    A sample weighs devices / count where its step has `count` samples. The mean over the devices of their weighted sums is
    then the mean over the samples, for any number of devices and also for the last step, which may be smaller. Slots that
    are left over repeat a sample, with weight 0.
    """
    share = -(-batch // devices)
    for first in range(0, len(order), batch):
        taken = order[first : first + batch]
        empty = share * devices - len(taken)
        index = np.concatenate([taken, np.full(empty, taken[0])])
        weights = np.concatenate([np.full(len(taken), devices / len(taken)), np.zeros(empty)])
        yield index.reshape(devices, share), weights.reshape(devices, share)


def parallel(function, devices, replicated, sharded):
    """Returns a function on several devices whose first arguments are equal on all of them, as is all that it returns."""
    in_axes = (None,) * replicated + (0,) * sharded
    return jax.pmap(function, "devices", in_axes=in_axes, out_axes=None, devices=jax.devices()[:devices])


def train(name, devices, data, options):
    """Trains with a strategy until the validation loss is at most the target.

    Returns:
      A row of the table, and for each epoch the mean losses of training and validation.
    """
    samples = len(data["train"])
    batch, rate = batch_and_rate(STRATEGIES[name], devices, samples, options)
    sizes = tuple(options.filters), tuple(options.kernels), options.latent, options.components
    model = Autoencoder(*sizes, options.activation)
    optimizer = optax.adam(rate)

    def train_step(params, opt_state, volumes, weights):
        def weighted_sum(params):
            return jnp.sum(weights * losses(model, params, volumes))

        loss, gradient = jax.value_and_grad(weighted_sum)(params)
        loss, gradient = lax.pmean((loss, gradient), "devices")  # Eq. 2: from here on all devices do the same
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    def validation_step(params, volumes, weights):
        return lax.pmean(jnp.sum(weights * losses(model, params, volumes)), "devices")

    train_step = parallel(train_step, devices, replicated=2, sharded=2)
    validation_step = parallel(validation_step, devices, replicated=1, sharded=2)

    params = first_parameters(model, data, options)
    opt_state = optimizer.init(params)
    arguments = data["train"][np.zeros((devices, -(-batch // devices)), int)], np.zeros((devices, -(-batch // devices)))
    jax.block_until_ready(train_step(params, opt_state, *arguments))  # compiles, and its results are thrown away
    jax.block_until_ready(validation_step(params, *arguments))

    rows, start, epoch, val_loss = [], time.perf_counter(), 0, float("inf")
    for epoch in range(1, options.epochs + 1):
        train_loss = val_loss = 0.0
        for index, weights in steps_of(order_of(epoch, samples, data, options), batch, devices):
            params, opt_state, loss = train_step(params, opt_state, data["train"][index], weights)
            train_loss += np.count_nonzero(weights) * float(loss) / samples
        for index, weights in steps_of(np.arange(len(data["validation"])), batch, devices):
            loss = validation_step(params, data["validation"][index], weights)
            val_loss += np.count_nonzero(weights) * float(loss) / len(data["validation"])
        rows.append((epoch, float(train_loss), float(val_loss)))
        if val_loss <= options.target:
            break
    seconds = time.perf_counter() - start
    reached = val_loss <= options.target
    row = (name, devices, batch, f"{batch / options.batch:g}", -(-samples // batch))
    return (*row, epoch if reached else "-", f"{val_loss:.6f}", f"{seconds:.1f}" if reached else "-"), rows


def first_parameters(model, data, options):
    """Returns the parameters that the training begins with: random ones, or those of a file."""
    params = model.init(jax.random.key(options.seed), data["train"][:1])
    params = jax.tree.map(lambda leaf: leaf.astype(data["train"].dtype), params)
    if not options.start:
        return params
    with np.load(options.start) as start:
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: start["/".join(key.key for key in path[1:])].astype(leaf.dtype), params
        )


def order_of(epoch, samples, data, options):
    """Returns the order of the training samples in an epoch: another one in each, and the same for all strategies."""
    if "orders" in data:
        return data["orders"][epoch - 1]
    return np.random.default_rng([options.seed, epoch]).permutation(samples)


# ---- The command -----------------------------------------------------------------------------------------------------------


def main():
    """Trains with each strategy on each number of devices, and prints a row for each."""
    parser = argparse.ArgumentParser(description="Time to a target loss by strategy and number of devices.")
    add = parser.add_argument
    add(
        "cubes", help="an .npz with `train` and `validation`, densities of samples × 16 × 16 × 16, and maybe `orders` of epochs"
    )
    add("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    add("--devices", nargs="+", type=int, default=[1])
    add("--batch", type=int, default=16, help="B, the batch of one device")
    add("--rate", type=float, default=0.0007, help="η, the learning rate of one device")
    add("--warmup-epochs", type=int, default=5, help="of linear-warmup")
    add("--target", type=float, default=0.0, help="the validation loss to reach; `-` in the table: not reached")
    add("--epochs", type=int, default=200, help="the largest number of epochs")
    add("--filters", nargs="+", type=int, default=[16, 16, 16])
    add("--kernels", nargs="+", type=int, default=[7, 5, 3])
    add("--latent", type=int, default=128)
    add("--components", type=int, default=50, help="K, the normal distributions in a mixture")
    add(
        "--activation", choices=("relu", "silu"), default="relu", help="rounding decides on relu's gradient at 0, not on silu's"
    )
    add("--seed", type=int, default=0)
    add("--float64", action="store_true", help="compute in double precision, which shows that strong scaling is exact")
    add("--start", help="an .npz of the first parameters by their names, such as `alpha/kernel`")
    add("--losses", help="a file to write with the losses of each epoch (.csv)")
    options = parser.parse_args()
    if options.float64:
        jax.config.update("jax_enable_x64", True)

    with np.load(options.cubes) as file:
        dtype = np.float64 if options.float64 else np.float32
        data = {name: file[name] if name == "orders" else file[name].astype(dtype) for name in file}
    header = ("strategy", "devices", "batch", "k", "steps", "epochs", "loss", "seconds")
    print(*(f"{title:>13}" for title in header), sep="", flush=True)
    with open(options.losses or "/dev/null", "w") as file:
        print("strategy,devices,epoch,train_loss,val_loss", file=file)
        for devices in options.devices:
            for name in options.strategies:
                row, rows = train(name, devices, data, options)
                print(*(f"{cell:>13}" for cell in row), sep="", flush=True)
                for epoch, *of_epoch in rows:
                    print(name, devices, epoch, *map(repr, of_epoch), sep=",", file=file)


if __name__ == "__main__":
    main()

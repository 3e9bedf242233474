"""Local steps on 2 devices (kind two), and variants of them on 8 (eight, beta) and 32 (thirty), on workloads of the zoo.

python -m experiments.local_variants FOLDER KIND WORKLOAD ...     # FOLDER/KIND_WORKLOAD.csv
"""

import itertools, math, sys, time
from functools import partial
from pathlib import Path
from typing import Any
import jax, jax.numpy as jnp, numpy as np, optax
from jax import lax
from experiments import tables
from experiments.zoo.runs import BASE_MARGIN, DECAY, Trainer, batches, levels
from experiments.zoo.workloads import WORKLOADS
from gmmae.planner.step_ratios import MetricCurve, smooth

SEEDS, MOST = 3, 2.5
RATES2 = (1, math.sqrt(2), 2, 2 * math.sqrt(2), 4 * math.sqrt(2))
RATES8 = (1, 2, math.sqrt(8), 2 * math.sqrt(8))
mean = lambda of: jax.tree.map(lambda leaf: leaf.mean(0).astype(leaf.dtype), of)
spread = lambda of, n: jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n, *leaf.shape)), of)


def steps_to(target, trainer, workload, data, devices, every, batch, most, rate_factors, variant, half):
    inputs, outputs, *validation = map(jnp.asarray, data)
    momentum = workload.optimizer == "momentum"
    optimizer = optax.trace(0.9) if momentum else optax.scale_by_adam()
    decay = DECAY if workload.optimizer == "adamw" else 0.0
    an_epoch = max(1, len(inputs) // batch)
    every = min(every, an_epoch)

    def step(frozen, learning_rate, carry, index):
        params, state = carry
        gradient = jax.grad(workload.loss)(params, inputs[index], outputs[index])
        updates, state = optimizer.update(gradient, state, params)
        if variant == "one second moment":  # the round's first second moment divides; each device's own in the first round
            nu = jax.tree.map(lambda old, new: jnp.where(frozen.count > 0, old, new), frozen.nu, state.nu)
            count = jnp.where(frozen.count > 0, frozen.count, state.count)
            mu_hat = optax.tree.bias_correction(state.mu, 0.9, state.count)
            nu_hat = optax.tree.bias_correction(nu, 0.999, count)
            updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + 1e-8), mu_hat, nu_hat)
        params = jax.tree.map(lambda p, update: p - learning_rate * (update + decay * p), params, updates)
        return (params, state), None

    def replica(learning_rate, carry, indices):
        return lax.scan(partial(step, carry[1], learning_rate), carry, indices)[0]

    def take_round(learning_rate, everything, indices):
        carry, outer = everything
        if variant == "own moments":
            ended = jax.vmap(partial(replica, learning_rate), in_axes=(0, 1))(carry, indices)
            return ((spread(mean(ended[0]), devices), ended[1]), outer), None
        params, state = mean(jax.vmap(partial(replica, learning_rate, carry), in_axes=1)(indices))
        if variant.startswith("outer"):
            rate, beta = map(float, variant.split()[1:])
            delta = jax.tree.map(lambda new, old: old - new, params, carry[0])
            outer = jax.tree.map(lambda m, d: beta * m + d, outer, delta)
            params = jax.tree.map(lambda old, m, d: old - rate * (beta * m + d), carry[0], outer, delta)
        return ((params, state), outer), None

    def until_validation(learning_rate, everything, indices):
        everything = lax.scan(partial(take_round, learning_rate), everything, indices)[0]
        params = everything[0][0]
        if variant == "own moments":
            params = jax.tree.map(lambda leaf: leaf[0], params)
        return everything, workload.loss(params, *validation)

    def block(learning_rate, everything, indices):
        return lax.scan(partial(until_validation, learning_rate), everything, indices)

    run = jax.jit(jax.vmap(jax.vmap(block, (0, 0, None)), (None, 0, 0)))
    carry = jax.tree.map(lambda leaf: leaf[:SEEDS, : len(rate_factors)], trainer.start)
    first = trainer.first_losses[:SEEDS, : len(rate_factors)]
    outer = jax.tree.map(jnp.zeros_like, carry[0])
    if variant == "own moments":
        carry = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf[:, :, None], (*leaf.shape[:2], devices, *leaf.shape[2:])), carry
        )
    everything, losses = (carry, outer), [first]
    rates = workload.learning_rate * jnp.array(rate_factors)
    orders = [batches(len(inputs), batch, seed) for seed in range(SEEDS)]
    spacing, blocks, found = max(8, every, 16 if variant.startswith("H ") else 0), 8, np.array(math.inf)
    spacing = spacing // every * every
    while (len(losses) - 1) * blocks * spacing < most and np.isinf(found).any():
        h = every
        if variant.startswith("H "):
            early, late = map(int, variant.split()[1:])
            h = early if (len(losses) - 1) * blocks * spacing < half else late
        indices = np.stack([[next(order) for _ in range(blocks * spacing)] for order in orders])
        everything, of_blocks = run(rates, everything, indices.reshape(SEEDS, blocks, spacing // h, h, devices, -1))
        losses.append(np.asarray(of_blocks))
        curves = smooth(np.concatenate(losses, -1))
        steps = spacing * np.arange(curves.shape[-1])
        found = np.array([[MetricCurve(steps, one).reaches(target) for one in of_seed] for of_seed in curves])
    return found


def main(kind, names):
    for name in names:
        began = time.perf_counter()
        workload = WORKLOADS[name]
        data = workload.data()
        samples, trainer = len(data.inputs), Trainer(workload, data)
        base = workload.batch_size
        length = workload.epochs * samples // base
        target = levels(trainer.curves(base, lambda found: found.steps[-1] < BASE_MARGIN * length), workload.epochs, samples)[
            -1
        ]
        if kind == "two":
            rates = RATES2
            cells = [(1, 1, base, ""), (1, 1, 2 * base, ""), *((2, h, b, "") for h in (4, 16, 64) for b in (base, 2 * base))]
        elif kind == "beta":
            rates = RATES8
            cells = [(8, 16, base, f"outer 1 {b}") for b in (0.3, 0.7, 0.9)]
        elif kind == "thirty":
            rates = (1, 2, math.sqrt(32), 2 * math.sqrt(32))
            cells = [(32, 16, base, f"outer 1 {b}") for b in (0.5, 0.7)] if base >= 32 else []
        else:
            rates = RATES8
            cells = [
                (8, 16, base, ""),
                *(
                    (8, 16, base, v)
                    for v in ("own moments", "one second moment", "outer 0.7 0.9", "outer 1 0.5", "H 4 16", "H 16 4")
                ),
            ]
        rows = []
        for devices, every, batch, variant in cells:
            if (
                batch > samples
                or every >= 4 * max(1, samples // batch)
                or (variant == "one second moment" and workload.optimizer == "momentum")
            ):
                continue
            if variant.startswith("H ") and samples // batch < 16:
                continue
            found = steps_to(
                target, trainer, workload, data, devices, every, batch, int(MOST * length), rates, variant, length // 2
            )
            for (seed, rate), steps in np.ndenumerate(found):
                rows.append(
                    {
                        "workload": name,
                        "samples": samples,
                        "base_batch": base,
                        "devices": devices,
                        "local_steps": every,
                        "batch": batch,
                        "seed": seed,
                        "rate": f"{rates[rate]:.4g}",
                        "steps": f"{steps:.4g}",
                        "variant": variant,
                    }
                )
        if not rows:
            continue
        tables.write(Path(sys.argv[1]) / f"{kind}_{name}.csv", rows)
        print(kind, name, f"{time.perf_counter() - began:.0f} s", flush=True)


main(sys.argv[2], sys.argv[3:])

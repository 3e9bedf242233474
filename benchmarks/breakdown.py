"""The parts of our training step, each in a scan of its own, in turns with the whole step and with a large matrix product.

python -m benchmarks.breakdown prints one line of JSON.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax import lax

from benchmarks import flops
from benchmarks.peers.ours import Ours, configuration
from benchmarks.spread import Spread, spread
from gmmae import programs
from gmmae.config import Config
from gmmae.losses import msle
from gmmae.mixture import Logits, density, from_logits, grid
from gmmae.models.convolution import Conv
from gmmae.models.encoder import ACTIVATIONS, Heads
from gmmae.models.products import FULL
from gmmae.tables import Table

STEPS = 4
"""Steps of a scan, as many for each part as for the whole."""
EDGE = 2048
"""Of the large matrix product."""
WHOLE, PRODUCT = "step", "product"

Timed = Callable[[], float]


def measure(name: str, turns: int) -> dict[str, Any]:
    """Seconds of a step's parts, of the step and of the large product, by turns."""
    config = configuration(name, 330, 128)
    timed = {**parts(config), WHOLE: whole(config), PRODUCT: product()}
    for run in timed.values():
        run()
    seconds: dict[str, list[float]] = {part: [] for part in timed}
    for _ in range(turns):
        for part, run in timed.items():
            seconds[part].append(run())
    return {"config": name, "batch": config.optim.base_batch, "flops": flops.of_step(config), "seconds": seconds}


def parts(config: Config) -> dict[str, Timed]:
    """Seconds a step of each part: forward and gradients."""
    model, batch, size = config.model, config.optim.base_batch, config.data.size
    activate = ACTIVATIONS[model.activation]
    timed: dict[str, Timed] = {}
    edge, channels = size, 1
    for i, (filters, kernel) in enumerate(zip(model.filters, model.kernels, strict=True)):
        layer = nn.Sequential([Conv(filters, kernel, model.padding), activate])
        timed[f"convolution {i + 1}"] = _layer(layer, (edge, edge, edge, batch, channels), to_input=i > 0)
        edge, channels = edge - kernel + 1, filters
    latent = nn.Dense(model.latent_dim, precision=FULL)
    dense = nn.Sequential([latent, activate, Heads(model.components, 3), _columns])
    timed["dense"] = _layer(dense, (batch, edge**3 * channels), to_input=True)
    timed["density and loss"] = _density(config)
    timed["optimiser"] = _optimiser(config)
    return timed


def _columns(*logits: jax.Array) -> jax.Array:
    return jnp.concatenate([x.reshape(len(x), -1) for x in logits], axis=1)


def _draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


def _timed(step: Callable[[Any, Any], Any], carry: Any, inputs: Any) -> Timed:
    """Seconds of one step of a scan. Inputs differ from step to step, so nothing can be moved out of the loop."""
    compiled = jax.jit(lambda carry, inputs: lax.scan(step, carry, inputs)).lower(carry, inputs).compile()

    def run() -> float:
        began = time.perf_counter()
        jax.block_until_ready(compiled(carry, inputs))
        return (time.perf_counter() - began) / STEPS

    return run


def _layer(layer: nn.Module, shape: tuple[int, ...], *, to_input: bool) -> Timed:
    inputs = jnp.maximum(_draw(STEPS, *shape), 0)
    params = layer.init(jax.random.key(0), inputs[0])

    def step(params: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        value, pull = jax.vjp(layer.apply, params, x) if to_input else jax.vjp(lambda p: layer.apply(p, x), params)
        to_params, *rest = pull(value)  # the value as its own gradient: neither can be left out
        return jax.tree.map(lambda p, g: p - 1e-9 * g, params, to_params), sum((jnp.abs(g).sum() for g in rest), jnp.zeros(()))

    return _timed(step, params, inputs)


def _density(config: Config) -> Timed:
    model, batch, size = config.model, config.optim.base_batch, config.data.size
    points, k = grid(size, 3), model.components
    target = jnp.abs(_draw(batch, size**3))

    def loss(numbers: jax.Array) -> jax.Array:
        alpha, *rest = jnp.split(numbers, [k, 4 * k, 7 * k], axis=1)
        logits = Logits(alpha, *(x.reshape(batch, k, 3) for x in rest))
        floor = model.sigma_floor * 2 / size
        mixture = from_logits(logits, covariance=model.covariance, rho=model.rho, sigma_floor=floor, rho_limit=model.rho_limit)
        return msle(density(mixture, points), target).mean()

    return _timed(lambda carry, x: (carry, jax.value_and_grad(loss)(x)), 0.0, _draw(STEPS, batch, 10 * k))


def _optimiser(config: Config) -> Timed:
    setup = programs.prepare(config)
    state = jax.device_put(programs.initial_state(setup))

    def step(state: Any, scale: jax.Array) -> tuple[Any, None]:
        gradient = jax.tree.map(lambda p: scale * p, state.params)
        updates, opt_state = setup.optimizer.update(gradient, state.opt_state, state.params)
        return state._replace(params=optax.apply_updates(state.params, updates), opt_state=opt_state), None

    return _timed(step, state, jnp.linspace(0.1, 0.2, STEPS))


def whole(config: Config) -> Timed:
    """Seconds of a training step, as `train.py` computes it."""
    ours, samples = Ours(config), STEPS * config.optim.base_batch

    def run() -> float:
        began = time.perf_counter()
        ours.train(samples, 1)
        return (time.perf_counter() - began) / STEPS

    return run


def product() -> Timed:
    """Seconds of a large matrix product in the same arithmetic."""
    a = _draw(EDGE, EDGE)
    compiled = jax.jit(lambda a: jnp.matmul(a, a, precision=FULL)).lower(a).compile()

    def run() -> float:
        began = time.perf_counter()
        jax.block_until_ready(compiled(a))
        return time.perf_counter() - began

    return run


def table(found: dict[str, Any]) -> Table:
    """The parts with their share of the step, their rate, and that rate's share of the large product's."""
    seconds = {part: spread(values) for part, values in found["seconds"].items()}
    counted = found["flops"] | {WHOLE: sum(found["flops"].values())}
    rate = 2 * EDGE**3 / seconds[PRODUCT].median
    rows = [_row(part, seconds[part], seconds[WHOLE].median, counted[part], rate) for part in counted]
    rest = seconds[WHOLE].median - sum(seconds[part].median for part in found["flops"])
    share = f"{100 * rest / seconds[WHOLE].median:.1f}"
    rows.insert(-1, ("the rest: step less its parts", f"{1000 * rest:.3g}", share, "", "", ""))
    columns = (
        "part",
        "ms, median (quartiles)",
        "share of the step, %",
        "GFLOP",
        "GFLOP/s",
        f"of the {EDGE}² product's rate, %",
    )
    notes = (f"The {EDGE}² product in float32: {rate / 1e9:.0f} GFLOP/s. FLOPs by formula (benchmarks/flops.py).",)
    return Table("breakdown", f"One step, {found['config']}, batch {found['batch']}", columns, tuple(rows), notes)


def _row(part: str, seconds: Spread, step_s: float, count: int, rate: float) -> tuple[str, ...]:
    speed = count / seconds.median
    share = 100 * seconds.median / step_s
    return (
        part,
        seconds.text(scale=1000),
        f"{share:.1f}",
        f"{count / 1e9:.3g}",
        f"{speed / 1e9:.3g}",
        f"{100 * speed / rate:.1f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="paper")
    parser.add_argument("--turns", type=int, default=7)
    asked = parser.parse_args()
    print(json.dumps(measure(asked.config, asked.turns)))


if __name__ == "__main__":
    main()

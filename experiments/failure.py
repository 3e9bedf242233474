"""Records how training fails in its first steps: dead units, the gradient and the differences between samples.

    python -m experiments.failure --data FOLDER --out DIR [--seeds 0 1 2] [--steps 60]

Each course has a row for each epoch. Its columns are:

- the losses;
- the fraction of trainable units, by array of weights. A unit is dead if none of its weights has a gradient for some samples;
- the norm of those samples' mean gradient;
- the densities' standard deviation over samples relative to their mean, both averaged over voxels. It is 0 if all are equal;
- the fraction of the mixture, by weight, at an edge of the domain, where the range of the means is flat.

Strategies run as configured, and with one change each (`CURES`). DIR gets courses.csv and courses.png. Courses in that file
are not computed again.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.options import Parser, guarded
from experiments import tables
from experiments.more_arms import MORE
from gmmae.config.schema import Config, changed
from gmmae.config.toml import find
from gmmae.plotting import canvas
from gmmae.scaling.strategies import STRATEGIES
from gmmae.training import compilation, per_sample
from gmmae.training.compilation import TrainSetup
from gmmae.training.step import take
from gmmae.workloads.configuration import read_config
from gmmae.workloads.interface import Params

SATURATED = 0.999
"""Absolute value of a mean, in [-1, 1], above which it lies at an edge of the domain."""

SAMPLES = 64
"""Number of samples that evaluate the units, gradient and densities of a course."""

COURSES = (("strong", 1), ("weak", 8), ("linear", 2), ("linear", 4), ("linear", 8), ("linear-warmup", 8))
SHOWN = ("train_loss", "alive_encoder", "gradient", "spread", "at_the_edge")
LABELS = {
    "train_loss": "training loss",
    "alive_encoder": "units that learn, in the\nencoder's worst layer",
    "gradient": "norm of the gradient",
    "spread": "spread of the densities",
    "at_the_edge": "share of the mixture\nat the domain's edge",
}


class Cure(NamedTuple):
    """Change of the recipe."""

    label: str
    options: Mapping[str, Any]  # of the configuration
    scaling: str = ""  # what the names of the strategies end in


CURES = {
    "none": Cure("as configured", {}),
    "leaky_relu": Cure("leaky ReLU", {"model__activation": "leaky_relu"}),
    "clip": Cure("gradient clipped", {"optim__clip_norm": 0.005}),
    "memory": Cure("β2 in samples", {}, "-memory"),
}


def course(config: Config, steps: int) -> list[dict[str, Any]]:
    """Returns a row for each epoch of the first steps."""
    setup = compilation.prepare(config)
    with compilation.precision_context(config):
        start = compilation.initial_state(setup)
        state = setup.devices.replicate(start)
        compiled, found = compilation.compile_programs(setup, state), judge(setup, start.params, SAMPLES)
        rows = [{"epoch": 0, "step": 0, "train_loss": "", **_row(compiled, found, start.params)}]
        for epoch in range(1, 1 + math.ceil(steps / setup.train_plan.steps)):
            state, losses = compiled.train(state, epoch)
            named = {"epoch": epoch, "step": epoch * setup.train_plan.steps, "train_loss": float(losses.mean())}
            rows.append(named | _row(compiled, found, jax.device_get(state.params)))
    return rows


def _row(
    compiled: compilation.Programs, judged: Callable[[Params], Mapping[str, jax.Array]], params: Params
) -> dict[str, float]:
    return {"val_loss": compiled.evaluate(params)["loss"], **numbers(judged(params))}


def numbers(found: Mapping[str, Any]) -> dict[str, float]:
    """Returns the values of `judge` on the host, and the smallest of the encoder's fractions."""
    plain = {key: float(value) for key, value in found.items()}
    return {"alive_encoder": min(value for key, value in plain.items() if key.startswith("alive_encoder")), **plain}


def judge(setup: TrainSetup, params: Params, count: int) -> Callable[[Params], Mapping[str, jax.Array]]:
    """Returns a program from parameters to the values of a row, by the first `count` training samples."""
    samples = take(jax.device_put(compilation.cast(setup.config, setup.data.train)), np.arange(count))
    keys = jax.random.split(jax.random.key(0), count)
    describe = setup.workload.describe
    assert describe is not None

    def found(params: Params) -> dict[str, jax.Array]:
        gradient = jax.grad(lambda params: per_sample.losses(setup.workload, params, samples, keys).mean())(params)
        arrays = {_name(path): leaf for path, leaf in jax.tree.leaves_with_path(gradient) if leaf.ndim > 1}
        described = describe(params, samples)
        density, edges = described["density"], (jnp.abs(described["means"]) > SATURATED).mean(axis=-1)
        return {
            "gradient": optax.tree_utils.tree_norm(gradient),
            "spread": density.std(axis=0).mean() / density.mean(),
            "at_the_edge": (described["weights"] * edges).sum(axis=-1).mean(),
            **{f"alive_{name}": (jnp.abs(of.reshape(-1, of.shape[-1])).max(axis=0) > 0).mean() for name, of in arrays.items()},
        }

    return jax.jit(found).lower(params).compile()


def _name(path: Sequence[Any]) -> str:
    return "_".join(str(key.key) for key in path[1:-1])


def configurations(base: Config, seeds: Sequence[int]) -> dict[tuple[str, str, int, int], Config]:
    """Returns configurations by cure, strategy, devices and seed.

    Strategies without a form of a cure that changes only the strategy are left out.
    """
    found = {}
    for cure, change in CURES.items():
        for scaling, devices in COURSES:
            if f"{scaling}{change.scaling}" not in STRATEGIES or (cure != "none" and not scaling.startswith("linear")):
                continue
            for seed in seeds:
                options = {
                    "scaling": f"{scaling}{change.scaling}",
                    "parallel__simulate_devices": devices,
                    "seed": seed,
                    **change.options,
                }
                found[cure, scaling, devices, seed] = changed(base, **options)
    return found


def figure(rows: Sequence[Mapping[str, str]], path: Path) -> Path:
    """Draws the first seed's courses over their steps: a column for each cure, a row for each of `SHOWN`."""
    seed = min(int(row["seed"]) for row in rows)
    drawn = canvas.blank(9.5, "The first steps on real nodules")
    drawn.set_figwidth(9.0)
    axes = drawn.subplots(len(SHOWN), len(CURES), sharex=True, sharey="row", squeeze=False)
    colours = (canvas.GREY, canvas.SKY, canvas.GREEN, canvas.ORANGE, canvas.VERMILION, canvas.BLUE)
    for i, cure in enumerate(CURES):
        axes[0][i].set_title(CURES[cure].label, fontsize=9)
        axes[-1][i].set_xlabel("step", fontsize=8)
        for (scaling, devices), colour in zip(COURSES, colours, strict=True):
            which = (cure, scaling, str(devices), str(seed))
            of = [row for row in rows if (row["cure"], row["scaling"], row["devices"], row["seed"]) == which]
            style = {"color": colour, "linewidth": 1.2, "label": f"{STRATEGIES[scaling].label}, n = {devices}"}
            for j, key in enumerate(SHOWN):
                points = [(int(row["step"]), float(row[key])) for row in of if row[key]]
                if points:
                    axes[j][i].plot(*zip(*points, strict=True), **style)
    for j, key in enumerate(SHOWN):
        axes[j][0].set_ylabel(LABELS[key], fontsize=8)
        if key in ("train_loss", "gradient"):
            axes[j][0].set_yscale("log")
    for one in axes.flat:
        one.tick_params(which="both", labelsize=7)
        one.grid(alpha=0.3)
    lines, labels = axes[0][0].get_legend_handles_labels()
    drawn.legend(lines, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return canvas.save(drawn, path)


def main() -> None:
    """Writes the table and the figure."""
    parser = Parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60, help="of each course, at least")
    args = parser.parse_args()
    STRATEGIES.update(MORE)
    base = changed(read_config(find("luna16_nodules")), data__root=str(args.data), parallel__micro_batch_size=32)
    file = args.out / "courses.csv"
    rows: list[dict[str, Any]] = tables.read(file) if file.exists() else []
    done = {(row["cure"], row["scaling"], int(row["devices"]), int(row["seed"])) for row in rows}
    for which, config in configurations(base, args.seeds).items():
        if which not in done:
            named = dict(zip(("cure", "scaling", "devices", "seed"), which, strict=True))
            rows += [named | row for row in course(config, args.steps)]
            tables.write(file, rows)
            print(*which, f"loss {rows[-1]['train_loss']:.6f} alive {rows[-1]['alive_encoder']:.3f}", flush=True)
    print(figure(tables.read(file), args.out / "courses.png"))


if __name__ == "__main__":
    guarded(main)

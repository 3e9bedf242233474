"""Measures how frameworks treat an epoch's last batch in two processes, if nothing divides evenly.

    python -m experiments.last_batches --out DIR [--environments .venv-frameworks]

Each framework's users have ways to divide an epoch of 61 or 49 samples into steps of 16 on two processes. The last step has
13 samples or one, which do not divide. The framework's own sampler and reduction run in two real processes, in float64, at
one set of parameters for all. The gradient after the last step is compared with that of the mean over the remaining samples,
as one device computes it. Samples that an epoch sees twice or never are counted. All of this is done at the initial
parameters, and at gmmae's after `EPOCHS` epochs.

DIR gets last_batches.csv, a row for each framework, way, epoch and set of parameters.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.child import ROOT, ask
from benchmarks.options import Parser, guarded
from benchmarks.peers import problem
from benchmarks.peers.workers import Worker
from experiments import environments, tables
from gmmae.sweep.display import grid_table
from gmmae.system.provenance import git_commit, machine

CONFIG, BATCH, PROCESSES = "experiments/configs/frameworks.toml", 16, 2
MANY, ONE = 61, 49
"""Samples of an epoch, with a last step of 13 or one."""
EPOCHS = 100
"""Number of epochs of the trained parameters, about as many steps as the comparison's runs take to their target."""
NONE = "no such step"
AT = {"start": 0, "trained": EPOCHS}


class Recipe(NamedTuple):
    """Way to divide an epoch: its name for the backend, and its description."""

    peer: str
    name: str
    framework: str
    words: str
    samples: tuple[int, ...] = (MANY, ONE)


_DDP, _HOROVOD, _TWO = "PyTorch DDP", "Horovod with PyTorch", "Keras, own loop"
RECIPES = (
    Recipe("ours-2", "weights", "gmmae", "`train.py` as it is"),
    Recipe("torch-ddp", "pads", _DDP, "`DistributedSampler`"),
    Recipe("torch-ddp", "sampler drops", _DDP, "`DistributedSampler(drop_last=True)`"),
    Recipe("torch-ddp", "loader drops", _DDP, "`DistributedSampler`, `DataLoader(drop_last=True)`"),
    Recipe("torch-ddp", "uneven", _DDP, "a sampler that neither pads nor drops", (MANY,)),
    Recipe("torch-ddp", "join", _DDP, "that sampler, `Join`", (ONE,)),
    Recipe("torch-ddp", "join of those", _DDP, "that sampler, `Join(divide_by_initial_world_size=False)`", (ONE,)),
    Recipe("torch-ddp", "weighted", _DDP, "that sampler, the loss times n · own samples / all (by hand)", (MANY,)),
    Recipe("horovod", "pads", _HOROVOD, "`DistributedSampler`"),
    Recipe("horovod", "uneven", _HOROVOD, "a sampler that neither pads nor drops", (MANY,)),
    Recipe("horovod", "join", _HOROVOD, "that sampler, `hvd.join()`", (ONE,)),
    Recipe("keras", "fit", "Keras, one process", "`Model.fit`"),
    Recipe("keras-2", "average", _TWO, "`compute_average_loss(losses)`"),
    Recipe("keras-2", "average of a batch", _TWO, "`compute_average_loss(losses, global_batch_size=16)`"),
    Recipe("keras-2", "mean", _TWO, "the sum of the losses over the step's samples (by hand)"),
)


def measure(file: Path, pythons: Mapping[str, str]) -> list[dict[str, Any]]:
    """Measures the missing ways of the backends that have a Python, and writes each at its end."""
    rows: list[dict[str, Any]] = [*tables.read(file)] if file.exists() else []
    done = {(row["framework"], row["recipe"], int(row["samples"]), row["at"]) for row in rows}
    about = {"machine": machine("cpu"), "git_commit": git_commit()}
    with tempfile.TemporaryDirectory() as folder:
        for samples in (MANY, ONE):
            for at in AT:
                left = [
                    recipe
                    for recipe in RECIPES
                    if recipe.peer in pythons
                    and samples in recipe.samples
                    and (recipe.framework, recipe.words, samples, at) not in done
                ]
                for recipe, found in _measured(left, Path(folder) / f"{samples}_{at}", samples, AT[at], pythons):
                    key = {"framework": recipe.framework, "recipe": recipe.words, "samples": samples, "at": at}
                    rows.append({**key, **found, **about})
                    print(*list(rows[-1].values())[:9], flush=True)
                    tables.write(file, rows)
    return rows


def _measured(
    recipes: Sequence[Recipe], place: Path, samples: int, epochs: int, pythons: Mapping[str, str]
) -> Iterator[tuple[Recipe, dict[str, Any]]]:
    """Yields each way and its result, with the problem in `place`."""
    if not recipes:
        return
    place.mkdir()
    source = {"name": CONFIG, "samples": samples, "validation": 16, "precision": "float64"}
    ask("benchmarks.peers.gmmae_backend", json.dumps(source), str(place))
    if epochs:
        _self("--train", str(place), str(epochs))
    said: dict[Recipe, list[dict[str, Any]]] = {}
    for peer in dict.fromkeys(recipe.peer for recipe in recipes):
        worker = Worker(peer, place, pythons[peer])
        try:
            for recipe in recipes:
                if recipe.peer == peer:
                    said[recipe] = worker.ask_all("last", recipe=recipe.name, folder=str(place))
                    for answer in said[recipe]:  # the next recipe's come there too
                        answer["gradient"] = dict(np.load(answer["gradient"]))
        finally:
            worker.close()
    steps = {recipe: merged([answer["steps"] for answer in answers]) for recipe, answers in said.items()}
    rests = {recipe: left_over(of, samples, BATCH) for recipe, of in steps.items()}
    (place / "rests.json").write_text(json.dumps([*rests.values()]))
    _self("--wanted", str(place))
    for number, (recipe, answers) in enumerate(said.items()):
        yield recipe, {**counts(steps[recipe], samples), "error": error(answers, dict(np.load(place / f"wanted.{number}.npz")))}


def _self(*words: str) -> None:
    """Runs this program in its own process, for the parts that need JAX."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "experiments.last_batches", *words], check=True, cwd=ROOT, env=environ)


def error(answers: Sequence[Mapping[str, Any]], wanted: Mapping[str, np.ndarray]) -> float | str:
    """Returns the largest error of the processes with a last step, or a word if that step was a full one."""
    most = max(len(answer["steps"]) for answer in answers)
    if sum(len(answer["steps"][-1]) for answer in answers if len(answer["steps"]) == most) == BATCH:
        return NONE
    return max(relative_error(answer["gradient"], wanted) for answer in answers if len(answer["steps"]) == most)


def merged(ranks: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
    """Returns the samples of each step of all processes. Some processes may have fewer steps.

    >>> merged([[[0, 2], [4]], [[1, 3]]])
    [[0, 2, 1, 3], [4]]
    """
    most = max(map(len, ranks))
    return [[sample for steps in ranks if step < len(steps) for sample in steps[step]] for step in range(most)]


def left_over(steps: Sequence[Sequence[int]], samples: int, batch: int) -> list[int]:
    """Returns the samples that remain after the full steps, which are one device's last step.

    >>> left_over([[3, 1], [0, 2], [4, 3]], 5, 2)
    [4]
    """
    seen = {sample for step in steps[: samples // batch] for sample in step}
    return sorted(set(range(samples)) - seen)


def counts(steps: Sequence[Sequence[int]], samples: int) -> dict[str, int]:
    """Counts how often an epoch sees its samples.

    >>> counts([[3, 1], [0, 3]], 5)
    {'steps': 2, 'last': 2, 'twice': 1, 'left_out': 2}
    """
    seen = Counter(sample for step in steps for sample in step)
    twice = sum(count - 1 for count in seen.values())
    return {"steps": len(steps), "last": len(steps[-1]), "twice": twice, "left_out": samples - len(seen)}


def relative_error(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> float:
    """Returns ‖found − wanted‖ / ‖wanted‖ over all arrays, or NaN.

    >>> relative_error({"a": np.array([3.0, 8.0])}, {"a": np.array([3.0, 4.0])})
    0.8
    """
    off = sum(float(np.square(found[name] - value).sum()) for name, value in wanted.items())
    return math.sqrt(off / sum(float(np.square(value).sum()) for value in wanted.values()))


def summary(rows: Sequence[Mapping[str, str]]) -> list[tuple[str, ...]]:
    """Returns the head and a line for each framework, way and epoch, with a column of errors for each set of parameters."""
    errors = {(row["framework"], row["recipe"], row["samples"], row["at"]): error_text(row["error"]) for row in rows}
    head = ("framework", "way", "samples", "left for the last step", "seen twice", "left out")
    lines: list[tuple[str, ...]] = [(*head, "gradient's error at the start", f"after {EPOCHS} epochs")]
    for samples in (MANY, ONE):
        for recipe in RECIPES:
            of = [row for row in rows if (row["framework"], row["recipe"], row["samples"]) == _key(recipe, samples)]
            if of:
                each = (errors.get((*_key(recipe, samples), at), "") for at in AT)
                row = of[0]
                lines.append(
                    (*_key(recipe, samples), str(samples % BATCH), row["twice"], row["left_out"], *each)
                )  # fmt: skip
    return lines


def _key(recipe: Recipe, samples: int) -> tuple[str, str, str]:
    return recipe.framework, recipe.words, str(samples)


def error_text(value: str) -> str:
    """Returns the text of a relative error: rounding as a power of ten, larger values in per cent.

    >>> error_text("3.2e-15"), error_text("0.0712"), error_text("nan"), error_text("no such step")
    ('3e-15', '7.1 %', 'not a number', 'no such step')
    """
    try:
        error = float(value)
    except ValueError:
        return value
    if math.isnan(error):
        return "not a number"
    return f"{100 * error:.2g} %" if error > 1e-6 else f"{error:.0e}"


def _train(folder: Path, epochs: int) -> None:
    """Writes the parameters after some epochs into the problem."""
    from benchmarks.peers import gmmae_backend
    from benchmarks.peers.backends import Place

    known = problem.read(folder)
    peer = gmmae_backend.start(known, Place())
    for epoch in range(1, epochs + 1):
        peer.train(known.samples, epoch)
    problem.write(folder, known._replace(params=gmmae_backend.flat(peer.state.params)))


def _wanted(folder: Path) -> None:
    """Writes the gradients of the mean losses of some samples each at the problem's parameters, on one device."""
    from benchmarks.peers import gmmae_backend
    from benchmarks.peers.backends import Place

    known = problem.read(folder)
    peer = gmmae_backend.start(known, Place())
    params = gmmae_backend.unflat(known.params)
    for number, index in enumerate(json.loads((folder / "rests.json").read_text())):
        problem.write_arrays(folder / f"wanted.{number}.npz", peer.gradient_of(params, np.asarray(index)))


def main() -> None:
    """Measures the ways and prints the table."""
    parser = Parser(__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--environments", type=Path, default=environments.FOLDER)
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--wanted", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        _train(Path(args.train[0]), int(args.train[1]))
    elif args.wanted:
        _wanted(args.wanted)
    elif args.out:
        pythons = environments.pythons((recipe.peer for recipe in RECIPES), args.environments)
        file = args.out / "last_batches.csv"
        if measure(file, pythons):
            print(grid_table(summary(tables.read(file))))
    else:
        parser.error("--out DIR must be given: where the results go")


if __name__ == "__main__":
    guarded(main)

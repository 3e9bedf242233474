"""Compares the losses and gradients of the backends, then their times, measured alternately."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import hardware
from benchmarks.peers.backends import BACKENDS
from benchmarks.peers.problem import first_losses
from benchmarks.peers.workers import Worker, idle_shares
from benchmarks.spread import array_distance, distance, ratios, spread
from gmmae.plotting.tables import table
from gmmae.system.errors import InputError

TOLERANCE = 1e-4
"""Largest relative difference from gmmae, for losses and for arrays of the first gradient."""
CHECKED = 20
"""Maximum number of steps whose losses are compared. If rounding allows fewer, float64 is compared too."""
ROUNDING = 0.1
"""Fraction of the tolerance that rounding alone may use at a compared step."""
SLOW = 6
"""Factor over gmmae's step above which a backend is timed in one turn only."""
NAMED = 3
"""Number of left-out arrays that the table's note names. The JSON file has all."""
COMPARED = ("gradient", "losses")
OTHER = "choose another configuration"


def comparable(apart: Sequence[float]) -> int:
    """Returns the number of first steps whose losses are comparable.

    Training magnifies rounding. After some steps, two equal trainings differ by more than `TOLERANCE`.

    Args:
      apart: of each step, the difference of gmmae's losses from those in float64 (`rounding.apart`).

    Raises:
      InputError: the first loss is not finite.

    >>> comparable([1e-7, 1e-6, 1e-4, 1e-7])
    2
    """
    if not math.isfinite(apart[0]):
        raise InputError(
            f"the loss of the first step must be finite in gmmae; got a difference of {apart[0]} between precisions: {OTHER}"
        )
    return next((step for step, value in enumerate(apart) if not value <= ROUNDING * TOLERANCE), len(apart))


def ambiguous(apart: Mapping[str, float]) -> list[str]:
    """Returns the arrays of the first gradient that rounding alone moves too far to compare them.

    >>> ambiguous({"kernel": 1e-7, "bias": 3e-3})
    ['bias']
    """
    return [name for name, value in apart.items() if not value <= ROUNDING * TOLERANCE]


def agreement(
    workers: Sequence[Worker], folder: Path, samples: int, steps: int, without: Sequence[str] = ()
) -> dict[str, dict[str, float]]:
    """Returns the differences of the first gradient and the first losses from those of the first worker, gmmae.

    Losses are left out if `steps` is 0, and so are the arrays `without` of the gradient.
    """
    found = {}
    wanted: tuple[dict[str, np.ndarray], list[float]] | None = None
    for worker in workers:
        path = folder / f"{worker.name}.gradient.npz"
        worker.ask("gradient", path=str(path))
        gradient = {name: array for name, array in np.load(path).items() if name not in without}
        losses = first_losses(steps, lambda epoch, ask=worker.ask: ask("losses", samples=samples, epoch=epoch)["losses"])
        wanted = wanted or (gradient, losses)
        found[worker.name] = {"losses": distance(losses, wanted[1])} if steps else {}
        found[worker.name]["gradient"] = array_distance(gradient, wanted[0])
    return found


def disagreeing(found: dict[str, dict[str, float]], compared: Sequence[str] = COMPARED) -> list[str]:
    """Returns a line for each backend whose difference is above `TOLERANCE` or NaN."""
    return [
        f"{BACKENDS[name].title}: {what} differ from ours by {value:.1e}, more than {TOLERANCE:g}"
        for name, distances in found.items()
        for what, value in distances.items()
        if what in compared and not value <= TOLERANCE
    ]


def agreement_table(found: dict[str, dict[str, float]], precision: str, steps: int, without: Sequence[str] = ()) -> str:
    """Returns the table of differences, and names what rounding has left out."""
    rows = [
        (BACKENDS[name].title, *(f"{of[key]:.0e}" if key in of else "" for key in COMPARED))
        for name, of in list(found.items())[1:]
    ]
    columns = ("peer", "gradient, first step", f"losses, {steps} steps")
    notes = (
        () if steps == CHECKED else (f"From step {steps + 1} on, gmmae's own losses differ too much from those in float64.",)
    )
    if without:
        named = ", ".join(without[:NAMED]) + (f" and {len(without) - NAMED} more arrays" if len(without) > NAMED else "")
        notes += (f"Rounding alone moves the gradient of {named} too far to compare it.",)
    return table(columns, rows, f"Largest relative difference from ours, {precision}", notes)


def timings(workers: Sequence[Worker], *, batch: int, steps: int, samples: int, turns: int, epochs: int) -> dict[str, Any]:
    """Returns the seconds of a step and of an epoch (training and validation) by turns, in rotating order.

    Args:
      workers: gmmae first.
      batch: samples in a step.
      steps: steps in a timed block.
      samples: samples in an epoch.
      turns: number of timed blocks.
      epochs: number of timed epochs, which may be 0.
    """
    warm = {}
    for worker in workers:
        for _ in range(2):
            warm[worker.name] = worker.ask("train", samples=steps * batch, epoch=1)["seconds"]
        worker.ask("train", samples=samples, epoch=1)
        worker.ask("evaluate")
    idle = idle_shares(list(workers))
    processor: dict[str, list[float]] = {worker.name: [] for worker in workers}
    limit = SLOW * warm[workers[0].name]
    counts = {"step": turns} | ({"epoch": epochs} if epochs else {})
    found: dict[str, Any] = {"idle": idle} | {what: {w.name: [] for w in workers} for what in counts}
    with hardware.watched(lambda: sum(worker.cpu_s() for worker in workers)) as others:
        for turn in range(max(counts.values())):
            for worker in (*workers[turn % len(workers) :], *workers[: turn % len(workers)]):
                if turn and warm[worker.name] > limit:
                    continue
                if turn < turns:
                    began = worker.cpu_s()
                    taken = worker.ask("train", samples=steps * batch, epoch=turn + 1)["seconds"]
                    found["step"][worker.name].append(taken / steps)
                    processor[worker.name].append((worker.cpu_s() - began) / steps)
                if turn < epochs:
                    taken = [worker.ask("train", samples=samples, epoch=turn + 1), worker.ask("evaluate")]
                    found["epoch"][worker.name].append(sum(answer["seconds"] for answer in taken))
    found |= {"processor": processor, "others": others.cores, "load": os.getloadavg()}
    return found | {"facts": {worker.name: worker.ask("facts") for worker in workers}}


def timing_tables(found: dict[str, Any], settings: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """Returns a table for each timed quantity: milliseconds with quartiles, and ratios to gmmae by turns."""
    titles = {"step": "A training step", "epoch": "An epoch: training and validation"}
    tables = []
    for what, title in titles.items():
        if what not in found:
            continue
        [ours, *_] = found[what].values()
        spent = found.get("processor", {}) if what == "step" else {}
        rows = [
            (
                BACKENDS[name].title,
                spread(of).text(scale=1000),
                ratios(of, ours).text(),
                *([f"{1000 * spread(spent[name]).median:.3g}"] if spent else []),
                str(len(of)),
            )
            for name, of in found[what].items()
        ]
        columns = ("peer", "ms, median (quartiles)", "times ours, by turns (quartiles)")
        columns += ("processor time, ms", "turns") if spent else ("turns",)
        busy = [f"{BACKENDS[name].title} {100 * share:.0f} %" for name, share in found["idle"].items() if share > 0.05]
        notes = (f"While idle, of a core: {', '.join(busy)}.",) if busy else ()
        if (others := found.get("others", 0.0)) > hardware.BUSY:
            notes += (f"Other work used {others:.1f} cores meanwhile. Repeat it on an idle machine.",)
        devices = {name: of["device"] for name, of in found["facts"].items()}
        notes += tuple(
            f"{BACKENDS[name].title} ran with {', '.join(given) or 'no setting'}, on {found['facts'][name]['threads']} threads."
            for name, given in (settings or {}).items()
        )
        own = next(iter(devices.values()))
        notes += tuple(f"{BACKENDS[name].title} ran on {of}, ours on {own}." for name, of in devices.items() if of != own)
        tables.append(table(columns, rows, title, notes))
    return tables

"""Compares each way of making nodules with the held-out real ones, by likeness and novelty, a row each."""

from typing import Any

import numpy as np

from experiments.cohorts import WINDOW
from gmmae.data.volumes import Nodules
from gmmae.generation.judging import novelty
from gmmae.generation.judging.judge import population
from gmmae.generation.judging.novelty import symmetries
from gmmae.generation.judging.two_samples import c2st, compare
from gmmae.system.errors import InputError

COLUMNS = ("c2st", "c2st_masks", "ks", "ks_corrected", "coverage", "nn", "nn_sym", "copies")


def made(training: Nodules, judged: Nodules, seed: int) -> dict[str, Nodules]:
    """Returns equally many other real nodules, and copies of training nodules."""
    count = len(judged.names)
    # Not the donors of the baselines' copies, whose features are those of the nodules themselves: symmetries change none.
    rest = np.sort(np.random.default_rng([seed, 1]).permutation(len(training.names))[:count])
    return {
        "real": training.take(rest),
        "copy_paste": copy_paste(training, count, seed),
    }


def copy_paste(training: Nodules, count: int, seed: int) -> Nodules:
    """Returns training nodules, flipped and rotated within their plane.

    Each one is used once before any is repeated.
    """
    rng = np.random.default_rng(seed)
    samples = len(training.names)
    donors = np.concatenate([rng.permutation(samples) for _ in range(-(-count // samples))])[:count]
    assert training.masks is not None
    turned = []
    for pair in np.stack([training.values, training.masks], axis=1)[donors]:
        turns = list(symmetries(pair))
        turned.append(turns[rng.integers(len(turns))])
    values, masks = np.moveaxis(np.stack(turned), 1, 0)
    copies = training.take(donors).with_columns(name=[f"copy_{i}" for i in range(count)])
    return copies._replace(values=values.astype(np.int16), masks=masks.astype(np.uint8))


def rows(made: dict[str, Nodules], training: Nodules, judged: Nodules, seed: int) -> dict[str, dict[str, list[float]]]:
    """Returns the figures of each entry: the value, and the bounds of its interval if it has one.

    All are compared by the shapes of their intensity, and `c2st_masks` by those of their masks. Training nodules themselves
    have no novelty.

    Raises:
      InputError: an entry has another number of nodules than the real ones, on which most figures depend.
    """
    real, real_masks = (population(judged, masks, WINDOW) for masks in (False, True))
    found = {}
    for name, nodules in made.items():
        if len(nodules.names) != len(judged.names):
            raise InputError(
                f"each way of making nodules must give as many as are judged, {len(judged.names)}; got {len(nodules.names)} of "
                f"{name}: judge fewer"
            )
        compared = compare(real, population(nodules, False, WINDOW), seed)
        found[name] = {
            "c2st": list(compared.c2st),
            "coverage": list(compared.coverage),
            "ks": [compared.ks_share],
            "ks_corrected": [compared.ks_share_corrected],
            "c2st_masks": list(c2st(real_masks, population(nodules, True, WINDOW), seed)),
        }
        if name != "real":
            new, _ = novelty.measure(judged, nodules, training, WINDOW, seed, np.arange(len(nodules.names)))
            found[name] |= {"nn": list(new.nn), "nn_sym": list(new.nn_symmetric), "copies": [new.copies]}
    return found


def summary(by_seed: list[dict[str, dict[str, Any]]]) -> list[dict[str, str]]:
    """Returns a line for each entry and figure, over seeds.

    It has the mean, the smallest and largest value, and the mean bounds of the patient bootstrap.
    """
    lines = []
    for name in dict.fromkeys(name for rows in by_seed for name in rows):
        for column in COLUMNS:
            values = [rows[name][column] for rows in by_seed if column in rows.get(name, {})]
            if not values:
                continue
            of = np.array(values)
            low, high = of[:, 1:].mean(0) if of.shape[1] == 3 else ("", "")
            numbers = (of[:, 0].mean(), low, high, of[:, 0].min(), of[:, 0].max())
            cells = [f"{number:.4g}" if number != "" else "" for number in numbers]
            heads = ("mean", "patients_low", "patients_high", "seeds_min", "seeds_max")
            lines.append({"made": name, "figure": column, "seeds": str(len(of)), **dict(zip(heads, cells, strict=True))})
    return lines

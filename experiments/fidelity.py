"""Compares each way of making nodules with the held-out real ones, by likeness and novelty, a row each."""

from typing import Any, NamedTuple

import numpy as np

from experiments import baselines
from experiments.cohorts import WINDOW
from gmmae.data.volumes import Nodules
from gmmae.generation.judging import judge
from gmmae.generation.judging.judge import Comparison, Novelty, Scale
from gmmae.generation.judging.two_samples import c2st
from gmmae.system.errors import InputError

SCALE = Scale(WINDOW, hu=True)
INSIDE = ("all", "solid", "part-solid", "ground-glass")
COLUMNS = (
    *("c2st", "c2st_network", "c2st_masks", "frd", "mmd2", "ks", "ks_corrected", "density", "coverage", "hu"),
    *(f"inside_{name}" for name in INSIDE),
    *("nn", "nn_sym", "copies"),
)
BY_NETWORK = ("real", "copy_paste", "generated")
"""Entries that the network judges too, which takes a minute or more for each."""


class Entry(NamedTuple):
    """Nodules to evaluate. `paired` means that each was made from the real nodule of its number."""

    nodules: Nodules
    paired: bool = False


def made(training: Nodules, judged: Nodules, seed: int) -> dict[str, Entry]:
    """Returns equally many other real nodules, and nodules of each baseline, without a model."""
    count = len(judged.names)
    # Not the donors of the baselines' copies, whose features are those of the nodules themselves: symmetries change none.
    rest = np.sort(np.random.default_rng([seed, 1]).permutation(len(training.names))[:count])
    return {
        "real": Entry(training.take(rest)),
        "copy_paste": Entry(baselines.copy_paste(training, count, seed)),
        "moved": Entry(baselines.copy_paste(training, count, seed, shift=1)),
        "carved": Entry(baselines.carved(training, count, seed)),
        "cutmix": Entry(baselines.cutmix(training, count, seed)),
        "mosaic": Entry(baselines.mosaic(training, count, seed)),
        "smote": Entry(baselines.smote(training, count, seed)),
    }


def rows(
    entries: dict[str, Entry], training: Nodules, judged: Nodules, seed: int, network: bool = False
) -> dict[str, dict[str, list[float]]]:
    """Returns the figures of each entry: the value, and the bounds of its interval if it has one.

    All are compared by the shapes of their intensity, because reconstructions have no masks. `c2st_masks` uses the shapes of
    masks if both have them. Training nodules themselves have no novelty. `network` adds the network for `BY_NETWORK`.

    Raises:
      InputError: an entry has another number of nodules than the real ones, on which most figures depend.
    """
    real, real_masks = (judge.population(judged, masks, SCALE) for masks in (False, True))
    found = {}
    for name, (nodules, paired) in entries.items():
        if len(nodules.names) != len(judged.names):
            raise InputError(
                f"each way of making nodules must give as many as are judged, {len(judged.names)}; got {len(nodules.names)} of "
                f"{name}: judge fewer"
            )
        by_network = network and name in BY_NETWORK
        comparison = judge.compare(real, judge.population(nodules, False, SCALE), seed, paired, network=by_network)
        row = _row(comparison)
        if nodules.masks is not None:
            other = judge.population(nodules, True, SCALE)
            row["c2st_masks"] = list(c2st(real_masks.sample, other.sample, seed))
            row |= {f"inside_{key}": [value] for key, value in judge.inside_distances(real_masks, other).items()}
        if name != "real":
            row |= _novelty(judge.measure_novelty(judged, nodules, training, WINDOW, seed))
        found[name] = row
    return found


def _row(found: Comparison) -> dict[str, list[float]]:
    return {
        **{name: list(getattr(found, name)) for name in ("c2st", "mmd2", "density", "coverage")},
        **({} if found.c2st_network is None else {"c2st_network": list(found.c2st_network)}),
        "frd": [found.frd],
        "ks": [found.ks_tests.share],
        "ks_corrected": [found.ks_tests.corrected_share],
        "hu": [found.value_distance],
    }


def _novelty(found: Novelty) -> dict[str, list[float]]:
    return {"nn": list(found.plain), "nn_sym": list(found.symmetric), "copies": [found.copies]}


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

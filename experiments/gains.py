"""Gains of a classifier or a segmentation by more nodules: differences for equal seeds, draws and nodules.

Intervals are over seeds and over patients.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments import tables
from experiments.downstream import figure
from gmmae.generation.judging.bootstrap import estimate, weights


def summary(by_seed: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Returns a line for each task, number of real nodules, and arm or difference of arms.

    The interval over patients is of the mean over seeds, with fixed classifiers. The interval over seeds is Student's. An
    arm's line has the novelty of its nodules, as mean over seeds and draws.
    """
    lines = []
    for task in (name for name in by_seed[0] if isinstance(by_seed[0][name], dict) and "rows" in by_seed[0][name]):
        found = [_figures(one[task]) for one in by_seed]
        numbers = dict.fromkeys(number for number, _ in found[0])
        arms = list(dict.fromkeys(arm for _, arm in found[0]))
        pairs = [(arm, "") for arm in arms] + [(arm, "real") for arm in arms if arm != "real" and "real" in arms]
        pairs += [("generated", other) for other in arms if "generated" in arms and other not in ("real", "generated")]
        for number in numbers:
            for arm, less in pairs:
                of = np.stack([one[number, arm] - (one[number, less] if less else 0) for one in found])
                novel = "" if less else _novelty([one[task] for one in by_seed], number, arm)
                lines.append(_line(task, number, f"{arm} - {less}" if less else arm, of) | {"nn_sym": novel})
    return lines


def _figures(task: dict[str, Any]) -> dict[tuple[int, str], np.ndarray]:
    """Returns the mean over draws for each number of real nodules and arm.

    Its first value is over all evaluated nodules, the others over each resample of their patients. Scores with a single axis
    are values of the nodules themselves, such as Dice, and their mean is taken.
    """
    weight = np.concatenate([np.ones((1, len(task["groups"]))), weights(task["groups"], seed=0)])
    draws: dict[tuple[int, str], list[np.ndarray]] = {}
    for row in task["rows"]:
        scores = np.array(row["scores"])
        single = scores.ndim == 1
        values = weight @ scores / weight.sum(1) if single else figure(scores, task["labels"], row["classes"], weight)
        draws.setdefault((row["real"], row["arm"]), []).append(values)
    return {key: np.mean(values, axis=0) for key, values in draws.items()}


def _novelty(tasks: Sequence[dict[str, Any]], number: int, arm: str) -> str:
    of = [row["nn_sym"] for task in tasks for row in task["rows"] if (row["real"], row["arm"]) == (number, arm)]
    return "" if None in of else f"{np.mean(of):.3f}"


def _line(task: str, number: int, name: str, of: np.ndarray) -> dict[str, str]:
    from scipy import stats

    value, low, high = estimate(of[:, 0].mean(), of[:, 1:].mean(0))
    half = stats.t.ppf(0.975, len(of) - 1) * of[:, 0].std(ddof=1) / np.sqrt(len(of)) if len(of) > 1 else np.nan
    numbers = {"mean": value, "patients_low": low, "patients_high": high, "seeds_low": value - half, "seeds_high": value + half}
    cells = {key: tables.number(number) for key, number in numbers.items()}
    return {"task": task, "real": str(number or "all"), "made": name, "seeds": str(len(of)), **cells}

"""Judges the trial of a recommended run (`gmmae plan`) on the zoo: which failures it shows, and which sound runs it refuses.

    python -m experiments.zoo.trials --out runs/zoo_trials [--workloads NAME ...]     # prints and writes results/zoo/trials.csv

Base runs and the first epochs of larger batches are trained as by `experiments.zoo.runs`. Whether a run fails is known from
`results/zoo/cases.csv`.
"""

import math
from pathlib import Path

import numpy as np

from benchmarks.options import guarded
from experiments import tables
from experiments.zoo import cases as zoo
from experiments.zoo.judge import Cell, Judged, cells, judged, least, regrets
from experiments.zoo.runs import BASE_MARGIN, RATE_FACTORS, Curves, Trainer, files, levels, read, write
from experiments.zoo.workloads import WORKLOADS
from gmmae.planner.measure import TRIAL_SHARE, trial_epochs
from gmmae.planner.step_ratios import MetricCurve, smooth
from gmmae.plotting.tables import text_table

BATCH_FACTORS = (4, 8, 16)
MIN_STEPS = 20
NEVER = 20.0
"""Logarithm of steps that no choice takes."""


def train(name: str, path: Path) -> None:
    """Writes the curves of the base batch, and the beginnings of those of larger batches."""
    workload, data = WORKLOADS[name], WORKLOADS[name].data()
    trainer, samples = Trainer(workload, data), len(data.inputs)
    enough = math.ceil(BASE_MARGIN * workload.epochs * samples / workload.batch_size)
    found = {1.0: trainer.curves(workload.batch_size, lambda of: of.steps[-1] < enough)}
    for factor in BATCH_FACTORS:
        if (batch := factor * workload.batch_size) <= samples:
            most = max(MIN_STEPS, 1.1 * enough / (TRIAL_SHARE * factor))
            found[factor] = trainer.curves(batch, lambda of, most=most: of.steps[-1] < most)
    write(path, found, levels(found[1.0], workload.epochs, samples), samples)


def passes(cell: Cell, curves: dict[float, Curves]) -> bool | None:
    """Returns whether a trial of a scaled learning rate goes well; None where it was not trained."""
    case, place = cell.case, cell.case.base + math.log2(cell.rate)
    if cell.rate == 1 or cell.batch not in curves or place % 1 or place >= len(RATE_FACTORS):
        return None

    def curve(batch: float, rate: float) -> MetricCurve:
        of = curves[batch]
        return MetricCurve(of.steps, smooth(of.validation[case.seed, int(rate), [1, *range(1, len(of.steps))]]))

    an_epoch, trial, base = math.ceil(case.samples / (case.batch * cell.batch)), curve(cell.batch, place), curve(1.0, case.base)
    epochs = trial_epochs(math.ceil(case.steps * case.batch / case.samples), cell.batch)
    last = min(int(np.searchsorted(trial.steps, epochs * an_epoch)), len(trial.steps) - 1)
    return bool(trial.costs[last] <= base.lowest_by(trial.steps[last]))


def main() -> None:
    """Trains the workloads that are not there yet, and judges the trials."""
    of_workloads = files(__doc__)
    tried: list[tuple[Judged, bool | None]] = []
    everything = judged(cells(zoo.load()))
    for name, path in of_workloads.items():
        if not path.exists():
            train(name, path)
        curves = read(path)[0]
        tried += [(one, passes(one.cell, curves)) for one in everything if one.cell.case.workload == name]
    pairs = [(one.cell.failures >= 0.5, passed) for one, passed in tried if passed is not None]
    with_trials = [one._replace(middle=NEVER) if passed is False else one for one, passed in tried]
    rows = [("workloads", str(len(of_workloads)))]
    for fails, text in ((True, "failing runs that their trials refuse"), (False, "sound runs that their trials refuse")):
        refused = [not passed for which, passed in pairs if which is fails]
        rows.append((text, f"{sum(refused)} of {len(refused)}"))
    for text, of in (("without trials", [one for one, _ in tried]), ("with them", with_trials)):
        times = regrets(of, least)
        rows.append(
            (f"time of the choice over the best, {text}: mean / 95 %", f"{np.mean(times):.3f} / {np.quantile(times, 0.95):.2f}")
        )
    tables.write(zoo.CASES.with_name("trials.csv"), [dict(zip(("figure", "value"), row, strict=True)) for row in rows])
    print(text_table(("figure", "value"), rows))


if __name__ == "__main__":
    guarded(main)

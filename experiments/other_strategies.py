"""Facts of the study's section on other optimisers, the SDE rule, and a batch that grows during a run.

    python -m experiments.other_strategies PLAN...     # work directories of `gmmae plan --tune`: results/study/tuned.csv

The table has the late training loss of each learning rate that those plans tried.
"""

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.options import Parser, guarded
from experiments import machines, size, tables
from experiments import plan as plans
from experiments.outcomes import (
    RESULTS,
    Row,
    arrivals,
    arrived_epochs,
    by_arm,
    cells,
    middle,
    on_one_device,
    outcome,
    reached,
    runs,
    table,
)
from gmmae.planner.measure import NUM_TUNED_RATES
from gmmae.planner.prediction import DeviceGroup
from gmmae.scaling import cost
from gmmae.scaling.strategies import STRATEGIES
from gmmae.training.growth import EPOCHS_BETWEEN_MEASUREMENTS
from gmmae.training.noise_scale import NORM_STEPS

OPTIMIZERS = {"momentum": "SGD with momentum", "adamw": "AdamW"}
"""Sweeps of other optimisers on real nodules, by name."""

ARMS = ("weak", "linear-warmup", "linear")

MEASURED = "measured"
"""Name of the strategy `growing` in the sweep whose critical batch was measured."""

TUNED = RESULTS / "study" / "tuned.csv"
TRIAL = re.compile(r"(?P<factor>\S+) times the learning rate in (?P<steps>\d+) steps of weak on (?P<n>\d+)")

LABELS = {**{name: strategy.label for name, strategy in STRATEGIES.items()}, MEASURED: "Growing batch, measured"}


def optimizers() -> dict[str, str]:
    """Returns the base learning rates, and the paper's comparison with other optimisers."""
    found = {"base_rates_table": base_rates()}
    for name, label in OPTIMIZERS.items():
        rows = cells(name)
        grouped = by_arm(rows, ARMS)
        counts = sorted({n for _, n in grouped if n > 1})
        lines = [(LABELS[arm], *(outcome(of) if (of := grouped[arm, n]) else "not run" for n in counts)) for arm in ARMS]
        one = on_one_device(rows)
        found |= {
            f"{name}_outcomes": table(("strategy", *(f"n = {n}" for n in counts)), lines),
            f"{name}_times": times_table(rows, one, ARMS, counts),
            f"{name}_strong": middle([float(row["epochs"]) for row in one]),
            **{f"{name}_{key}": text for key, text in {**runs(rows), **arrivals(grouped)}.items()},
            f"{name}_label": label,
        }
    return found


def base_rates(files: Sequence[str] = tuple(OPTIMIZERS)) -> str:
    """Returns the table of the learning rates that were tried on one device, from some files of `results/study/base_rates`."""
    lines = []
    rows = [row for name in files for row in tables.read(RESULTS / "study" / "base_rates" / f"{name}.csv")]
    for (name, rate, taken), of in itertools.groupby(
        rows, key=lambda row: (row["optimizer"], row["learning_rate"], row["taken"])
    ):
        epochs = [float(row["target_epoch"] or "inf") for row in of]
        came = f"{sum(map(math.isfinite, epochs))} of {len(epochs)}"
        lines.append((OPTIMIZERS[name], rate, came, middle(epochs), taken))
    return table(("optimiser", "learning rate", "reached in 40 epochs", "epochs", "taken"), lines)


def growth() -> dict[str, str]:
    """Returns the results of the SDE rule, of growing batches and of Seesaw, beside strong and weak scaling."""
    paper, rows, decaying = cells(plans.PAPER_DATA), cells("growing"), cells("seesaw")
    by_measurement = [{**row, "scaling": MEASURED} for row in cells("growing_measured")]
    together = [*(row for row in paper if row["scaling"] == "weak"), *rows, *by_measurement]
    arms = ("weak", "growing", MEASURED, "sde")
    grouped, one = by_arm(together, arms), on_one_device(rows)
    counts = sorted({n for scaling, n in grouped if scaling == "growing" and n > 1})
    lines = [(LABELS[arm], *(outcome(grouped[arm, n]) if (arm, n) in grouped else "" for n in counts)) for arm in arms]
    own, of_seesaw = on_one_device(decaying), by_arm(decaying, ("seesaw",))
    columns = [n for _, n in sorted(of_seesaw) if n > 1]
    against_weak = [row for row in paper if row["scaling"] == "weak"]
    return {
        "growing_outcomes": table(("strategy", *(f"n = {n}" for n in counts)), lines),
        "growing_over_strong": times_table(together, one, ("growing", MEASURED), counts),
        "growing_over_weak": times_table(together, against_weak, ("growing", MEASURED), counts),
        "growing_strong": middle([float(row["epochs"]) for row in one]),
        "seesaw_losses": losses_table(of_seesaw, own, columns),
        **sooner_facts("growing_before_strong", together, one, "growing", counts),
        **sooner_facts("measured_before_strong", together, one, MEASURED, counts),
        **sooner_facts("measured_before_weak", together, against_weak, MEASURED, counts),
        "measured_doubled": doubled(by_measurement),
        **sooner_facts("growing_before_weak", together, against_weak, "growing", counts),
        **{f"growing_{key}": text for key, text in {**runs(rows), **arrivals(grouped)}.items()},
        **{f"seesaw_{key}": text for key, text in {**runs(decaying), **arrivals(of_seesaw)}.items()},
    }


def unet() -> dict[str, str]:
    """Returns the results of other optimisers, of the SDE rule and of a growing batch on the U-Net's slices."""
    found = {"unet_base_rates_table": base_rates([f"unet_{name}" for name in OPTIMIZERS])}
    for name in (*OPTIMIZERS, "growing"):
        rows = cells(f"unet_{name}")
        arms = ("growing", "sde") if name == "growing" else ARMS
        grouped, one = by_arm(rows, arms), {row["seed"]: row for row in on_one_device(rows)}
        lines = [
            (
                LABELS[arm],
                str(n),
                f"{sum(map(reached, of))} of {len(of)}",
                middle([arrived_epochs(row) for row in of]),
                middle([arrived_steps(row) for row in of]),
                "" if arm == "growing" else middle([turn(row, one[row["seed"]], n) for row in of]),
            )
            for arm in arms
            for n in sorted({n for _, n in grouped if n > 1})
            if (of := grouped.get((arm, n)))
        ]
        found |= {
            f"unet_{name}_table": table(("strategy", "n", "reached", "epochs", "steps", "crossover"), lines),
            f"unet_{name}_strong": middle([arrived_epochs(row) for row in one.values()]),
            **{f"unet_{name}_{key}": text for key, text in {**runs(rows), **arrivals(grouped)}.items()},
        }
    return found


def arrived_steps(row: Row) -> float:
    """Returns the steps of a run to its target, or infinity for a miss."""
    return float(row["steps"]) if reached(row) else math.inf


def turn(row: Row, strong: Row, n: int) -> float:
    """Returns the crossover ratio of a run with one batch to strong scaling, at least 0."""
    return max(0.0, size.turning(arrived_steps(strong), arrived_steps(row), n))


def losses_table(of_seesaw: Mapping[tuple[str, int], Sequence[Row]], own: Sequence[Row], counts: Sequence[int]) -> str:
    """Returns the steps and the best validation loss of Seesaw, beside strong scaling with the same decay."""
    strong = {row["seed"]: row for row in own}
    lines = [(LABELS["strong"], "", *numbers(own), "", "")]
    for n in counts:
        of = of_seesaw["seesaw", n]
        ratios = [float(row["best_val_loss"]) / float(strong[row["seed"]]["best_val_loss"]) for row in of]
        lines.append((LABELS["seesaw"], str(n), *numbers(of), middle(ratios), sooner(ratios)))
    return table(("strategy", "n", "reached", "steps", "best loss", "loss over strong's", "lower in"), lines)


def numbers(rows: Sequence[Row]) -> tuple[str, str, str]:
    """Returns how many seeds reached the target, their steps, and their best validation losses."""
    came = f"{sum(map(reached, rows))} of {len(rows)}"
    return came, middle([float(row["steps"]) for row in rows]), middle([float(row["best_val_loss"]) for row in rows])


def doubled(rows: Sequence[Row]) -> str:
    """Returns how many seeds had a doubling by measurement on 32 devices, and the largest batch that was reached."""
    of = [stages(row) for row in rows if row["devices"] == "32"]
    return f"{sum(len(one) > 1 for one in of)} of {len(of)} seeds, to {max(one[-1][1] for one in of)} at most"


def stages(row: Row) -> list[tuple[int, int]]:
    """Returns the first epoch and the batch of each stage of a run.

    >>> stages({"global_batch": "32", "growth": "6:64 11:128"})
    [(1, 32), (6, 64), (11, 128)]
    """
    later = (text.split(":") for text in row.get("growth", "").split())
    return [(1, int(row["global_batch"])), *((int(first), int(batch)) for first, batch in later)]


def seconds(row: Row, at: DeviceGroup) -> float:
    """Returns the time of a run to its target on a machine, or infinity for a miss."""
    epochs = arrived_epochs(row)
    if math.isinf(epochs):
        return math.inf
    firsts = [first for first, _ in stages(row)]
    ends = [*firsts[1:], epochs + 1]
    counts = (max(min(end, epochs + 1) - first, 0) for first, end in zip(firsts, ends, strict=True))
    trained_s = sum(count * float(at.epoch_s(batch)) for count, (_, batch) in zip(counts, stages(row), strict=True))
    return trained_s + (measurements(row) * measurement_s(row, at) if row["scaling"] == MEASURED else 0.0)


def measurements(row: Row) -> int:
    """Returns how often a run has measured its critical batch: after every second epoch, until the last doubling.

    >>> measurements({"global_batch": "32", "growth": "7:64", "devices": "2", "epochs": "30"})
    3
    >>> measurements({"global_batch": "32", "growth": "7:64", "devices": "8", "epochs": "30"})
    15
    """
    *_, (first, batch) = stages(row)
    wanted = int(row["global_batch"]) * int(row["devices"])
    return (first - 1 if batch >= wanted else int(row["epochs"])) // EPOCHS_BETWEEN_MEASUREMENTS


def measurement_s(row: Row, at: DeviceGroup) -> float:
    """Returns the time of a measurement on one device: steps of the base batch, whole and sample by sample."""
    batch, train = int(row["global_batch"]), at.measured.train
    return at.scale * NORM_STEPS * float(batch * cost.seconds_at(train, 1) + cost.seconds_at(train, batch))


def time_ratios(rows: Sequence[Row], against: Sequence[Row], arm: str, n: int) -> dict[str, list[float]]:
    """Returns the time of a strategy over that of another one, seed by seed, by machine.

    Args:
      rows: runs of the strategy, among others.
      against: runs to compare with: of as many devices where there are such, otherwise of one device.
      arm: the strategy.
      n: number of devices.
    """
    other = {(int(row["devices"]), row["seed"]): row for row in against}
    pairs = [(row, other.get((n, row["seed"]), other.get((1, row["seed"])))) for row in by_arm(rows, (arm,))[arm, n]]
    return {
        name: [seconds(row, at) / seconds(base, at) for row, base in pairs if base is not None]
        for name, at in machines.machines(machines.paper_measurements(), n).items()
    }


def times_table(rows: Sequence[Row], against: Sequence[Row], arms: Sequence[str], counts: Sequence[int]) -> str:
    """Returns the table of `time_ratios`, with the number of seeds in which the strategy is sooner."""
    lines = []
    for arm, n in itertools.product(arms, counts):
        found = time_ratios(rows, against, arm, n).values()
        if not any(found):
            continue
        lines.append((LABELS[arm], str(n), *(f"{middle(ratios)}; sooner in {sooner(ratios)}" for ratios in found)))
    return table(("strategy", "n", *machines.machines(machines.paper_measurements(), 1)), lines)


def sooner(ratios: Sequence[float]) -> str:
    """Returns in how many seeds a strategy takes less time than the other.

    >>> sooner([0.9, 1.1, float("inf")])
    '1 of 3'
    """
    return f"{sum(ratio < 1 for ratio in ratios)} of {len(ratios)}"


def sooner_facts(name: str, rows: Sequence[Row], against: Sequence[Row], arm: str, counts: Sequence[int]) -> dict[str, str]:
    """Returns `sooner` by number of devices and machine: `NAME_8_k80_1gbe`, and `NAME_8_h100` for the H100."""
    return {
        f"{name}_{n}_{machine.split(',')[0].lower()}": sooner(ratios)
        for n in counts
        for machine, ratios in time_ratios(rows, against, arm, n).items()
    }


def tuned() -> dict[str, str]:
    """Returns the best factor of the learning rate at each batch, by short runs."""
    rows = tables.read(TUNED)
    by_batch = {n: list(of) for n, of in itertools.groupby(rows, key=lambda row: row["n"])}
    lines = []
    for n, of in by_batch.items():
        losses = {row["factor"]: f"{float(row['loss']):.5f}" for row in of}
        best = min(of, key=lambda row: float(row["loss"]))["factor"]
        lines.append((n, best, "; ".join(f"{factor}: {loss}" for factor, loss in losses.items())))
    return {"tuned_table": table(("base batches", "best factor", "factor of η: training loss"), lines)}


def tuned_rows(plan: Path) -> list[dict[str, str]]:
    """Returns a row for each learning rate that a plan with `--tune` tried, at batches with all of them."""
    parts = json.loads((plan / "measured.json").read_text(encoding="utf-8"))["parts"]
    found = ((TRIAL.fullmatch(name), value) for name, value in parts.items())
    rows = [{**match.groupdict(), "loss": value} for match, value in found if match]
    counts = Counter(row["n"] for row in rows)
    return [row for row in rows if counts[row["n"]] == NUM_TUNED_RATES]


def main() -> None:
    """Writes the table of the learning rates that plans tried."""
    parser = Parser(__doc__)
    parser.add_argument("plans", type=Path, nargs="+", metavar="PLAN")
    rows = [row for plan in parser.parse_args().plans for row in tuned_rows(plan)]
    tables.write(TUNED, sorted(rows, key=lambda row: (int(row["n"]), float(row["factor"]))))


if __name__ == "__main__":
    guarded(main)

"""Measures whether generated nodules have the grain and the attributes that were asked for.

    python -m experiments.grain --root FOLDER --run RUN [--division 2] [--held-out tune] [--seeds 5]

RUN is a model of the study (`experiments.generation`). --results gets tables and pictures, named by held-out part:
C2ST, FRD and spectra by thirds of the scans' sharpness; what was asked for and what came out; and a sheet of 60 nodules,
without marks and with them.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.options import Parser, guarded
from experiments import cohorts, downstream, models, tables
from experiments.cohorts import WINDOW, Cohorts
from experiments.fidelity import SCALE
from gmmae.classification.scores import auc
from gmmae.data import native_volumes
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import Nodules, windowed
from gmmae.generation import generator as generators
from gmmae.generation import grain as grains
from gmmae.generation.generator import Generator, Wanted
from gmmae.generation.grain import Grain
from gmmae.generation.judging import judge
from gmmae.generation.judging.figures import contact_sheet
from gmmae.generation.judging.two_samples import c2st, frechet
from gmmae.plotting import canvas

THIRDS = ("softest", "middle", "sharpest")
DIAMETERS_MM = (6.0, 12.0)
SCORES = {"benign": (1.0, 2.0), "malignant": (4.0, 5.0)}
COUNT = 150
"""Number of nodules for each attribute."""


def measured(root: Path, nodules: Nodules) -> Grain:
    """Returns the grain of the scans of nodules."""
    volumes = {volume.name: volume for volume in native_volumes.read(DataConfig(source="cubes", root=str(root)))}
    return grains.measure([volumes[name] for name in nodules.names])


def thirds(known: Grain, limits: tuple[float, float]) -> list[np.ndarray]:
    """Returns the indices of nodules in each third of sharpness. Unmeasured ones are in none."""
    low, high = limits
    sharp = known.sharpness
    return [np.flatnonzero(part) for part in (sharp < low, (sharp >= low) & (sharp <= high), sharp > high)]


def spectra_of(nodules: Nodules) -> np.ndarray:
    """Returns the mean over nodules of the logarithm of each band's mean square, in HU²."""
    low, high = WINDOW
    return np.log10(grains.spectra(windowed(nodules.values, WINDOW)) * (high - low) ** 2 + 1e-3).mean(0)


def sharpness(fitted: Generator, judged: Nodules, known: Grain, seeds: int) -> tuple[list[dict[str, Any]], Figure]:
    """Compares each third with generated nodules of that sharpness. Returns the table and the picture of the spectra."""
    assert fitted.grain is not None
    own = fitted.grain.sharpness
    low, high = np.nanpercentile(own, [100 / 3, 200 / 3])
    limits = [(float(np.nanmin(own)), low), (low, high), (high, float(np.nanmax(own)))]
    lines, pictures = [], []
    for name, index, asked, training in zip(
        THIRDS, thirds(known, (low, high)), limits, thirds(fitted.grain, (low, high)), strict=True
    ):
        real = judged.take(index)
        reference = judge.population(real, False, SCALE).sample
        found: dict[str, list[tuple[float, float]]] = {"real": [], "generated": [], "generated (any sharpness)": []}
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            others = fitted.training.take(rng.choice(training, len(index), replace=False))
            sets = {
                "real": others,
                "generated": fitted.sample(len(index), Wanted(sharpness=asked), seed).nodules,
                "generated (any sharpness)": fitted.sample(len(index), seed=seed).nodules,
            }
            for kind, nodules in sets.items():
                sample = judge.population(nodules, False, SCALE).sample
                found[kind].append((c2st(reference, sample, seed).value, frechet(reference, sample)))
            if not seed:
                pictures.append((name, spectra_of(real), spectra_of(sets["generated"]), spectra_of(others)))
        for kind, values in found.items():
            auc_mean, frd = np.mean(values, axis=0)
            row = {"scans": name, "from": round(asked[0], 2), "to": round(asked[1], 2), "made": kind, "nodules": len(index)}
            spread = np.std([value for value, _ in values], ddof=1) if len(values) > 1 else float("nan")
            lines.append(row | {"c2st": round(auc_mean, 3), "c2st_seeds_sd": round(spread, 3), "frd": round(frd, 2)})
    return lines, drawn(pictures)


def drawn(pictures: list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]) -> Figure:
    """Draws the spectra within slices and across slices, of each third."""
    figure = canvas.blank(3.6, "")
    grid = figure.subplots(2, len(pictures), sharey="row", squeeze=False)
    size = len(grains.EDGES) + 1
    middle = np.append(np.array((0.0, *grains.EDGES)), 1.0)
    places = (middle[:-1] + middle[1:]) / 2
    for column, (name, *of_sets) in enumerate(pictures):
        for row, label in enumerate(("within slices", "across slices")):
            axes = grid[row][column]
            colours = ((canvas.BLUE, "held-out"), (canvas.VERMILION, "generated"), (canvas.GREY, "training"))
            for values, (colour, legend) in zip(of_sets, colours, strict=True):
                table = values.reshape(size, size)
                axes.plot(places, table[0] if row == 0 else table[:, 0], color=colour, label=legend)
            canvas.dress(axes, f"frequency {label}", "log₁₀ HU²" if not column else "")
            if not row:
                axes.set_title(f"{name} third", fontsize=8)
    grid[0][0].legend(fontsize=6, frameon=False)
    return figure


def attributes(found: Cohorts, fitted: Generator, seeds: int) -> list[dict[str, Any]]:
    """Asks for diameters, scores of malignancy, noise and categories, and measures what came out."""
    lines = []
    scored = downstream.labelled(found.train, downstream.malignancy(found.column(found.train, "malignancy")))
    judge_of = {
        "malignancy": classifier(downstream.inputs(scored), np.array(scored.categories) == "malignant"),
        "category": classifier(downstream.inputs(found.train), np.array(found.train.categories) == "solid"),
    }
    for seed in range(seeds):
        sized = fitted.sample(COUNT, Wanted(diameter_mm=DIAMETERS_MM), seed).nodules
        assert sized.details is not None
        assert sized.masks is not None
        voxel_mm = sized.details.edge_mm / max(sized.values.shape[1:])
        ball_mm = np.cbrt(6 / np.pi * (sized.masks > 0).sum((1, 2, 3))) * voxel_mm
        inside = (ball_mm >= DIAMETERS_MM[0]) & (ball_mm <= DIAMETERS_MM[1])
        lines.append(
            {"asked": "diameter 6 to 12 mm", "measure": "share with a ball of the mask's volume in it", "value": inside.mean()}
        )
        for name, wanted in {
            "malignancy": [Wanted(malignancy=score) for score in SCORES.values()],
            "category": [Wanted(category) for category in ("ground-glass", "solid")],
        }.items():
            low, high = (fitted.sample(COUNT, one, seed).nodules for one in wanted)
            lines.append(
                {"asked": name, "measure": "AUC of a classifier of real nodules", "value": separated(judge_of[name], low, high)}
            )
        fine = [fineness(fitted.sample(COUNT, Wanted(noise_hu=limits), seed).nodules) for limits in noise_limits(fitted)]
        lines.append(
            {"asked": "noise (highest against lowest third)", "measure": "ratio of fine detail", "value": fine[1] / fine[0]}
        )
    own = [fineness(fitted.training.take(index)) for index in noise_thirds(fitted)]
    lines.append(
        {
            "asked": "noise (highest against lowest third)",
            "measure": "the same ratio of the training nodules",
            "value": own[1] / own[0],
        }
    )
    for name, column in (
        ("malignancy", downstream.malignancy(found.column(found.tune, "malignancy"))),
        ("category", found.tune.categories),
    ):
        real = downstream.labelled(found.tune, column)
        kinds = np.array(real.categories)
        parts = ("benign", "malignant") if name == "malignancy" else ("ground-glass", "solid")
        low, high = (real.take(np.flatnonzero(kinds == kind)) for kind in parts)
        lines.append(
            {"asked": name, "measure": "the same AUC of the tuning nodules", "value": separated(judge_of[name], low, high)}
        )
    return averaged(lines)


def noise_limits(fitted: Generator) -> list[tuple[float, float]]:
    """Returns the ranges of the lowest and the highest third of noise."""
    assert fitted.grain is not None
    noise = fitted.grain.noise_hu
    low, high = np.nanpercentile(noise, [100 / 3, 200 / 3])
    return [(float(np.nanmin(noise)), float(low)), (float(high), float(np.nanmax(noise)))]


def noise_thirds(fitted: Generator) -> list[np.ndarray]:
    """Returns the training nodules of the lowest and the highest third of noise."""
    assert fitted.grain is not None
    noise = fitted.grain.noise_hu
    return [np.flatnonzero((noise >= low) & (noise <= high)) for low, high in noise_limits(fitted)]


def fineness(nodules: Nodules) -> float:
    """Returns the root of the mean energy in the bands that show grain, as share of the window."""
    return float(np.sqrt(grains.spectra(windowed(nodules.values, WINDOW))[:, grains.fine_bands()].mean()))


def classifier(inputs: np.ndarray, positive: np.ndarray) -> Any:
    """Returns the study's classifier, fitted to real nodules."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(C=downstream.STRENGTH, class_weight="balanced", max_iter=2000))
    return model.fit(inputs, positive)


def separated(model: Any, low: Nodules, high: Nodules) -> float:
    """Returns the AUC with which a fitted classifier tells two sets apart."""
    score = np.concatenate([model.decision_function(downstream.inputs(nodules)) for nodules in (low, high)])
    positive = np.arange(len(score)) >= len(low.names)
    return float(auc(score, positive, np.ones((1, len(score))))[0])


def averaged(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the mean, smallest and largest value over the seeds of each line."""
    values: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        values.setdefault((line["asked"], line["measure"]), []).append(float(line["value"]))
    return [
        {"asked": asked, "measure": measure, "seeds": len(of), "mean": round(float(np.mean(of)), 3),
         "seeds_min": round(min(of), 3), "seeds_max": round(max(of), 3)}
        for (asked, measure), of in values.items()
    ]  # fmt: skip


def main() -> None:
    """Writes the tables and the pictures."""
    parser = Parser(__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--division", type=int, choices=cohorts.DIVISIONS, default=cohorts.DIVISIONS[0])
    parser.add_argument("--held-out", choices=("tune", "test"), default="tune")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=Path("results/generation"))
    args: argparse.Namespace = parser.parse_args()
    found = cohorts.read(args.root, args.division)
    judged = getattr(found, args.held_out)
    trained = models.read(args.run)
    cohorts.check_held_out(found, trained.training, args.run)
    scores = found.column(found.train, "malignancy")
    fitted = generators.fit(trained.model, found.train, found.tune, measured(args.root, found.train), scores)
    args.results.mkdir(parents=True, exist_ok=True)
    table, figure = sharpness(fitted, judged, measured(args.root, judged), args.seeds)
    tables.write(args.results / f"sharpness_{args.held_out}.csv", table)
    canvas.save(figure, args.results / f"spectra_{args.held_out}.png")
    new = fitted.sample(len(judged.names), seed=0).nodules
    for ending, labelled in (("", False), ("_key", True)):
        sheet, _ = contact_sheet(judged.values, new.values, WINDOW, 0, labelled)
        canvas.save(sheet, args.results / f"sheet_{args.held_out}{ending}.png")
    tables.write(args.results / f"attributes_{args.held_out}.csv", attributes(found, fitted, args.seeds))
    print(*sorted(path.name for path in args.results.glob(f"*_{args.held_out}*")), sep="\n")


if __name__ == "__main__":
    guarded(main)

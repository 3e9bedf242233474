"""Measures how well a U-Net segments real nodules: Dice on a nodule's own grid, by cross-validation over patients.

    python -m experiments.segmentation --data FOLDER --out DIR [--folds 5] [--epochs 14] [OPTIONS]

The project's own loop trains one network a fold on slices that hold nodule (all: `--data.empty-slices`). OPTIONS are those of
train.py. A network is evaluated after its last epoch, so no fold chooses its epoch. Patches are cropped at a random offset
from the nodule's centre, and their predictions are combined in the nodule's volume. Voxels outside of the patches count as
background. Figures are over the slices that hold nodule, and over all slices of the volume.

Baselines are a ball of the annotated diameter, a ball of one diameter for all, a threshold, and a threshold with an opening.
Balls lie at the annotated position. The network knows neither the position nor the diameter. After an opening, the component
nearest to the annotated position is kept. Diameter and thresholds are the best ones for the training nodules.

DIR gets nodules.csv, summary.csv, segmentations.png, and the runs. Finished runs are not trained again.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy import ndimage

import gmmae
from benchmarks.options import Parser, guarded
from experiments import tables
from gmmae.config.schema import Config
from gmmae.data import grouped
from gmmae.data.patches import Patches
from gmmae.data.volumes import NativeNodule
from gmmae.plotting.slices import segmentations
from gmmae.training.trained import Trained, restore
from gmmae.workloads import segmentation

THRESHOLDS_HU = (-800, -700, -600, -500, -400, -300)
DIAMETERS_MM = (5, 6, 7, 8, 9, 10, 12)
BASELINES = ("ball", "fixed_ball", "threshold", "opened")
NETWORKS = ("unet", "unet_flips")
"""Networks: as trained, and the mean of its predictions for an image and its flips."""
SHOWN = (0.75, 0.25)
"""Quantiles of the Dice, of each category, that the picture shows."""

Mask = Bool[np.ndarray, "z y x"]


class Seen(NamedTuple):
    """Patch of a nodule's largest slice, its label, and its prediction."""

    image: Float[np.ndarray, "y x"]
    labels: np.ndarray
    found: Float[np.ndarray, "y x"]


class Judged(NamedTuple):
    """Dice of one nodule over the slices that hold it, and over all of its volume."""

    held: float
    whole: float


def judge(found: Mask, mask: Mask) -> Judged:
    """Returns the Dice of a predicted mask."""
    holding = mask.any((1, 2))
    return Judged(dice(found[holding], mask[holding]), dice(found, mask))


def dice(found: np.ndarray, mask: np.ndarray) -> float:
    """Returns the Dice of two masks.

    >>> dice(np.array([True, True, False]), np.array([True, False, False])) == 2 / 3
    True
    """
    return 2 * float((found & mask).sum()) / max(int(found.sum() + mask.sum()), 1)


def ball(volume: NativeNodule, diameter_mm: float) -> Mask:
    """Returns a ball at the annotated position."""
    return _squared_mm(volume) <= (diameter_mm / 2) ** 2


def _squared_mm(volume: NativeNodule) -> Float[np.ndarray, "z y x"]:
    """Returns the squared distance of each voxel from the annotated position, mm²."""
    places = zip(volume.mask.shape, volume.centre, volume.spacing_mm, strict=True)
    z, y, x = (np.square((np.arange(n) - centre) * mm) for n, centre, mm in places)
    return z[:, None, None] + y[:, None] + x


def opened(volume: NativeNodule, above: Mask) -> Mask:
    """Opens a mask in each slice, and keeps the component nearest to the annotated position."""
    left = np.asarray(ndimage.binary_opening(above, ndimage.generate_binary_structure(2, 1)[None]))
    labels, count = ndimage.label(left)  # pyright: ignore[reportGeneralTypeIssues]
    if not count:
        return left
    nearest = int(np.argmin(np.where(left, _squared_mm(volume), np.inf)))
    return labels == labels.ravel()[nearest]


def candidates(volume: NativeNodule) -> dict[str, list[Judged]]:
    """Returns the results of the baselines for each of their settings. The ball of the annotated diameter has none."""
    mask, above = volume.mask > 0, [volume.values > hu for hu in THRESHOLDS_HU]
    return {
        "ball": [judge(ball(volume, volume.diameter_mm), mask)],
        "fixed_ball": [judge(ball(volume, mm), mask) for mm in DIAMETERS_MM],
        "threshold": [judge(one, mask) for one in above],
        "opened": [judge(opened(volume, one), mask) for one in above],
    }


def best(by_nodule: Sequence[dict[str, list[Judged]]], training: np.ndarray) -> dict[str, int]:
    """Returns the setting with the best mean Dice over the training nodules."""
    mean = {name: np.mean([[one.held for one in by_nodule[i][name]] for i in training], axis=0) for name in BASELINES}
    return {name: int(np.argmax(values)) for name, values in mean.items()}


def configured(args: argparse.Namespace, more: Sequence[str], fold: int) -> Config:
    """Returns the configuration of a fold: the prototype's recipe with the options of the command line."""
    recipe = {
        "data.source": "cubes",
        "data.root": args.data.resolve(),
        "data.folds": args.folds,
        "data.fold": fold,
        "optim.learning-rate": 0.003,
        "optim.batch-size": 32,
        "optim.warmup-epochs": max(1, round(0.3 * args.epochs)),
        "optim.cosine-epochs": args.epochs,
        "stop.max-epochs": args.epochs,
        "stop.monitor": "dice",
        "stop.mode": "max",
        "checkpoint.every-epochs": args.epochs,
        "log.every-epochs": args.epochs,
    }
    from gmmae.cli.arguments import parse_train

    arguments = [f"--{key}={value}" for key, value in recipe.items()]
    return parse_train(["--workload", "segmentation", "--log.no-tensorboard", *arguments, *more], "experiments.segmentation")[0]


def train(config: Config, workdir: Path) -> Trained:
    """Returns a run with the parameters after its last epoch, trained only if it is not finished."""
    from gmmae.training import checkpoint
    from gmmae.training.preparation import blank_state
    from gmmae.training.workdir import WorkDir

    gmmae.train(config, workdir, quiet=True)
    trained = restore(config, workdir)
    newest = checkpoint.trained(WorkDir(workdir).checkpoints, blank_state(config, trained.workload), trained.record)
    return trained._replace(params=newest.state.params)


def probabilities(trained: Trained, patches: Patches, flips: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Returns the mean of a network's predictions for patches that are flipped along some axes."""
    jitter, results = trained.config.settings.data.jitter, []
    for axes in flips:
        flipped = patches._replace(
            values=np.flip(patches.values, axes),
            labels=np.flip(patches.labels, axes),
            offsets=np.where([axis + 1 in axes for axis in range(2)], 2 * jitter - patches.offsets, patches.offsets),
        )
        found = trained.describe(segmentation.samples_of(flipped))["probabilities"]
        results.append(np.flip(found, axes))
    return np.mean(results, axis=0)


def put_together(volume: NativeNodule, patches: Patches, found: np.ndarray) -> Mask:
    """Returns the mask of a volume from the predictions for its slices."""
    mask = np.zeros(volume.mask.shape, bool)
    for (z, *corner), offset, one in zip(patches.corners, patches.offsets, found, strict=True):
        start = np.array(corner) + offset
        (y0, x0), (y1, x1) = np.maximum(start, 0), np.minimum(start + one.shape, mask.shape[1:])
        mask[z, y0:y1, x0:x1] = one[y0 - start[0] : y1 - start[0], x0 - start[1] : x1 - start[1]] > 0.5
    return mask


def run_fold(
    config: Config, workdir: Path, by_nodule: Sequence[dict[str, list[Judged]]]
) -> tuple[list[dict[str, Any]], dict[str, Seen]]:
    """Returns a row for each held-out nodule, and the patch of its largest slice."""
    data = config.settings.data
    trained = train(config, workdir)
    volumes = segmentation.load_volumes(data)
    training, held_out = segmentation.split_volumes(volumes, data)
    chosen = best(by_nodule, training)
    everything = segmentation.patches_of(volumes, data, True)
    patches = everything.take(np.flatnonzero(np.isin(everything.volumes, held_out)))
    shown = trained.describe(segmentation.samples_of(patches))
    plain = shown["probabilities"]
    flips = probabilities(trained, patches, [(), (1,), (2,), (1, 2)])
    rows, seen = [], {}
    for i in held_out:
        volume, own = volumes[i], np.flatnonzero(patches.volumes == i)
        part, mask = patches.take(own), volume.mask > 0
        judged = {
            name: judge(put_together(volume, part, p[own]), mask) for name, p in zip(NETWORKS, (plain, flips), strict=True)
        }
        judged |= {name: by_nodule[i][name][number] for name, number in chosen.items()}
        rows.append({
            "name": volume.name,
            "patient": volume.group,
            "category": volume.category,
            "fold": data.fold,
            "diameter_mm": volume.diameter_mm,
            "slices": int(mask.any((1, 2)).sum()),
            "volume_slices": len(mask),
            **{name: one.held for name, one in judged.items()},
            **{f"{name}_whole": one.whole for name, one in judged.items()},
        })  # fmt: skip
        largest = own[np.argmax(mask[part.corners[:, 0]].sum((1, 2)))]
        seen[volume.name] = Seen(shown["images"][largest], shown["labels"][largest], flips[largest])
    return rows, seen


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a line for each method, choice of slices and category: the mean with its interval by patient, and the median.

    Nodules of one patient have no interval.
    """
    lines = []
    for name in (*NETWORKS, *BASELINES):
        for slices in ("with nodule", "all"):
            for category in ("all", *sorted({row["category"] for row in rows})):
                own = [row for row in rows if category in ("all", row["category"])]
                values = np.array([row[name if slices == "with nodule" else f"{name}_whole"] for row in own])
                mean = grouped.mean(values, [row["patient"] for row in own])
                lines.append({
                    "method": name,
                    "slices": slices,
                    "category": category,
                    "nodules": len(own),
                    "mean": round(mean.value, 4),
                    "low": tables.number(mean.low),
                    "high": tables.number(mean.high),
                    "median": round(float(np.median(values)), 4),
                })  # fmt: skip
    return lines


def picture(rows: Sequence[dict[str, Any]], seen: dict[str, Seen], path: Path) -> Path:
    """Draws the nodules of each category at some quantiles of the Dice."""
    chosen, labels = [], []
    for category in sorted({row["category"] for row in rows}):
        own = sorted((row for row in rows if row["category"] == category), key=lambda row: row["unet_flips"])
        for share in SHOWN:
            row = own[round(share * (len(own) - 1))]
            chosen.append(seen[row["name"]])
            labels.append(f"{category} {row['unet_flips']:.2f}")
    images, of_labels, found = (np.stack(arrays) for arrays in zip(*chosen, strict=True))
    title = "Readers' masks, and a U-Net's"
    return segmentations(images, of_labels == 1, of_labels == 2, {"found": found}, path, title, labels)


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains missing folds, evaluates them, and writes the tables and the picture."""
    parser = Parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of volumes with masks and nodules.csv")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=14)
    args, more = parser.parse_known_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    first = configured(args, more, 0)
    volumes = segmentation.load_volumes(first.settings.data)
    by_nodule = [candidates(volume) for volume in volumes]
    print(f"{len(volumes)} nodules read, and baselines tried, in {time.perf_counter() - start:.0f} s", flush=True)
    rows: list[dict[str, Any]] = []
    seen: dict[str, Seen] = {}
    for fold in range(args.folds):
        start = time.perf_counter()
        config = configured(args, more, fold)
        own, shown = run_fold(config, args.out / f"fold_{fold}", by_nodule)
        rows += own
        seen |= shown
        means = " ".join(f"{name} {np.mean([row[name] for row in own]):.4f}" for name in (*NETWORKS, *BASELINES))
        print(f"fold {fold}: {len(own)} nodules, {means}, {time.perf_counter() - start:.0f} s", flush=True)
        tables.write(args.out / "nodules.csv", rows)
    table = summary(rows)
    tables.write(args.out / "summary.csv", table)
    for line in table:
        print(" ".join(str(value) for value in line.values()))
    print(picture(rows, seen, args.out / "segmentations.png"))


if __name__ == "__main__":
    guarded(main)

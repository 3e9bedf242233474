"""A comparison of classifiers as a table beside published results, and as files."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import RocCurveDisplay, roc_curve

from gmmae.classification.classifiers import LINEAR, MIN_TO_BOOST, Result
from gmmae.classification.samples import MIN_TEST_GROUPS, Labelled
from gmmae.config.toml import read_table
from gmmae.data.extraction import medmnist
from gmmae.data.grouped import FEW_GROUPS, FOLDS, Estimate
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import own_columns
from gmmae.plotting import canvas, tables
from gmmae.plotting.comparison import STYLES
from gmmae.system.files import csv_text, whole_folder, write_text

JSON, MARKDOWN, TABLE, PREDICTIONS = "classification.json", "classification.md", "classification.csv", "predictions.csv"
ROC, WEIGHTS = "roc.png", "classifiers.npz"


def published() -> dict[str, Any]:
    """AUC and accuracy of each method on each data set of MedMNIST, and their `source`."""
    return read_table(Path(__file__).with_name("published.toml"))


def notes(labelled: Labelled, data: DataConfig, runs: Sequence[Path], seeds: int) -> list[str]:
    """Sentences about the samples, the settings, and what the published results differ in."""
    tested = labelled.truth[labelled.test]
    classes = ", ".join(f"{sum(tested == i)} of {name!r}" for i, name in enumerate(labelled.classes))
    groups = len(set(labelled.nodules.table["group"][labelled.test]))
    fitted = len(labelled.rounds[-1][0])
    lines = [f"{fitted} training and {len(tested)} test samples; in the test set {classes}"]
    if labelled.unlabelled:
        lines.append(f"{labelled.unlabelled} volumes have no label and are left out")
    if labelled.own_test:
        lines.append("training, validation and test sets are the data's own; settings were chosen on the validation set")
    elif labelled.rounds[1:]:
        lines = [
            f"{len(tested)} samples, {classes}",
            f"a {FOLDS}-fold cross-validation tests all samples, because the run's validation set is of fewer than "
            f"{MIN_TEST_GROUPS} patients or groups; the split is by {labelled.nodules.by}. The model was trained, without "
            f"labels, on {len(labelled.seen)} of them; settings were chosen by {FOLDS} folds of each training set",
            *lines[1:],
        ]
    else:
        lines.append(
            f"the test set is the run's validation set; the split is by {labelled.nodules.by}. The model was not trained on "
            f"it, but its epoch was chosen by its loss there, without labels; settings were chosen by {FOLDS} folds of the "
            "training set"
        )
    if not labelled.rounds[1:] and fitted < MIN_TO_BOOST:
        lines.append(f"gradient boosting learns nothing from fewer than {MIN_TO_BOOST} samples, so look at logistic regression")
    lines.append(f"means over {len(runs)} of the model's runs and {seeds} seeds of gradient boosting; sd is between these")
    lines.append(f"95 % intervals resample the {groups} groups of the test set: patients, or volumes where none is named")
    if data.source != "medmnist":
        return lines
    known = medmnist.DATASETS.get(medmnist.dataset_name(data.folder))
    if known is None:
        return [*lines, f"no published results are known for a file named {data.folder.name}"]
    lines.append(f"published: {published()['source']}, for 28³ voxels; here {data.shape}³")
    try:
        with data.folder.open("rb") as file:
            checksum = hashlib.file_digest(file, "md5").hexdigest()
    except OSError as error:  # it may have gone since it was read
        return [*lines, f"the MD5 of {data.folder.name} is not known: {error.strerror or error}"]
    if checksum not in known.md5:
        lines.append(f"{data.folder.name} is not the file of {medmnist.RECORD}: its MD5 differs")
    return lines


def verdict(results: Sequence[Result], groups: np.ndarray, by: str) -> str:
    """Which features are shown to be better than chance, and whether the diameter alone is ahead of those of the voxels."""
    count, aucs = len(set(groups)), {each.kind: each.auc for each in results if each.method == LINEAR}
    better = [kind for kind, auc in aucs.items() if auc.low > 0.5 and count >= FEW_GROUPS]
    most = max(auc.value for kind, auc in aucs.items() if "diameter" not in kind)
    size = aucs["diameter"].value if "diameter" in better else 0
    patients, shown = "patients" if by == "patient" else "groups", ", ".join(better) or "no features"
    ahead = f"; the diameter alone is ahead: AUC {size:.3f}, at most {most:.3f} without it" * (size > most)
    return f"{len(groups)} volumes of {count} {patients}: {LINEAR} beats chance with {shown}{ahead}"


def draw(path: Path, results: Sequence[Result], truth: np.ndarray, classes: Sequence[str], title: str) -> None:
    """Draws the ROC curves of the logistic regressions of two classes."""
    if len(classes) > 2 or not results:
        return
    figure = canvas.blank(5.4, title)
    axes = figure.subplots()
    axes.set_prop_cycle(color=[colour for colour, _ in STYLES])
    for result in results:
        if result.method == LINEAR:
            fpr, tpr, _ = roc_curve(truth, result.probabilities[:, 1])
            RocCurveDisplay(fpr=fpr, tpr=tpr, roc_auc=result.auc.value, name=result.kind).plot(ax=axes)
    axes.plot([0, 1], [0, 1], "k--", lw=0.9)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.15), ncols=2, frameon=False, fontsize=8)
    canvas.dress(axes, "false positive rate", f"true positive rate, {classes[1]}")
    canvas.save(figure, path)


def table(results: Sequence[Result], known: dict[str, list[float]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows of the results, with published ones below."""
    number = "{:.3f}".format
    rows = [
        (
            one.kind,
            one.method,
            one.auc.text(number),
            Estimate(one.auc_sd).text(number),
            one.accuracy.text(number),
            Estimate(one.accuracy_sd).text(number),
        )
        for one in results
    ]
    rows += [("published", method, f"{auc:.3f}", "–", f"{accuracy:.3f}", "–") for method, (auc, accuracy) in known.items()]
    return ("features", "classifier", "AUC (95 % interval)", "sd", "accuracy (95 % interval)", "sd"), rows


def write(
    folder: Path,
    labelled: Labelled,
    results: Sequence[Result],
    known: dict[str, list[float]],
    about: dict[str, Any],
    basis: np.ndarray,
) -> list[Path]:
    """Writes table, values, the test samples' probabilities, ROC curves of two classes, and what `gmmae predict` reads."""
    rows, predictions, columns = [], [], labelled.nodules.table
    for result in results:
        values = {"features": result.kind, "count": result.features, "classifier": result.method}
        for name in ("auc", "accuracy"):
            numbers = (*getattr(result, name), getattr(result, f"{name}_sd"))
            values |= zip((name, f"{name}_low", f"{name}_high", f"{name}_sd"), numbers, strict=True)
        rows.append({name: None if value != value else value for name, value in values.items()})
        for index, probabilities in zip(labelled.test, result.probabilities, strict=True):
            sample = {"name": columns["name"][index], "group": columns["group"][index]}
            sample |= {"label": labelled.classes[labelled.truth[index]], "features": result.kind, "classifier": result.method}
            sample |= zip(labelled.classes, map("{:.9f}".format, probabilities), strict=True)
            predictions.append(sample | {name: column[index] for name, column in own_columns(columns, sample).items()})
    shown = tables.table(*table(results, known), "Classification of the test set", [f"{note}." for note in about["notes"]])
    rounded = [{name: f"{value:.4f}" if isinstance(value, float) else value for name, value in row.items()} for row in rows]
    exact = [row | {"settings": result.settings} for row, result in zip(rows, results, strict=True)]
    weights = {}
    for kind, (scaler, linear) in ((result.kind, result.fitted) for result in results if result.method == LINEAR):
        slopes = linear.coef_ / scaler.scale_  # for features as they are; two classes have one row
        weights[kind] = np.column_stack([slopes, linear.intercept_ - slopes @ scaler.mean_])
    with whole_folder(folder, mark=JSON) as place:
        np.savez(place / WEIGHTS, allow_pickle=False, basis=basis, **weights)
        draw(place / ROC, results, labelled.truth[labelled.test], labelled.classes, about["notes"][0])
        write_text(place / MARKDOWN, f"{shown}\n")
        write_text(place / TABLE, csv_text(rounded, rounded[0]))
        write_text(place / PREDICTIONS, csv_text(predictions, predictions[0]))
        write_text(place / JSON, json.dumps(about | {"results": exact}, indent=1) + "\n")
    return sorted(folder.iterdir())

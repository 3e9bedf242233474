"""A comparison of classifiers as a table beside published results, and as files."""

import hashlib
import json
import math
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from gmmae.classification.classifiers import MIN_TO_BOOST
from gmmae.classification.comparison import Result
from gmmae.classification.samples import FOLDS, Labelled
from gmmae.data.extraction import medmnist
from gmmae.data.settings import DataConfig
from gmmae.generation.judging.bootstrap import Estimate
from gmmae.system.files import csv_text, whole_folder, write_text

JSON, MARKDOWN, TABLE, PREDICTIONS = "classification.json", "classification.md", "classification.csv", "predictions.csv"
TABLE_COLUMNS = (
    *("features", "count", "classifier", "auc", "auc_low", "auc_high", "auc_sd"),
    *("accuracy", "accuracy_low", "accuracy_high", "accuracy_sd"),
)


class Published(NamedTuple):
    """Published results of a data set: their source, and AUC and accuracy of each method."""

    source: str
    methods: dict[str, tuple[float, float]]


def published(name: str) -> Published:
    """Returns the published results of a data set of MedMNIST; none for another name."""
    text = resources.files("gmmae.classification").joinpath("published.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    methods = {method: (auc, accuracy) for method, (auc, accuracy) in table.get(name, {}).items()}
    return Published(table["source"], methods)


def notes(labelled: Labelled, data: DataConfig, runs: Sequence[Path], seeds: int) -> list[str]:
    """Returns sentences about the samples, the choice of settings, and what the published results differ in."""
    counts = f"{len(labelled.train)} training and {len(labelled.test)} test samples"
    classes = ", ".join(f"{sum(labelled.truth[labelled.test] == i)} of {name!r}" for i, name in enumerate(labelled.classes))
    groups = len({labelled.nodules.groups[i] for i in labelled.test.tolist()})
    lines = [f"{counts}; in the test set {classes}"]
    if labelled.unlabelled:
        lines.append(f"{labelled.unlabelled} volumes have no label and are left out")
    if labelled.own_test:
        lines.append("training, validation and test sets are the data's own; settings were chosen on the validation set")
    else:
        lines.append(
            f"the test set is the run's validation set; the split is by {labelled.nodules.by}. The model was not trained on "
            f"it, but its epoch was chosen by its loss there, without labels; settings were chosen by {FOLDS} folds of the "
            "training set"
        )
    counts = [f"{count} {word}{'s' * (count > 1)}" for count, word in ((len(runs), "run"), (seeds, "seed"))]
    if len(labelled.train) < MIN_TO_BOOST:
        lines.append(f"gradient boosting learns nothing from fewer than {MIN_TO_BOOST} samples, so look at logistic regression")
    lines.append(f"means over {' and '.join(counts)} of the classifier; sd is between these")
    lines.append(f"95 % intervals resample the {groups} groups of the test set: patients, or volumes where none is named")
    if data.source == "medmnist":
        lines += _about_the_file(data)
    return lines


def _about_the_file(data: DataConfig) -> list[str]:
    known = medmnist.DATASETS.get(medmnist.dataset_name(data.folder))
    if known is None:
        return [f"no published results are known for a file named {data.folder.name}"]
    lines = [f"published: {published(medmnist.dataset_name(data.folder)).source}, for 28³ voxels; here {data.shape}³"]
    try:
        with data.folder.open("rb") as file:
            checksum = hashlib.file_digest(file, "md5").hexdigest()
    except OSError as error:  # it may have gone since it was read
        return [*lines, f"the MD5 of {data.folder.name} is not known: {error.strerror or error}"]
    if checksum not in known.md5:
        lines.append(f"{data.folder.name} is not the file of {medmnist.RECORD}: its MD5 differs")
    return lines


def table(results: Sequence[Result], known: Published) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns columns and rows of the results, and of published ones below."""
    rows = [
        (
            *(result.kind, result.method, _interval(result.auc), _sd(result.auc_sd)),
            *(_interval(result.accuracy), _sd(result.accuracy_sd)),
        )
        for result in results
    ]
    rows += [
        ("published", method, f"{auc:.3f}", "–", f"{accuracy:.3f}", "–") for method, (auc, accuracy) in known.methods.items()
    ]
    columns = ("features", "classifier", "AUC (95 % interval)", "sd", "accuracy (95 % interval)", "sd")
    return columns, rows


def _interval(value: Estimate) -> str:
    return f"{value.value:.3f}" + ("" if math.isnan(value.low) else f" ({value.low:.3f} to {value.high:.3f})")


def _sd(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def write(folder: Path, labelled: Labelled, results: Sequence[Result], shown: str, about: dict[str, Any]) -> list[Path]:
    """Writes the table as CSV and Markdown, all values as JSON, and the probabilities of the test samples.

    Args:
      folder: new or empty, or an earlier result, which is replaced.
      labelled: the samples.
      results: of all classifiers.
      shown: the table as Markdown.
      about: further values for the JSON file.

    Raises:
      InputError: the folder holds something else, or cannot be written.
    """
    with whole_folder(folder, mark=JSON) as place:
        write_text(place / MARKDOWN, f"{shown}\n")
        write_text(place / TABLE, csv_text([_row(result) for result in results], TABLE_COLUMNS))
        write_text(place / PREDICTIONS, csv_text(*_predictions(labelled, results)))
        write_text(place / JSON, json.dumps(about | {"results": [_plain(result) for result in results]}, indent=1) + "\n")
    return [folder / name for name in (MARKDOWN, TABLE, PREDICTIONS, JSON)]


def _row(result: Result) -> dict[str, object]:
    values = {
        **dict(zip(("auc", "auc_low", "auc_high"), result.auc, strict=True)),
        "auc_sd": result.auc_sd,
        **dict(zip(("accuracy", "accuracy_low", "accuracy_high"), result.accuracy, strict=True)),
        "accuracy_sd": result.accuracy_sd,
    }
    shown = {name: "" if math.isnan(value) else f"{value:.4f}" for name, value in values.items()}
    return {"features": result.kind, "count": result.features, "classifier": result.method, **shown}


def _plain(result: Result) -> dict[str, Any]:
    values = result._asdict()
    del values["probabilities"]
    numbers = {name: value for name, value in values.items() if isinstance(value, float)}
    estimates = {name: list(value) for name, value in values.items() if isinstance(value, Estimate)}
    plain = values | numbers | estimates
    return {name: _without_nan(value) for name, value in plain.items()}


def _without_nan(value: object) -> object:
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _predictions(labelled: Labelled, results: Sequence[Result]) -> tuple[list[dict[str, object]], list[str]]:
    columns = ["name", "group", "label", "features", "classifier", *labelled.classes]
    rows = [
        {
            **{column: labelled.nodules.table[column][index] for column in ("name", "group")},
            "label": labelled.classes[labelled.truth[index]],
            "features": result.kind,
            "classifier": result.method,
            **{name: f"{value:.5f}" for name, value in zip(labelled.classes, result.probabilities[place], strict=True)},
        }
        for result in results
        for place, index in enumerate(labelled.test.tolist())
    ]
    return rows, columns

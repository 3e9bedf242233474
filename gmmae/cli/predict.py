"""`gmmae predict`: the probabilities of new nodules' classes, and a test of the classifiers where labels are known."""

from collections import Counter
from operator import itemgetter
from zipfile import BadZipFile

import numpy as np
from sklearn.linear_model import LogisticRegression

from gmmae.classification import report, samples
from gmmae.classification.classifiers import LINEAR, scored
from gmmae.classification.samples import LabelRule
from gmmae.cli.evaluate import DIVISION, kinds_of
from gmmae.cli.options import PredictArguments
from gmmae.config.schema import Config, changed
from gmmae.data import sources
from gmmae.data.extraction.folders import source_of
from gmmae.data.volumes import own_columns, to_density
from gmmae.plotting import tables
from gmmae.system import json_files
from gmmae.system.errors import InputError
from gmmae.system.files import claim_output, csv_text, print_result, whole_folder, write_text
from gmmae.training import fingerprint
from gmmae.training.trained import restore, run_config
from gmmae.workloads.configuration import identity_settings, on_its_data

CSV, SUMMARY = "probabilities.csv", "summary.txt"
KEYS = ("losses", "label", "blocks", "classes", "fitted_to", "patients")
"""What is read of a classification."""


def command(options: PredictArguments, config: Config) -> None:
    """Writes the probabilities and, where there are labels, the test."""
    run, place, advice = options.run, options.run / "classification", f"give `gmmae classify {options.run}`"
    try:
        losses, label, blocks, classes, fitted_to, patients = json_files.read(
            place / report.JSON, "be of a classification", advice, itemgetter(*KEYS)
        )
        weights = dict(np.load(place / report.WEIGHTS, allow_pickle=False))
    except (OSError, ValueError, BadZipFile) as error:
        raise InputError(f"RUN must have been classified; got {error}: {advice}") from error
    own = run_config(run)  # whose column of categories the new nodules may not have
    config = on_its_data(changed(config, data__root=str(options.folder), data__category_column="category"), own)
    config = changed(config, data__source=source_of(options.folder, config.settings.data.csv))
    data, settings = config.settings.data, identity_settings(config)
    may_differ = {*DIVISION, "data.csv", "data.diameter_column"}
    if others := {key for key, value in identity_settings(own).items() if value != settings[key]} - may_differ:
        raise InputError(f"nodules must be cut as those of {run}; got {', '.join(others)} otherwise: leave these options out")
    out = options.out or run / f"predicted_{options.folder.resolve().name.removesuffix('.npz')}"
    claim_output(out, CSV)
    model = restore(config, run)
    if losses[0] != model.record.best_val_loss:
        raise InputError(f"the classifiers must be of {run} as it is; its parameters have changed: {advice}")
    nodules = sources.undivided(data)
    columns, rule = nodules.table, LabelRule(*label)
    inputs = samples.inputs(model, nodules, data, blocks, weights.pop("basis"))
    linear, found = LogisticRegression(), {}
    for kind, rows in weights.items():
        if kind in inputs:
            linear.coef_, linear.intercept_, linear.classes_ = rows[:, :-1], rows[:, -1], np.array(classes)
            found[kind] = linear.predict_proba(inputs[kind])
    known, density = fingerprint.read(run), to_density(nodules.values, data.window, nodules.places)
    known = known and known._replace(train=[*known.train, *fitted_to])
    kinds = np.array(kinds_of(known, density, sources.origins(nodules), "all", True, "unseen"))
    fitted = (kinds == "train") | [not names.isdisjoint(patients) for names in sources.patients(nodules, data)]
    fitted |= np.isin(columns["group"], columns["group"][fitted])  # the folder may give a known volume's patient another name
    kinds = np.where(fitted, "fitted", kinds)
    # MedMNIST's labels are no column.
    column = None if (named := options.label_column or rule.column) == "category" and data.source == "medmnist" else named
    absent = not options.label_column and column is not None and nodules.column(column) is None
    labels = np.full(len(kinds), "") if absent else samples.labels_of(nodules, rule._replace(column=column))
    judged, results = np.flatnonzero(np.isin(labels, classes) & ~fitted), []
    truth, groups = np.searchsorted(classes, labels[judged]), columns["group"][judged]
    lines = [
        f"{options.folder}: {_counts(kinds)}; fitted: no test, as the run or its classifiers had the volume or such a patient",
        *(f"{kind}: {_counts(np.array(classes)[values.argmax(1)])}" for kind, values in found.items()),
        *(
            f"{kind}: left out, because not all nodules have a diameter (fill in diameter_mm)"
            for kind in weights
            if kind not in found
        ),
        f"labels for a test: {_counts(labels[~fitted]) or 'none (--label-column names another column)'}; it takes "
        f"{' and '.join(classes)}, so written, and needs each",
    ]
    if len(set(truth)) == len(classes):
        for kind, values in found.items():
            results.append(scored(kind, LINEAR, values[None, judged], truth, groups, [np.arange(len(judged))]))
        lines += [tables.text_table(*report.table(results, {})), report.verdict(results, groups, nodules.by)]
    rows = {"name": columns["name"], "group": columns["group"], "split": kinds, "label": labels}
    for kind, values in found.items():
        rows |= {f"{kind}: {name}": values[:, i].round(9) for i, name in enumerate(classes) if i or len(classes) > 2}
    rows |= own_columns(columns, rows)
    replaced = ["an earlier prediction there was replaced: --out names another folder"] * (out / CSV).is_file()
    with whole_folder(out, mark=CSV) as folder:
        write_text(
            folder / CSV, csv_text((dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)), rows)
        )
        write_text(folder / SUMMARY, "\n".join(lines))
        report.draw(folder / report.ROC, results, truth, classes, lines[-1])
    print_result(out, [*lines, *replaced, *sorted(out.iterdir())])


def _counts(words: np.ndarray) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(words[words != ""].tolist()).items())

"""`gmmae evaluate`: the loss and the metrics of a run's best parameters for each sample."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gmmae.cli.options import EvaluateArguments
from gmmae.cli.verdict import scale
from gmmae.config.schema import LOSS, Config, changed
from gmmae.data import grouped
from gmmae.data.settings import DataConfig
from gmmae.data.splits import SPLITS
from gmmae.data.volumes import OWN, own_columns
from gmmae.system.errors import InputError, StorageError
from gmmae.system.files import claim_output, csv_text, output_file
from gmmae.training import fingerprint
from gmmae.training.fingerprint import Fingerprint
from gmmae.training.trained import Trained, restore, run_config
from gmmae.workloads import registry
from gmmae.workloads.configuration import identity_settings, on_its_data
from gmmae.workloads.interface import Samples, Splits
from gmmae.workloads.sources import count, hashes

GROUPS = "patients, or scans where none is named"

COLUMNS = {
    "name": "name of the sample, or its number from 0",
    "split": "what the sample was to the run: train, validation, test or unseen; unknown for a source, or another cut",
    "group": "group of the sample, such as its patient; only if the workload names groups",
    "loss": "loss of the sample",
    "NAME": "a metric of the workload, one column each",
    "BASELINE": "loss with a simple model or after refinement, one column each: mean_volume, pca_K, refined_30",
    "COLUMN": "a column of the data's CSV, one each; it is called csv_COLUMN where a column above has its name",
}

MAX_REFINED_VALUES = 2**21
"""Of 512 volumes of 16³, which take about ten seconds."""

DIVISION = {
    f"data.{name}"
    for name in (
        "source",
        "root",
        "augment_with",
        "samples",
        "seed",
        "validation",
        "folds",
        "fold",
        "file_column",
        "category_column",
        "group_column",
    )
}
"""Settings that leave samples as they are. Where others change, a sample whose origin is not known cannot be recognised."""


def command(options: EvaluateArguments, config: Config) -> None:
    """Prints the means, and writes the CSV."""
    if options.out is not None:
        claim_output(options.out, b"name,split")
    own = run_config(options.run)
    config = on_its_data(config, own)
    settings, own_settings = identity_settings(config), identity_settings(own)
    changes = {key: value for key, value in settings.items() if value != own_settings.get(key)}
    on_data = [key for key in changes if key.startswith("data.")]
    # What decides on the samples is the section `data`, or all settings if there is none.
    other = bool(on_data if any(key.startswith("data.") for key in settings) else changes)
    split = options.split if options.split != "auto" else "all" if other else "validation"
    sized = isinstance(getattr(config.settings, "data", None), DataConfig) and "data.validation" not in changes
    if other and split == "all" and sized:
        config = changed(config, data__validation=DataConfig.validation)  # it fits other data too
    model = restore(config, options.run)
    data, known = model.workload.load(), fingerprint.read(options.run)
    if not other:
        fingerprint.require_same_data(config, data, options.run)
    if split == "test" and data.test is None:
        raise InputError("--split test needs data that have a test set of their own, such as medmnist; these have none")
    by_origin = known is not None and data.origins and " " in known.train[0]
    unmatched = "unseen" if by_origin or DIVISION.issuperset(on_data or changes) else "unknown"
    rows: list[dict[str, Any]] = []
    metrics, losses = list[str](), dict[str, np.ndarray]()
    parts = [part for part in SPLITS if getattr(data, part) is not None] if split == "all" else [split]
    about, simple = _simple_models(model, data, known, own if other else None)
    few = sum(np.size(leaf) for part in parts for leaf in jax.tree.leaves(getattr(data, part))) <= MAX_REFINED_VALUES
    for part in parts:
        samples = getattr(data, part)
        kinds = kinds_of(known, samples, (data.origins or {}).get(part), part, other, unmatched)
        columns = {"name": data.names[part] if data.names else range(len(kinds)), "split": kinds}
        columns |= {"group": data.groups[part]} if data.groups else {}
        losses = simple(samples)
        refined = {"refined_30": model.refine(samples, 30)["loss"]} if about and few and model.workload.refine else {}
        found, more = {**model.evaluate(samples), **losses, **refined}, (data.columns or {}).get(part, {})
        metrics = list(found)
        fingerprint.warn_of_change(found[LOSS].mean(), None if changes or part != "validation" else model.record.best_val_loss)
        columns |= {name: values.tolist() for name, values in found.items()}
        columns |= own_columns({f"{OWN}{name}": values for name, values in more.items()}, columns)
        rows += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    by_kind = {kind: [row for row in rows if row["split"] == kind] for kind in dict.fromkeys(row["split"] for row in rows)}
    *first, last = (f"{len(of_kind)} {kind}" for kind, of_kind in by_kind.items())
    counts = " and ".join([", ".join(first), last] if first else [last])
    print(f"{options.run}: the parameters of epoch {model.record.best_epoch}, the best, on {counts} samples")
    for note in model.record.seen_notes:
        print(f"{note}; they count as train")
    for kind, of_kind in by_kind.items():
        print(*[f"{kind}:"] * bool(first), *_summary(of_kind, metrics, data.may_be_undefined), sep="\n")
        if losses:
            print(scale({name: [row[name] for row in of_kind] for name in (LOSS, *losses)}))
    if about:
        print(about + "; refined_30 is the loss after `gmmae describe --refine 30`" * ("refined_30" in metrics))
    _write(options, rows, split, settings, changes, other)


def _simple_models(model: Trained, data: Splits, known: Fingerprint | None, own: Config | None) -> tuple[str, Callable]:
    """The workload's baselines of the data's training samples, or of those of the run `own` if they are still there.

    Warns where a user's workload gives the run's own validation another loss in these settings.
    """
    name = model.config.workload
    baselines = getattr(registry.load(name), "baselines", None)
    with suppress(Exception if own else InputError):  # the run's own data may have gone, whatever a user's `load` then raises
        of_run = registry.build(own).load() if own and (baselines or name not in registry.BUILT_IN) else data
        if own and name not in registry.BUILT_IN:
            fingerprint.warn_of_change(model.losses(of_run.validation).mean(), model.record.best_val_loss)
        if baselines and (not own or (known and hashes(of_run.train)[0] == [entry.split()[0] for entry in known.train])):
            return baselines(model.config.settings, of_run.train)
    return "", lambda _: {}


def _write(
    options: EvaluateArguments,
    rows: Sequence[Mapping[str, Any]],
    split: str,
    settings: Mapping[str, Any],
    changes: Mapping[str, Any],
    other: bool,
) -> None:
    """Each choice of samples, data and settings has a name of its own, so none is overwritten."""
    words = ["evaluation", *([split] if split != "validation" else [])]
    if other and "data.source" in settings:
        words.append(re.sub(r"[^\w.-]+", "-", Path(settings.get("data.root") or "").name) or settings["data.source"])
    if changes:
        words.append(hashlib.sha256(json.dumps(changes, sort_keys=True, default=str).encode()).hexdigest()[:8])
    path = options.out or options.run / f"{'_'.join(words)}.csv"
    try:
        with output_file(path) as file:
            file.write_text(csv_text(rows, dict.fromkeys(key for row in rows for key in row)), encoding="utf-8")
    except InputError as error:
        if options.out is not None or isinstance(error, StorageError):
            raise
        why = getattr(error.__cause__, "strerror", None) or error
        print(f"no CSV was written: {options.run} cannot be written ({why}); choose another file with --out")
    else:
        print(f"{'samples':<12} {path}")


def kinds_of(
    known: Fingerprint | None, samples: Samples, origins: Sequence[Any] | None, split: str, other: bool, unmatched: str
) -> list[str]:
    """What each sample was to a run, `unmatched` where the run does not know it. Samples of sources are not all known.

    `other` says whether the data may be others than the run's.
    """
    names, total = fingerprint.words(hashes(samples)[0], origins), count(samples)
    if known is None or len(names) < total or not known.whole:
        return ["unknown" if other else split] * total
    kinds = dict.fromkeys(known.seen, "train")
    if other or split == "test":
        parts = {"validation": known.validation, "train": [*known.train, *known.seen]}
        kinds = {word: kind for kind, of_kind in parts.items() for name in of_kind for word in name.split()}
        split = "test" if split == "test" else unmatched
    return [next((kinds[word] for word in name.split() if word in kinds), split) for name in names]


def _summary(rows: Sequence[Mapping[str, Any]], metrics: Sequence[str], may_be_undefined: Sequence[str]) -> list[str]:
    """A line for each metric, and one about the intervals.

    >>> _summary([{"group": "a", "dice": 0.5}, {"group": "a", "dice": np.nan}], ["dice"], ["dice"])[0]
    'dice         0.5; undefined for 1 of 2 samples'
    """
    samples, named, percent = len(rows), "group" in rows[0], f"{100 * grouped.CONFIDENCE_LEVEL:g} %"
    groups = np.array([row["group"] if named else str(number) for number, row in enumerate(rows)])
    lines = []
    for name in metrics:
        values = np.array([row[name] for row in rows], np.float64)
        defined = ~np.isnan(values) if name in may_be_undefined else np.full(samples, True)
        if not defined.any():
            lines.append(f"{name:<12} undefined for all {samples} samples")
            continue
        text = grouped.mean(values[defined], groups[defined]).text("{:.6g}".format)
        if wrong := int((~np.isfinite(values[defined])).sum()):
            text = (
                f"{values[defined].mean():.6g} ({wrong} of {defined.sum()} values {'is' if wrong == 1 else 'are'} not finite)"
            )
        left_out = f"; undefined for {samples - defined.sum()} of {samples} samples" if not defined.all() else ""
        lines.append(f"{name:<12} {text}{left_out}")
    number, least, kind = len(set(groups.tolist())), grouped.MIN_GROUPS, "groups" if named else "samples"
    few = f"; so few {kind} make them too narrow" if number < grouped.FEW_GROUPS else ""
    if number < least:
        one = f" ({GROUPS}); the {samples} samples are of one" if named else ""
        return [*lines, f"no intervals: they need at least {least} {kind}{one}"]
    if named:
        return [*lines, f"{percent} intervals resample the {number} groups ({GROUPS}) of {samples} samples{few}"]
    independent = f"{samples} samples for independent of each other: the workload names no groups"
    return [*lines, f"{percent} intervals take the {independent}{few}"]

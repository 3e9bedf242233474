"""`gmmae evaluate`: compute the loss and the metrics of a run's best parameters for each sample."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gmmae.cli.options import EvaluateArguments, Split
from gmmae.config.schema import Config, changed
from gmmae.data.settings import DataConfig
from gmmae.data.splits import SPLITS
from gmmae.generation.judging import bootstrap
from gmmae.generation.judging.bootstrap import Estimate
from gmmae.system.compilation_cache import keep
from gmmae.system.environment import update_jax
from gmmae.system.errors import InputError, StorageError
from gmmae.system.files import claim_output, csv_text, output_file
from gmmae.training import fingerprint
from gmmae.training.fingerprint import Fingerprint
from gmmae.training.trained import restore
from gmmae.training.workdir import WorkDir
from gmmae.workloads.configuration import identity_settings, on_its_data, read_config
from gmmae.workloads.interface import Samples, Splits
from gmmae.workloads.sources import count, hashes

STEM = "evaluation"

GROUPS = "patients, or scans where none is named"
"""A description of the groups of samples."""

COLUMNS = {
    "name": "name of the sample, or its number from 0",
    "split": "what the sample was to the run: train, validation, test or unseen; unknown for a source, or another cut",
    "group": "group of the sample, such as its patient; only if the workload names groups",
    "loss": "loss of the sample",
    "NAME": "a metric of the workload, one column each",
}
"""The columns of the CSV with their meanings."""


DIVIDING = ("seed", "validation", "folds", "fold", "category_column", "group_column")
DIVISION = {f"data.{name}" for name in ("source", "root", "csv", "samples", *DIVIDING)}
"""Settings that leave the voxels of a nodule as they are. Where others change, a nodule cannot be recognised."""


def command(options: EvaluateArguments, config: Config) -> int:
    """Prints the means, and writes the CSV. Returns the exit code."""
    if options.out is not None:
        claim_output(options.out, b"name,split")
    own = read_config(WorkDir(options.run).config)
    config = on_its_data(config, own)
    own_data = _data_settings(own)
    changes = {key for key, value in _data_settings(config).items() if value != own_data.get(key)}
    other = bool(changes)
    split: Split = ("all" if other else "validation") if options.split == "auto" else options.split
    keep(config.compilation_cache)
    update_jax()
    model = restore(_default_validation(config, own) if other and split == "all" else config, options.run)
    data, known = model.workload.load(), fingerprint.read(options.run)
    if known and not other:
        _, *digests = fingerprint.of(config, data).digests.items()  # a metric may be new in the workload's file
        fingerprint.require_same(known.digests, dict(digests), options.run)
    if split == "test" and data.test is None:
        raise InputError("--split test needs data that have a test set of their own, such as medmnist; these have none")
    unmatched = "unknown" if any(key.startswith("data.") for key in changes - DIVISION) else "unseen"
    rows = []
    for name in [name for name in SPLITS if getattr(data, name) is not None] if split == "all" else [split]:
        samples = getattr(data, name)
        rows += _rows(data, name, model.evaluate(samples), _kinds(known, samples, name, other, unmatched))
    by_kind = {kind: [row for row in rows if row["split"] == kind] for kind in dict.fromkeys(row["split"] for row in rows)}
    *first, last = (f"{len(of_kind)} {kind}" for kind, of_kind in by_kind.items())
    counts = " and ".join([", ".join(first), last] if first else [last])
    print(f"{options.run}: the parameters of epoch {model.record.best_epoch}, the best, on {counts} samples")
    for note in model.record.seen_notes:
        print(f"{note}; they count as train")
    for kind, of_kind in by_kind.items():
        print(*[f"{kind}:"] * bool(first), *_summary(of_kind, data.may_be_undefined), sep="\n")
    _write(options.out, options.run / _name(config, own, split, other), rows)
    return 0


def _kinds(known: Fingerprint | None, samples: Samples, split: str, other: bool, unmatched: str) -> list[str]:
    """Returns what each sample was to a run: train, validation, or unseen. Samples of sources are not all known.

    Args:
      known: the fingerprint of the run.
      samples: of a split.
      split: its name.
      other: whether the data may be others than those of the run.
      unmatched: what a sample is that the run does not know.
    """
    names, total = hashes(samples)[0], count(samples)
    if known is None or len(names) < total or len(known.train) < known.samples:
        return ["unknown" if other else split] * total
    if not other:
        seen = set(known.seen)
        return ["train" if name in seen else split for name in names]
    kinds = dict.fromkeys(known.validation, "validation") | dict.fromkeys([*known.train, *known.seen], "train")
    return [kinds.get(name, "test" if split == "test" else unmatched) for name in names]


def _data_settings(config: Config) -> dict[str, Any]:
    """Returns the settings that decide on the samples: the section `data`, or all if there is none."""
    settings = identity_settings(config)
    return {key: value for key, value in settings.items() if key.startswith("data.")} or settings


def _name(config: Config, own: Config, split: Split, other: bool) -> str:
    """Returns the name of the CSV. Each choice of samples, data and settings has its own, so none is overwritten."""
    words = [STEM, *([split] if split != "validation" else [])]
    settings, own_settings = identity_settings(config), identity_settings(own)
    changes = {key: value for key, value in settings.items() if value != own_settings.get(key)}
    if other and "data.source" in settings:
        words.append(re.sub(r"[^\w.-]+", "-", Path(settings.get("data.root") or "").name) or settings["data.source"])
    if changes:
        words.append(hashlib.sha256(json.dumps(changes, sort_keys=True, default=str).encode()).hexdigest()[:8])
    return "_".join(words) + ".csv"


def _default_validation(config: Config, own: Config) -> Config:
    """Returns the configuration with the default size of the validation set, which fits other data too."""
    data = getattr(config.settings, "data", None)
    if not isinstance(data, DataConfig) or data.validation != own.settings.data.validation:
        return config
    return changed(config, data__validation=DataConfig.validation)


def _summary(rows: Sequence[Mapping[str, Any]], may_be_undefined: Sequence[str] = ()) -> list[str]:
    """Returns a line for each metric with its mean and interval, and a line about the intervals.

    The mean leaves out samples for which a metric is undefined.

    >>> _summary([{"group": "a", "loss": 1.0, "dice": 0.5}, {"group": "a", "loss": 2.0, "dice": np.nan}], ["dice"])[1]
    'dice         0.5; undefined for 1 of 2 samples'
    """
    samples, named = len(rows), "group" in rows[0]
    groups = np.array([row["group"] if named else str(number) for number, row in enumerate(rows)])
    lines = []
    for name in (name for name in rows[0] if name not in ("name", "split", "group")):
        values = np.array([row[name] for row in rows], np.float64)
        defined = ~np.isnan(values) if name in may_be_undefined else np.full(samples, True)
        if not defined.any():
            lines.append(f"{name:<12} undefined for all {samples} samples")
            continue
        mean = _mean_text(values[defined], bootstrap.mean(values[defined], groups[defined], seed=0))
        left_out = f"; undefined for {samples - defined.sum()} of {samples} samples" if not defined.all() else ""
        lines.append(f"{name:<12} {mean}{left_out}")
    return [*lines, _interval_note(samples, len(set(groups.tolist())), named)]


def _mean_text(values: np.ndarray, mean: Estimate) -> str:
    """Returns a mean with its interval, or with the number of values that are not finite.

    >>> import numpy as np
    >>> _mean_text(np.array([1.0, 2.0]), Estimate(1.5, 1.0, 2.0)), _mean_text(np.array([1.0]), Estimate(1.0))
    ('1.5 (95 % interval 1 to 2)', '1')
    """
    if wrong := int((~np.isfinite(values)).sum()):
        return f"{mean.value:.6g} ({wrong} of {len(values)} values {'is' if wrong == 1 else 'are'} not finite)"
    interval = (
        f" ({100 * bootstrap.CONFIDENCE_LEVEL:g} % interval {mean.low:.4g} to {mean.high:.4g})" if mean.low <= mean.high else ""
    )
    return f"{mean.value:.6g}{interval}"


def _interval_note(samples: int, groups: int, named: bool) -> str:
    """Returns a sentence on the resampling of the intervals, or on why there are none."""
    least, kind = bootstrap.MIN_GROUPS, "groups" if named else "samples"
    if groups < least and named:
        return f"no intervals: they need at least {least} groups ({GROUPS}); the {samples} samples are of one"
    if groups < least:
        return f"no intervals: they need at least {least} samples"
    percent = f"{100 * bootstrap.CONFIDENCE_LEVEL:g}"
    few = f"; so few {kind} make them too narrow" if groups < bootstrap.FEW_GROUPS else ""
    if named:
        return f"{percent} % intervals resample the {groups} groups ({GROUPS}) of {samples} samples{few}"
    independent = f"take the {samples} samples for independent of each other: the workload names no groups"
    return f"{percent} % intervals {independent}{few}"


def _rows(data: Splits, split: str, values: Mapping[str, np.ndarray], kinds: Sequence[str]) -> list[dict[str, Any]]:
    columns: dict[str, Any] = {"name": data.names[split] if data.names else range(len(kinds)), "split": kinds}
    if data.groups:
        columns["group"] = data.groups[split]
    columns |= {name: of.tolist() for name, of in values.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _write(out: Path | None, default: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path = out or default
    try:
        with output_file(path) as part:
            part.write_text(csv_text(rows, rows[0]), encoding="utf-8")
    except InputError as error:
        if out is not None or isinstance(error, StorageError):
            raise
        why = getattr(error.__cause__, "strerror", None) or error
        print(f"no CSV was written: {default.parent} cannot be written ({why}); choose another file with --out")
        return
    print(f"{'samples':<12} {path}")

"""`gmmae evaluate`: compute the loss and the metrics of a run's best parameters for each sample."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gmmae.cli.options import EvaluateArguments, Split
from gmmae.config.schema import LOSS, Config, changed
from gmmae.data.settings import DataConfig
from gmmae.data.splits import SPLITS
from gmmae.generation.judging import bootstrap
from gmmae.generation.judging.bootstrap import Estimate
from gmmae.system.compilation_cache import keep
from gmmae.system.environment import update_jax
from gmmae.system.errors import InputError, StorageError
from gmmae.system.files import claim_output, csv_text, output_file
from gmmae.training.trained import restore
from gmmae.training.workdir import WorkDir
from gmmae.workloads.configuration import identity_settings, on_its_data, read_config
from gmmae.workloads.interface import Splits

STEM = "evaluation"

GROUPS = "patients, or scans where none is named"
"""A description of the groups of samples."""

COLUMNS = {
    "name": "name of the sample, or its number from 0",
    "split": "train or validation",
    "group": "group of the sample, such as its patient; only if the workload names groups",
    "loss": "loss of the sample",
    "NAME": "a metric of the workload, one column each",
}
"""The columns of the CSV with their meanings."""


def command(options: EvaluateArguments, config: Config) -> int:
    """Prints the means, and writes the CSV. Returns the exit code."""
    if options.out is not None:
        claim_output(options.out, b"name,split")
    own = read_config(WorkDir(options.run).config)
    config = on_its_data(config, own)
    other = _data_settings(config) != _data_settings(own)
    split: Split = ("all" if other else "validation") if options.split == "auto" else options.split
    keep(config.compilation_cache)
    update_jax()
    model = restore(_default_validation(config, own) if other and split == "all" else config, options.run)
    data = model.workload.load()
    if split == "test" and data.test is None:
        raise InputError("--split test needs data that have a test set of their own, such as medmnist; these have none")
    splits = [name for name in SPLITS if getattr(data, name) is not None] if split == "all" else [split]
    values_by_split = {name: model.evaluate(getattr(data, name)) for name in splits}
    *first, last = (f"{len(values[LOSS])} {name}" for name, values in values_by_split.items())
    counts = " and ".join([", ".join(first), last] if first else [last])
    best = f"the parameters of epoch {model.record.best_epoch}, the best"
    print(f"{options.run}: {best}, on {counts} samples{' of other data' if other else ''}")
    print("\n".join(_summary(list(values_by_split.values()), _groups(data, values_by_split), data.may_be_undefined)))
    rows = [row for name, values in values_by_split.items() for row in _rows(data, name, values)]
    _write(options.out, options.run / _name(config, own, split, other), rows)
    return 0


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


def _groups(data: Splits, splits: Iterable[str]) -> list[str] | None:
    """Returns the group of each sample of these splits; None if the workload names none."""
    return None if data.groups is None else [group for split in splits for group in data.groups[split]]


def _summary(
    splits: Sequence[Mapping[str, np.ndarray]], groups: Sequence[str] | None, may_be_undefined: Sequence[str] = ()
) -> list[str]:
    """Returns a line for each metric with its mean and interval, and a line about the intervals.

    The mean leaves out samples for which a metric is undefined.

    >>> import numpy as np
    >>> values = {"loss": np.array([1.0, 2.0]), "dice": np.array([0.5, np.nan])}
    >>> _summary([values], ["a", "a"], ["dice"])[1]
    'dice         0.5; undefined for 1 of 2 samples'
    """
    samples = sum(len(values[LOSS]) for values in splits)
    of_samples = np.array(groups if groups is not None else [str(number) for number in range(samples)])
    lines = []
    for name in splits[0]:
        values = np.concatenate([values[name] for values in splits]).astype(np.float64)
        defined = ~np.isnan(values) if name in may_be_undefined else np.full(samples, True)
        if not defined.any():
            lines.append(f"{name:<12} undefined for all {samples} samples")
            continue
        mean = _mean_text(values[defined], bootstrap.mean(values[defined], of_samples[defined], seed=0))
        left_out = f"; undefined for {samples - defined.sum()} of {samples} samples" if not defined.all() else ""
        lines.append(f"{name:<12} {mean}{left_out}")
    return [*lines, _interval_note(samples, len(set(of_samples.tolist())), groups is not None)]


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


def _rows(data: Splits, split: str, values: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    columns: dict[str, Any] = {"name": data.names[split] if data.names else range(len(values[LOSS]))}
    columns["split"] = [split] * len(values[LOSS])
    if groups := _groups(data, [split]):
        columns["group"] = groups
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

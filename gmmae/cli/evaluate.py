"""`gmmae evaluate`: the loss and the metrics of a run's best parameters, sample by sample."""

import csv
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gmmae.cli.arguments import MISSING, Run, parse_on_run
from gmmae.config.rules import Options
from gmmae.config.schema import LOSS, Config, changed, flatten
from gmmae.data.settings import DataConfig
from gmmae.generation.judging import bootstrap
from gmmae.generation.judging.bootstrap import Estimate
from gmmae.system.compilation_cache import keep
from gmmae.system.errors import InputError, StorageError
from gmmae.system.files import output_file
from gmmae.training.workdir import WorkDir
from gmmae.workloads.configuration import on_its_data, read_config
from gmmae.workloads.interface import Splits

if TYPE_CHECKING:
    import numpy as np

    from gmmae.training.trained import Trained

STEM = "evaluation"

On = Literal["validation", "train", "all"]

NAMED = "patients, or scans where none is named"
"""What the groups of samples are."""


@dataclass(frozen=True)
class Arguments(Options):
    """Loss and metrics of a run's best parameters on each sample: of the run's own data, or of others that options name."""

    run: Run = MISSING  # the work directory of a run that you trust: the Python that it names is executed; it comes first
    on: On | None = None  # which samples; default: validation, and all where the data are not the run's own
    # The CSV to write, a row a sample; default: evaluation.csv in RUN for the run's own validation samples. Rows of other
    # samples, data or settings get a file of their own in RUN. The last line that is printed names it.
    out: Path | None = None


def command(arguments: Sequence[str], prog: str) -> int:
    """Prints the means, and writes the CSV. Returns the exit code."""
    asked, config = parse_on_run(Arguments, arguments, prog)
    own = read_config(WorkDir(asked.run).config)
    config = on_its_data(config, own)
    other = _data(config) != _data(own)
    on: On = asked.on or ("all" if other else "validation")
    keep(config.compilation_cache)
    from gmmae.training.trained import restore

    model = restore(_undivided(config, own) if other and on == "all" else config, asked.run)
    splits = ("train", "validation") if on == "all" else (on,)
    data = model.workload.load()
    found = {split: model.evaluate(getattr(data, split)) for split in splits}
    print(f"{_title(model, asked.run)}, on {_counts(found)}{' of other data' if other else ''}")
    print("\n".join(_summary(list(found.values()), _groups(data, found), data.may_be_undefined)))
    rows = [row for split, values in found.items() for row in _rows(data, split, values)]
    _write(asked.out, asked.run / _name(config, own, on, other), rows)
    return 0


def _settings(config: Config) -> dict[str, Any]:
    """The settings that decide on the rows; folders by their absolute paths, so that one folder is always the same."""
    settings = dict(flatten(config.settings, resumable=False))
    folders = {key: os.path.realpath(settings[key]) for key in ("data.root", "data.augment_with") if settings.get(key)}
    return settings | folders


def _data(config: Config) -> dict[str, Any]:
    """The settings that decide what the samples are: the section `data` where there is one, otherwise all may."""
    settings = _settings(config)
    return {key: value for key, value in settings.items() if key.startswith("data.")} or settings


def _name(config: Config, own: Config, on: On, other: bool) -> str:
    """The name of the CSV: one for each choice of samples, data and settings, so that none overwrites another's rows."""
    words = [STEM, *([on] if on != "validation" else [])]
    settings, its = _settings(config), _settings(own)
    changes = {key: value for key, value in settings.items() if value != its.get(key)}
    if other and "data.source" in settings:
        words.append(re.sub(r"[^\w.-]+", "-", Path(str(settings.get("data.root", ""))).name) or settings["data.source"])
    if changes:
        words.append(hashlib.sha256(json.dumps(changes, sort_keys=True, default=str).encode()).hexdigest()[:8])
    return "_".join(words) + ".csv"


def _undivided(config: Config, own: Config) -> Config:
    """Where all samples of other data are wanted, the run's number of validation samples need not fit them."""
    data = getattr(config.settings, "data", None)
    if not isinstance(data, DataConfig) or data.validation != own.settings.data.validation:
        return config
    return changed(config, data__validation=DataConfig.validation)


def _title(model: "Trained", run: Path) -> str:
    epoch = model.record.best_epoch
    return f"{run}: the parameters of {f'epoch {epoch}, the best' if epoch else 'the start: no epoch was finite'}"


def _counts(found: Mapping[str, Mapping[str, "np.ndarray"]]) -> str:
    return " and ".join(f"{len(values[LOSS])} {split}" for split, values in found.items()) + " samples"


def _groups(data: Splits, splits: Iterable[str]) -> list[str] | None:
    """The group of each sample of these splits; None where the workload names none."""
    return None if data.groups is None else [group for split in splits for group in data.groups[split]]


def _summary(
    of_splits: Sequence[Mapping[str, "np.ndarray"]], groups: Sequence[str] | None, may_be_undefined: Sequence[str] = ()
) -> list[str]:
    """A line for each metric, its mean over the samples with an interval; and a line that says what the intervals resample.

    Samples that a metric is undefined for are left out of its mean, and counted.

    >>> import numpy as np
    >>> values = {"loss": np.array([1.0, 2.0]), "dice": np.array([0.5, np.nan])}
    >>> _summary([values], ["a", "a"], ["dice"])[1]
    'dice         0.5; undefined for 1 of 2 samples'
    """
    import numpy as np

    samples = sum(len(values[LOSS]) for values in of_splits)
    of_samples = np.array(groups if groups is not None else [str(number) for number in range(samples)])
    lines = []
    for name in of_splits[0]:
        values = np.concatenate([values[name] for values in of_splits]).astype(np.float64)
        defined = ~np.isnan(values) if name in may_be_undefined else np.full(samples, True)
        if not defined.any():
            lines.append(f"{name:<12} undefined for all {samples} samples")
            continue
        shown = _shown(values[defined], bootstrap.mean(values[defined], of_samples[defined], seed=0))
        left_out = f"; undefined for {samples - defined.sum()} of {samples} samples" if not defined.all() else ""
        lines.append(f"{name:<12} {shown}{left_out}")
    return [*lines, _explained(samples, len(set(of_samples.tolist())), groups is not None)]


def _shown(values: "np.ndarray", mean: Estimate) -> str:
    """
    >>> import numpy as np
    >>> _shown(np.array([1.0, 2.0]), Estimate(1.5, 1.0, 2.0)), _shown(np.array([1.0]), Estimate(1.0))
    ('1.5 (95 % interval 1 to 2)', '1')
    """
    import numpy as np

    if wrong := int((~np.isfinite(values)).sum()):
        return f"{mean.value:.6g} ({wrong} of {len(values)} values {'is' if wrong == 1 else 'are'} not finite)"
    interval = f" ({100 * bootstrap.LEVEL:g} % interval {mean.low:.4g} to {mean.high:.4g})" if mean.low <= mean.high else ""
    return f"{mean.value:.6g}{interval}"


def _explained(samples: int, groups: int, named: bool) -> str:
    """What the intervals resample, or why there are none."""
    least, kind = bootstrap.LEAST_GROUPS, "groups" if named else "samples"
    if groups < least and named:
        return f"no intervals: they need at least {least} groups ({NAMED}); the {samples} samples are of one"
    if groups < least:
        return f"no intervals: they need at least {least} samples"
    few = f"; so few {kind} make them too narrow" if groups < bootstrap.FEW_GROUPS else ""
    if named:
        return f"{100 * bootstrap.LEVEL:g} % intervals resample the {groups} groups ({NAMED}) of {samples} samples{few}"
    independent = f"take the {samples} samples for independent of each other: the workload names no groups"
    return f"{100 * bootstrap.LEVEL:g} % intervals {independent}{few}"


def _rows(data: Splits, split: str, values: Mapping[str, "np.ndarray"]) -> list[dict[str, Any]]:
    columns: dict[str, Any] = {"name": data.names[split] if data.names else range(len(values[LOSS]))}
    columns["split"] = [split] * len(values[LOSS])
    if groups := _groups(data, [split]):
        columns["group"] = groups
    columns |= {name: of.tolist() for name, of in values.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _write(out: Path | None, default: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path = out or default
    try:
        with output_file(path) as part, part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    except InputError as error:
        if out is not None or isinstance(error, StorageError):
            raise
        why = getattr(error.__cause__, "strerror", None) or error
        print(f"no row a sample was written: {default.parent} cannot be written ({why}); --out names another place")
        return
    print(f"{'samples':<12} {path}")

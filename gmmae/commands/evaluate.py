"""`gmmae evaluate`: the loss and the metrics of a run's best parameters, sample by sample."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gmmae.base.compiled import keep
from gmmae.base.config import Config, changed, flatten
from gmmae.base.errors import InputError
from gmmae.base.workdir import WorkDir
from gmmae.commands.arguments import MISSING, Run, on_its_data, parse_on_run, read_config
from gmmae.data.config import DataConfig

if TYPE_CHECKING:
    import numpy as np

    from gmmae.commands.api import Trained

CSV = "evaluation.csv"

On = Literal["validation", "train", "all"]


@dataclass(frozen=True)
class Arguments:
    """Loss and metrics of a run's best parameters on each sample: of the run's own data, or of others that options name."""

    run: Run = MISSING  # the work directory of the run; it comes first
    on: On | None = None  # which samples; default: validation, and all where the data are not the run's own
    out: Path | None = None  # the CSV to write, a row a sample; default: evaluation.csv in RUN


def command(arguments: Sequence[str], prog: str) -> int:
    """Prints the means, and writes the CSV. Returns the exit code."""
    asked, config = parse_on_run(Arguments, arguments, prog)
    own = read_config(WorkDir(asked.run).config)
    config = on_its_data(config, own)
    other = _data(config) != _data(own)
    on: On = asked.on or ("all" if other else "validation")
    keep(config.compilation_cache)
    from gmmae.commands.api import restore

    model = restore(_undivided(config, own) if other and on == "all" else config, asked.run)
    splits = ("train", "validation") if on == "all" else (on,)
    found = {split: model.evaluate(getattr(model.workload.data, split)) for split in splits}
    print(f"{_title(model, asked.run)}, on {_counts(found)}{' of other data' if other else ''}")
    for line in _means(list(found.values()), model.workload.may_be_undefined):
        print(line)
    _write(asked.out, asked.run, [row for split, values in found.items() for row in _rows(model, split, values)])
    return 0


def _data(config: Config) -> dict[str, Any]:
    """The settings that decide what the samples are: the section `data` where there is one, otherwise all may."""
    settings = dict(flatten(config.settings, resumable=False))
    return {key: value for key, value in settings.items() if key.startswith("data.")} or settings


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
    return " and ".join(f"{len(values['loss'])} {split}" for split, values in found.items()) + " samples"


def _means(of_splits: Sequence[Mapping[str, "np.ndarray"]], may_be_undefined: Sequence[str]) -> list[str]:
    """A line for each metric: its mean over the samples that define it, and the standard error of that mean."""
    import numpy as np

    lines = []
    for name in of_splits[0]:
        values = np.concatenate([values[name] for values in of_splits]).astype(np.float64)
        if name in may_be_undefined and not np.isnan(values).all():
            values = values[~np.isnan(values)]
        error = f" ± {values.std(ddof=1) / len(values) ** 0.5:.2g} (standard error)" if len(values) > 1 else ""
        lines.append(f"{name:<12} {values.mean():.6g}{error}")
    return lines


def _rows(model: "Trained", split: str, values: Mapping[str, "np.ndarray"]) -> list[dict[str, Any]]:
    names = getattr(model.workload.names, split, None) or range(len(values["loss"]))
    columns = zip(*(each.tolist() for each in values.values()), strict=True)
    return [
        {"name": name, "split": split, **dict(zip(values, row, strict=True))} for name, row in zip(names, columns, strict=True)
    ]


def _write(out: Path | None, run: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path = out or run / CSV
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        if out is not None:
            raise InputError(f"--out must be a file that can be written; got {out} ({error.strerror})") from error
        print(f"no row a sample was written: {run} cannot be written ({error.strerror}); --out names another place")
        return
    print(f"{'samples':<12} {path}")

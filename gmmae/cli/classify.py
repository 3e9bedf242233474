"""`gmmae classify`: classify volumes by what trained runs find in them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gmmae.classification import comparison, report, samples
from gmmae.classification.samples import LabelRule
from gmmae.cli.arguments import data_of
from gmmae.cli.options import ClassifyArguments
from gmmae.config.schema import Config, flatten
from gmmae.data.extraction import medmnist
from gmmae.data.extraction.prepare import say_on_stderr
from gmmae.data.settings import DataConfig
from gmmae.plotting import tables
from gmmae.system.compilation_cache import keep
from gmmae.system.environment import update_jax
from gmmae.system.errors import InputError
from gmmae.system.files import claim_output, print_result
from gmmae.training import fingerprint
from gmmae.training.trained import restore, run_config

FOLDER = "classification"


def command(options: ClassifyArguments, config: Config) -> int:
    """Classifies, writes the files, prints the table. Returns the exit code."""
    data, rule = data_of(config, "RUN", config.workload), _rule(options)
    runs = (options.run, *options.runs)
    _require_alike(config, runs)
    out = options.out or options.run / FOLDER
    claim_output(out, report.JSON)
    labelled = samples.load(data, rule)
    keep(config.compilation_cache)
    update_jax()
    inputs = []
    now = fingerprint.load(config)
    for run in runs:
        fingerprint.checked(run, now)
        model = restore(replace(config, seed=run_config(run).seed), run)
        if model.workload.encode is None or model.workload.describe is None:
            raise InputError(f"RUN must have a model that describes volumes by mixtures, such as nodules; got {run}")
        inputs.append(samples.inputs(model, labelled, data, options.blocks))
    results = comparison.compare(labelled, inputs, options.seeds, say_on_stderr)
    notes = report.notes(labelled, data, runs, options.seeds)
    columns, rows = report.table(results, report.published(_dataset(data)))
    table = tables.table(columns, rows, "Classification of the test set", [f"{note}." for note in notes])
    about = {"runs": list(map(str, runs)), "seeds": options.seeds, "classes": labelled.classes, "notes": notes}
    paths = report.write(out, labelled, results, table, about)
    print_result(out, [tables.text_table(columns, rows), "", *notes, *map(str, paths)])
    return 0


def _dataset(data: DataConfig) -> str:
    return medmnist.dataset_name(data.folder) if data.source == "medmnist" else ""


def _rule(options: ClassifyArguments) -> LabelRule:
    limits = (options.label_at_most, options.label_at_least)
    if (limits[0] is None) != (limits[1] is None):
        raise InputError("--label-at-most and --label-at-least must be given together; got one of them")
    if limits[0] is not None and limits[1] is not None and limits[0] >= limits[1]:
        raise InputError(f"--label-at-most must be below --label-at-least; got {limits[0]:g} and {limits[1]:g}")
    return LabelRule(options.label_column, *limits)


def _require_alike(config: Config, runs: Sequence[Path]) -> None:
    """Checks that the runs differ in their seeds only, and that the data are divided as they were for the training.

    Raises:
      InputError: they are not, or one is named twice.
    """
    places = [run.resolve() for run in runs]
    for run, place in zip(runs, places, strict=True):
        if places.count(place) > 1:
            raise InputError(
                f"each run must be given once, because results are means over all runs; got {run} twice: leave one out"
            )
    wanted = dict(flatten(config.settings, resumable=False))
    for run in runs:
        other = dict(flatten(run_config(run).settings, resumable=False))
        changed = [key for key in wanted if wanted[key] != other.get(key)]
        if changed or wanted.keys() != other.keys():
            raise InputError(
                f"a run must have the settings with which its test set was held out, and differ from the others in its seed "
                f"only; got {', '.join(changed) or 'another workload'} otherwise in {run}"
            )
